"""The folder of an embedded server that another user made, may write, or put something into."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import EmbeddedServerError
from tests.support.waiting import wait_for

NOBODY = 65534
FILES = ("server.log", "server.pid", "start.lock", "users.lock", "server.lock", "users-fsync-always.lock")
HOLDS = """
import sys
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
one = EmbeddedServer(Path(sys.argv[1]))
one.acquire()
print("in", flush=True)
sys.stdin.read()
one.release()
"""
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "s"


def refused(folder: Path) -> str:
    with pytest.raises(EmbeddedServerError) as error:
        EmbeddedServer(folder).acquire()
    assert not (folder / "appendonlydir").exists(), "no server was started"
    return str(error.value)


@as_root
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_folder_of_another_user_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, NOBODY, NOBODY)

    assert "belongs to another user" in refused(folder)
    for ask in (EmbeddedServer(folder).status, EmbeddedServer(folder).stop):
        with pytest.raises(EmbeddedServerError, match="belongs to another user"):
            ask()


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o707, 0o1777, 0o2770])
def test_a_folder_that_others_may_write_is_refused_with_the_remedy(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)

    assert "chmod go-w" in refused(folder)
    folder.chmod(mode & ~0o022)
    server = EmbeddedServer(folder)
    server.acquire()
    server.release()


@as_root
def test_a_link_of_another_user_is_refused_and_ones_own_is_followed(tmp_path: Path) -> None:
    elsewhere, link = tmp_path / "elsewhere", tmp_path / "s"
    elsewhere.mkdir(mode=0o700)
    link.symlink_to(elsewhere)
    server = EmbeddedServer(link)
    server.acquire()
    server.release()
    os.lchown(link, NOBODY, NOBODY)

    with pytest.raises(EmbeddedServerError, match="a link of another user"):
        EmbeddedServer(link)


@pytest.mark.parametrize("name", FILES)
def test_a_link_in_place_of_a_file_is_refused(folder: Path, tmp_path: Path, name: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("untouched")
    folder.mkdir(mode=0o700)
    (folder / name).symlink_to(precious)

    assert name in refused(folder)
    assert precious.read_text() == "untouched"


def test_the_log_and_locks_are_never_opened_through_a_link(folder: Path, tmp_path: Path) -> None:
    from jobrunner.broker.embedded.files import ServerFiles
    from jobrunner.broker.embedded.locks import try_lock
    from jobrunner.broker.embedded.process import launch

    precious = tmp_path / "precious"
    precious.write_text("untouched")
    files = ServerFiles(folder=folder)
    files.create()
    lock = try_lock(files.server_lock)
    assert lock is not None
    for path, use in ((files.log, lambda: launch(files, fsync="everysec", lock=lock)),
                      (files.users_lock, lambda: try_lock(files.users_lock))):  # fmt: skip
        path.unlink(missing_ok=True)
        path.symlink_to(precious)
        with pytest.raises(OSError, match="symbolic links"):
            use()
    os.close(lock)
    assert precious.read_text() == "untouched"


@as_root
@pytest.mark.parametrize("name", [*FILES, "appendonlydir", "server.sock"])
def test_a_file_of_another_user_is_refused(folder: Path, name: str) -> None:
    folder.mkdir(mode=0o700)
    (folder / name).mkdir() if name == "appendonlydir" else (folder / name).write_text("")
    os.chown(folder / name, NOBODY, NOBODY)

    with pytest.raises(EmbeddedServerError, match="belongs to another user"):
        EmbeddedServer(folder).acquire()


def pid_of(folder: Path) -> int:
    return int((folder / "server.pid").read_text())


def is_over(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    try:
        return state.read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(sys.platform != "linux", reason="a folder is followed by /proc")
@pytest.mark.parametrize("what", ["the folder", "the folder, and another is in its place", "the socket"])
def test_closing_leaves_no_orphan_when_something_was_renamed(folder: Path, what: str) -> None:
    folder.parent.chmod(0o777)
    server = EmbeddedServer(folder)
    server.acquire()
    pid = pid_of(folder)
    if what == "the socket":
        (folder / "server.sock").rename(folder / "away.sock")
    else:
        folder.rename(folder.with_name("away"))
        if "another" in what:
            folder.mkdir(mode=0o700)

    try:
        server.release()

        wait_for(lambda: is_over(pid))
    finally:
        if not is_over(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="a folder is followed by /proc")
def test_a_moved_folder_is_not_stopped_under_another_user_of_it(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.acquire()
    pid = pid_of(folder)
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holding.stdout is not None
    assert holding.stdin is not None
    assert holding.stdout.readline() == b"in\n"
    folder.rename(folder.with_name("away"))

    try:
        server.release()
        assert not is_over(pid)
        holding.stdin.close()
        assert holding.wait(30) == 0
        wait_for(lambda: is_over(pid))
    finally:
        holding.kill()
        holding.wait()
        if not is_over(pid):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder.with_name("away"))
