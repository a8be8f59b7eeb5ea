"""A private server per folder: nothing to install, nothing to configure, nothing left behind.

Invariant: at most one server per folder; it runs while any process uses it; its data on disk is never removed. The
folder's locks (locks.py) count its users; the pid file is for people.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from jobrunner.broker.embedded.control import ServerControl
from jobrunner.broker.embedded.files import OWN_REDIS, ServerFiles, disk_errors_explained
from jobrunner.broker.embedded.locks import Share, count_shares, is_locked, turn
from jobrunner.broker.embedded.process import Fsync
from jobrunner.errors import EmbeddedServerError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedStatus:
    """A folder's server at one moment; `users` is None where they cannot be counted cheaply."""

    running: bool
    pid: int | None
    socket: Path
    folder: Path
    users: int | None
    log: Path


def _check_link(folder: Path) -> None:
    """Raises EmbeddedServerError for a link that another user made."""
    with disk_errors_explained(folder), suppress(FileNotFoundError):
        at = folder.lstat()
        if stat.S_ISLNK(at.st_mode) and at.st_uid not in (os.getuid(), 0):
            raise EmbeddedServerError(f"{folder} is a link of another user: name another folder, or {OWN_REDIS}")


class EmbeddedServer:
    """This process's use of the private server of one folder.

    1. Starts the server when none runs, else adopts it, also when its starter is dead.
    2. Counts this process as a user from `acquire` to `release`, or to its death.
    3. Stops the server when the last user leaves. The append-only file stays. When the last users are killed instead,
       a guard process (guard.py) stops it some 5 s later.
    4. Brings the server back when it was killed (`ensure`).
    5. Keeps `fsync="always"` for as long as one user asks for it, whichever process starts the server.
    6. In a forked child: leaves the parent's use alone; `ensure` makes the child a user of its own.

    Safe to call from several threads. Every method raises EmbeddedServerError.
    """

    def __init__(self, folder: Path, *, fsync: Fsync = "everysec", temporary: bool = False) -> None:
        """`temporary`: when this process is killed, the guard stops the server at once and deletes the folder."""
        _check_link(folder)
        self._files = ServerFiles(folder=folder.resolve())
        self._control = ServerControl(self._files, fsync)
        self._fsync: Fsync = fsync
        self._is_temporary = temporary
        self._wanted: bool | None = None  # None before the first use, False after release
        self._folder_fd: int | None = None
        self._users = Share(self._files.users_lock)
        self._alive = Share(self._files.alive_lock)
        self._always = Share(self._files.always_lock)

    def acquire(self) -> Path:
        """Counts this process as a user; returns the path of the unix socket once the server has its data."""
        self._wanted = True
        return self.ensure()

    def ensure(self) -> Path:
        """Returns the path of the unix socket of a server that answers, restarted if it was gone.

        Waits while the server loads its file. The first use is an `acquire`; after `release`, an error.
        """
        if self._users.counts and self._control.ping() == "+PONG":
            return self._files.socket
        if self._wanted is None:
            self._wanted = True
        with disk_errors_explained(self._files.folder):
            self._files.create()
            self._bring_up()
        return self._files.socket

    def release(self) -> None:
        """Ends this process's use; the last user stops the server. A second call does nothing."""
        if self._wanted:
            self._wanted = False
            with disk_errors_explained(self._files.folder), self._followed():
                self._part()

    def status(self) -> EmbeddedStatus:
        """The server's state, read without starting, creating or changing anything."""
        with disk_errors_explained(self._files.folder):
            self._check_own()
            pid = self._control.pid()
            running = pid is not None or is_locked(self._files.server_lock)
            return EmbeddedStatus(
                running=running,
                pid=self._control.pid_on_file() if running and pid is None else pid,
                socket=self._files.socket,
                folder=self._files.folder,
                users=count_shares(self._files.users_lock, start_lock=self._files.start_lock),
                log=self._files.log,
            )

    def stop(self) -> bool:
        """Stops the server even while other processes use it; False when none runs. A user's `ensure` restarts it."""
        with disk_errors_explained(self._files.folder):
            if not self._files.folder.is_dir():
                return False
            self._check_own()
            with turn(self._files.start_lock):
                return self._control.shut_down()

    def _check_own(self) -> None:
        if self._files.folder.is_dir():
            self._files.check_own()

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Follows the folder to its present path: in a parent folder that all may write, another user can move it.

        Without this no process would find the server of a moved folder, and it would run for ever.
        """
        held, self._folder_fd = self._folder_fd, None
        if held is None:
            yield
            return
        was, now = self._files, Path(f"/proc/self/fd/{held}")
        try:
            is_moved = not was.folder.exists() or not os.path.samestat(os.fstat(held), was.folder.stat())
            if is_moved and (now / was.server_lock.name).exists():
                self._at(ServerFiles(folder=now))
            yield
        finally:
            self._at(was)
            os.close(held)

    def _at(self, files: ServerFiles) -> None:
        self._files = self._control.files = files
        self._users.moved_to(files.users_lock)
        self._alive.moved_to(files.alive_lock)
        self._always.moved_to(files.always_lock)

    def _bring_up(self) -> None:
        newcomer = False
        try:
            with turn(self._files.start_lock):
                newcomer = self._enter()
                log_size = self._control.start()
                self._control.start_guard(temporary=self._is_temporary)
            self._control.wait_until_loaded(log_size)
            self._control.apply_fsync()
        except BaseException:
            if newcomer:
                with suppress(EmbeddedServerError, OSError):  # the first error is the one to raise
                    self._part()
            raise

    def _enter(self) -> bool:
        if not self._wanted:
            raise EmbeddedServerError(f"{self._control.name} was released by this process: acquire() it again")
        newcomer = not self._users.counts
        self._users.enter()
        self._alive.enter()
        if newcomer:
            if self._folder_fd is not None:
                os.close(self._folder_fd)
            self._folder_fd = os.open(self._files.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if self._fsync == "always":
            self._always.enter()
        return newcomer

    def _part(self) -> None:
        try:
            if self._files.folder.is_dir():
                with turn(self._files.start_lock):
                    if self._leave() and not self._control.end_without_socket():
                        self._control.shut_down()
        finally:
            self._leave()

    def _leave(self) -> bool:
        self._always.leave()
        is_last = self._users.leave()
        self._alive.leave()
        return is_last
