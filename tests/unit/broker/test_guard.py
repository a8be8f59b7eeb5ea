"""The guard of an embedded server: what becomes of the server and its folder when users are killed.

Servers, users and guards are real processes, and die by SIGKILL.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from jobrunner.broker.embedded.locks import is_locked
from jobrunner.broker.embedded.server import EmbeddedServer
from tests.support.waiting import wait_for

USER = """
import sys
from pathlib import Path
from jobrunner.broker.embedded import process
from jobrunner.broker.embedded.server import EmbeddedServer
process.GUARD_GRACE_S = float(sys.argv[3])
server = EmbeddedServer(Path(sys.argv[1]), temporary=sys.argv[2] == "temporary")
server.acquire()
print(server.status().pid, flush=True)
sys.stdin.read()
server.release()
"""
GUARD = """
import os, sys
from pathlib import Path
from jobrunner.broker.embedded import guard
guard.sleep = lambda s: (print("grace", flush=True), sys.stdin.readline())
lock = os.open(os.devnull, os.O_RDONLY)
print(guard.ServerGuard(lock, Path(sys.argv[1]), grace_s=1.0).is_over(), flush=True)
"""


class User:
    """A process that uses the server; `pid` is that of the server."""

    def __init__(self, folder: Path, *, temporary: bool = False, grace_s: float = 0.0) -> None:
        words = [sys.executable, "-c", USER, str(folder), "temporary" if temporary else "kept", str(grace_s)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.pid = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def leave(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "s"
    yield path
    if path.is_dir():
        EmbeddedServer(path).stop()


@pytest.fixture
def user(folder: Path) -> Iterator[Callable[..., User]]:
    """Starts users of the folder; all are killed in the end."""
    started: list[User] = []

    def start(**options: object) -> User:
        started.append(User(folder, **options))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.kill()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text() if Path("/proc/self").exists() else True


def guard_of(folder: Path) -> int | None:
    """The id of the guard process of the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_text()
            if "guard import main\n" in command and str(folder) in command:
                return int(process.name)
    return None


def test_a_server_whose_last_user_was_killed_is_stopped_and_keeps_its_data(
    folder: Path, user: Callable[..., User]
) -> None:
    first, second = user(), user()
    assert first.pid == second.pid
    socket = EmbeddedServer(folder).status().socket
    with redis.Redis(unix_socket_path=str(socket)) as connection:
        connection.set("kept", "yes")
    first.kill()
    assert lives(first.pid)
    second.kill()

    wait_for(lambda: not lives(first.pid))
    wait_for(lambda: not is_locked(folder / "guard.lock"))
    assert "User requested shutdown" in (folder / "server.log").read_text()  # it was asked, not killed
    third = user()
    assert third.pid != first.pid
    with redis.Redis(unix_socket_path=str(socket)) as connection:
        assert connection.get("kept") == b"yes"


def test_a_killed_user_leaves_the_server_for_some_seconds_to_who_comes_then(
    folder: Path, user: Callable[..., User]
) -> None:
    first = user(grace_s=5.0)
    guard = subprocess.Popen(
        [sys.executable, "-c", GUARD, str(folder)], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert guard.stdout is not None
    first.kill()
    assert guard.stdout.readline() == "grace\n"  # it found the server without users
    second = user()
    assert second.pid == first.pid

    rest, _ = guard.communicate("go on\n")
    assert rest == "False\n"
    assert lives(second.pid)


@pytest.mark.processes
def test_users_that_come_while_others_are_killed_always_have_a_server(folder: Path, user: Callable[..., User]) -> None:
    for _ in range(5):
        first = user()
        first.kill()
        second = user()  # while the guard is about to stop the server of the first
        socket = EmbeddedServer(folder).status().socket
        with redis.Redis(unix_socket_path=str(socket)) as connection:
            assert connection.incr("served")
        assert lives(second.pid)
        second.leave()
    user()
    with redis.Redis(unix_socket_path=str(EmbeddedServer(folder).status().socket)) as connection:
        assert connection.get("served") == b"5"


def test_the_guard_ends_with_the_server_that_the_last_user_stops(folder: Path, user: Callable[..., User]) -> None:
    one = user(grace_s=60.0)
    assert is_locked(folder / "guard.lock")
    one.leave()
    wait_for(lambda: not lives(one.pid))  # a process that ends gives its locks up before it is gone
    wait_for(lambda: not is_locked(folder / "guard.lock"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_guard_that_was_killed_is_replaced_by_the_next_user(folder: Path, user: Callable[..., User]) -> None:
    one = user()
    os.kill(wait_for(lambda: guard_of(folder)), signal.SIGKILL)
    wait_for(lambda: not is_locked(folder / "guard.lock"))
    other = user()
    assert is_locked(folder / "guard.lock")
    one.kill()
    other.kill()
    wait_for(lambda: not lives(one.pid))


def test_a_temporary_folder_goes_with_its_last_user(folder: Path, user: Callable[..., User]) -> None:
    one = user(temporary=True)
    one.kill()
    wait_for(lambda: not folder.exists())
    wait_for(lambda: not lives(one.pid))  # a process that ends gives its locks up before it is gone


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_server_of_a_deleted_folder_ends_with_its_users(folder: Path, user: Callable[..., User]) -> None:
    one = user()
    wait_for(lambda: "users-alive.lock" in _open_files(guard_of(folder)))
    shutil.rmtree(folder)
    one.kill()
    wait_for(lambda: not lives(one.pid))


def test_a_machine_that_cannot_start_a_guard_has_a_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    server = EmbeddedServer(folder)
    server.acquire()
    assert server.status().running
    server.release()
    assert not server.status().running


def _open_files(pid: int | None) -> str:
    with suppress(OSError):
        return " ".join(str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir())
    return ""
