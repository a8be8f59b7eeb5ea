"""The guard of an embedded server: a small process that stops the server when its last user was killed.

The last user stops the server when it leaves. After SIGKILL, a crash or an exit without handlers no user does. So the
guard waits in the kernel for a lock that all users share, and uses no processor time until the lock is free.

Invariants:

* The guard stops a server only under `start.lock` and only while `users.lock` is free: a server that has a user is
  never stopped, and a user that comes meanwhile waits, and starts another server.
* It releases `guard.lock` under `start.lock` and then ends: the next process that starts a server starts a guard, too.
* It creates no file: the folder may be about to be deleted.

It imports only the clock of this package until it has to stop a server, because it occupies memory for as long as the
server runs.
"""

import fcntl
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from jobrunner.clock import sleep

_PAUSE_S: Final = 0.05
_OPENS: Final = os.O_RDWR | os.O_CLOEXEC


def main(guard_lock: int, folder: str, grace_s: float, *, deletes: bool) -> None:
    """Guards the server of `folder`, which is the working directory of this process; `guard_lock` is a descriptor.

    A server without users is kept for `grace_s`: a supervisor restarts killed processes. With `deletes` the guard also
    deletes the folder.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(FileNotFoundError):  # the folder was deleted before this process had begun
        guard = ServerGuard(guard_lock, Path(folder), grace_s=grace_s)
        while not guard.is_over():
            sleep(max(grace_s, _PAUSE_S))
        if deletes:
            guard.remove_folder()


class ServerGuard:
    """Watches the users of one folder. `is_over` is to be called until it returns True."""

    def __init__(self, guard_lock: int, folder: Path, *, grace_s: float) -> None:
        self._lock = guard_lock
        self._folder = folder
        self._grace_s = grace_s
        self._alive = os.open("users-alive.lock", _OPENS)
        self._server = os.open("server.lock", _OPENS)

    def is_over(self) -> bool:
        """Waits until there are no users, and stops the server. False: a user came, or the server does not stop."""
        _wait_until_free(self._alive)
        if self._ends(stops=False):  # the last user has stopped the server
            return True
        sleep(self._grace_s)
        return self._ends(stops=True)

    def remove_folder(self) -> None:
        """Deletes the folder and its files."""
        import shutil

        shutil.rmtree(self._present_folder(), ignore_errors=True)

    def _ends(self, *, stops: bool) -> bool:
        try:
            turn = os.open("start.lock", _OPENS)
        except FileNotFoundError:
            return self._stop_without_files()
        try:
            fcntl.flock(turn, fcntl.LOCK_EX)
            self._reopen()
            if not _is_free("users.lock"):
                return False
            if not _is_free("server.lock") and not (stops and self._shut_down()):
                return False
            os.close(self._lock)
        finally:
            os.close(turn)
        return True

    def _reopen(self) -> None:
        # Users notice when the lock file was replaced, and share the present one.
        with suppress(FileNotFoundError):
            if not os.path.samestat(os.fstat(self._alive), Path("users-alive.lock").stat()):
                os.dup2(present := os.open("users-alive.lock", _OPENS), self._alive, inheritable=False)
                os.close(present)

    def _shut_down(self) -> bool:
        from jobrunner.broker.embedded.control import ServerControl
        from jobrunner.broker.embedded.files import ServerFiles
        from jobrunner.errors import EmbeddedServerError

        control = ServerControl(ServerFiles(folder=self._present_folder()), "everysec")
        with suppress(EmbeddedServerError, OSError):  # the disk is full, or the server hangs: the guard tries again
            return control.end_without_socket() or control.shut_down()
        return False

    def _present_folder(self) -> Path:
        """The path of the folder, on which the socket's path depends; a path below /proc/self when it was moved."""
        with suppress(FileNotFoundError):
            if os.path.samestat(self._folder.stat(), Path().stat()):
                return self._folder
        return Path("/proc/self/cwd")

    def _stop_without_files(self) -> bool:
        """Ends the server of a deleted folder by SIGTERM, as there is no socket to send a command to. Linux only."""
        at = os.fstat(self._server)
        for process in Path("/proc").glob("[0-9]*"):
            if process.name != str(os.getpid()) and _has_open(process, at):
                with suppress(OSError):
                    os.kill(int(process.name), signal.SIGTERM)
        return True


def _wait_until_free(descriptor: int) -> None:
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_free(name: str) -> bool:
    """Whether no process holds the lock; also when its file is missing. The caller holds start.lock."""
    try:
        descriptor = os.open(name, _OPENS)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _has_open(process: Path, at: os.stat_result) -> bool:
    with suppress(OSError):
        for one in (process / "fd").iterdir():
            with suppress(OSError):
                if os.path.samestat(one.stat(), at):
                    return True
    return False
