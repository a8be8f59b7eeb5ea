"""Where the socket of an embedded server is when the path of its folder is too long for one."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.broker.embedded.files import ServerFiles
from jobrunner.broker.embedded.server import EmbeddedServer
from jobrunner.errors import EmbeddedServerError

ACQUIRE = """
import sys
from pathlib import Path
from jobrunner.broker.embedded.server import EmbeddedServer
print(EmbeddedServer(Path(sys.argv[1])).acquire())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / ("a long name " * 10) / "s"
    yield path
    EmbeddedServer(path).stop()


@pytest.fixture
def short_tmpdir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path).resolve()


def test_a_long_folder_has_its_socket_in_a_private_temporary_folder_that_goes_with_the_server(
    folder: Path,
) -> None:
    server = EmbeddedServer(folder)

    socket = server.acquire()

    assert len(os.fsencode(socket)) <= 103
    assert socket.is_socket()
    assert socket.parent.parent == Path(tempfile.gettempdir())
    assert socket.parent.name.startswith(f"jobrunner-{os.getuid()}-")
    assert socket.parent.stat().st_mode & 0o777 == 0o700
    server.release()
    assert not socket.parent.exists()


def test_a_process_with_another_tmpdir_finds_the_server_of_a_long_folder(folder: Path, short_tmpdir: Path) -> None:
    server = EmbeddedServer(folder)
    socket = server.acquire()

    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(short_tmpdir)}
    told = subprocess.run(
        [sys.executable, "-c", ACQUIRE, folder], env=environ, capture_output=True, text=True, timeout=30
    )

    assert told.stdout.strip() == str(socket), told.stderr


def test_a_lost_tmpdir_is_replaced_when_the_server_starts_again(
    short_tmpdir: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = short_tmpdir / "gone"
    gone.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(gone))
    server = EmbeddedServer(folder)
    assert server.acquire().is_relative_to(gone)
    pid = server.status().pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    shutil.rmtree(gone)
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmpdir))

    assert server.ensure().parent.parent == short_tmpdir

    server.release()
    assert not list(short_tmpdir.iterdir())


def test_the_link_in_a_copy_of_a_long_folder_does_not_lead_to_the_server_of_the_original(
    folder: Path,
) -> None:
    server = EmbeddedServer(folder)
    socket = server.acquire()
    copy = folder.with_name("copy")
    copy.mkdir()
    shutil.copy(folder / "server.sock", copy, follow_symlinks=False)

    assert (copy / "server.sock").readlink() == socket
    assert EmbeddedServer(copy).status().socket != socket
    assert not EmbeddedServer(copy).status().running


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_a_temporary_folder_that_others_may_enter_is_refused(folder: Path, mode: int) -> None:
    private = ServerFiles(folder=folder.resolve()).socket.parent
    private.mkdir()
    private.chmod(mode)

    try:
        with pytest.raises(EmbeddedServerError, match=r"is not this user's alone: remove it"):
            EmbeddedServer(folder).acquire()
    finally:
        private.rmdir()


def test_a_temporary_folder_that_is_too_long_itself_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_tmpdir = tmp_path / ("t" * 100)
    long_tmpdir.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long_tmpdir))

    with pytest.raises(EmbeddedServerError, match=r"too long for a socket: set a shorter TMPDIR"):
        EmbeddedServer(folder).acquire()


def test_an_existing_gitignore_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("mine")

    ServerFiles(folder=tmp_path).create()

    assert (tmp_path / ".gitignore").read_text() == "mine"
