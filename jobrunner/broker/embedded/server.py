"""A private server per folder: nothing to install, nothing to configure, nothing left behind.

What must always hold: at most one server per folder; it runs while any process uses it; what it has on disk
is never removed. The folder's locks (see `embedded_locks`) say who is there; the pid file is for people.
"""

import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jobrunner.broker.embedded.files import OWN_REDIS, ServerFiles, disk_errors_explained
from jobrunner.broker.embedded.locks import Share, count_shares, is_held_by, is_locked, tries, try_lock, turn, unlock
from jobrunner.broker.embedded.process import Fsync, ask, cause_of_death, launch
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import EmbeddedServerError

SILENCE_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
LOADING_POLL_S: Final = 0.05


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

    1. Starts the server when nobody has, adopts it when somebody did, even when that somebody is dead.
    2. Counts this process as a user from `acquire` to `release`, or to its death.
    3. Stops the server when the last user leaves. The append-only file stays.
    4. Brings the server back when it was killed (`ensure`).
    5. Keeps `fsync="always"` for as long as one user asked for it, whoever starts the server.
    6. In a forked child: leaves the parent's use alone; `ensure` makes the child a user of its own.

    Safe to call from several threads. Every method raises EmbeddedServerError.
    """

    def __init__(self, folder: Path, *, fsync: Fsync = "everysec") -> None:
        _check_link(folder)
        self._files = ServerFiles(folder=folder.resolve())
        self._name = f"the embedded server in {self._files.folder}"
        self._fsync: Fsync = fsync
        self._wanted: bool | None = None  # None before the first use, False after release
        self._folder_fd: int | None = None
        self._users = Share(self._files.users_lock)
        self._always = Share(self._files.always_lock)

    def acquire(self) -> Path:
        """Counts this process as a user; returns the path of the unix socket once the server has its data."""
        self._wanted = True
        return self.ensure()

    def ensure(self) -> Path:
        """Returns the path of the unix socket of a server that answers, restarted if it was gone.

        Waits while the server loads its file. The first use is an `acquire`; after `release`, an error.
        """
        if self._users.counts and self._ping() == "+PONG":
            return self._files.socket
        if self._wanted is None:
            self._wanted = True
        with disk_errors_explained(self._files.folder):
            self._files.create()
            self._bring_up()
        return self._files.socket

    def release(self) -> None:
        """Ends this process's use; the last one out stops the server. A second call does nothing."""
        if self._wanted:
            self._wanted = False
            with disk_errors_explained(self._files.folder), self._followed():
                self._part()

    def status(self) -> EmbeddedStatus:
        """Reads who is there; starts, makes and changes nothing."""
        with disk_errors_explained(self._files.folder):
            self._check_own()
            pid = self._pid()
            running = pid is not None or is_locked(self._files.server_lock)
            return EmbeddedStatus(
                running=running,
                pid=self._pid_on_file() if running and pid is None else pid,
                socket=self._files.socket,
                folder=self._files.folder,
                users=count_shares(self._files.users_lock, start_lock=self._files.start_lock),
                log=self._files.log,
            )

    def stop(self) -> bool:
        """Stops the server whoever uses it; False when none runs. A user's next `ensure` starts it again."""
        with disk_errors_explained(self._files.folder):
            if not self._files.folder.is_dir():
                return False
            self._check_own()
            with turn(self._files.start_lock):
                return self._shut_down()

    def _check_own(self) -> None:
        if self._files.folder.is_dir():
            self._files.check_own()

    @contextmanager
    def _followed(self) -> Iterator[None]:
        """Finds the folder where it is now: in a folder that all may write, another user can move it away.

        Its server would be left behind, with nobody to stop it.
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
        self._files = files
        self._users.moved_to(files.users_lock)
        self._always.moved_to(files.always_lock)

    def _bring_up(self) -> None:
        newcomer = False
        try:
            with turn(self._files.start_lock):
                newcomer = self._enter()
                log_size = self._rouse()
            self._wait_until_loaded(log_size)
            self._keep_promise()
        except BaseException:
            if newcomer:
                with suppress(EmbeddedServerError, OSError):  # the first error is the one to tell
                    self._part()
            raise

    def _enter(self) -> bool:
        if not self._wanted:
            raise EmbeddedServerError(f"{self._name} was released by this process: acquire() it again")
        newcomer = not self._users.counts
        self._users.enter()
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
                    if self._leave() and not self._ended_without_socket():
                        self._shut_down()
        finally:
            self._leave()

    def _leave(self) -> bool:
        self._always.leave()
        return self._users.leave()

    def _rouse(self) -> int:
        """Returns when a server answers whatever; the size of its log before. The caller holds start.lock."""
        log_size = self._files.log.stat().st_size if self._files.log.exists() else 0
        launched = False
        for _ in tries(SILENCE_TIMEOUT_S):
            if self._ping():
                return log_size
            lock = try_lock(self._files.server_lock)
            if lock is None:
                continue
            try:
                if launched:
                    raise cause_of_death(self._files, log_size)
                launch(self._files, fsync=self._fsync_for_all(), lock=lock)
                launched = True
            finally:
                os.close(lock)  # not unlocked: the server has inherited it
        raise self._silence()

    def _wait_until_loaded(self, log_size: int) -> None:
        """Waits as long as the server says LOADING, and 10 s where it says nothing."""
        heard_at = monotonic()
        while True:
            reply = self._ping()
            if reply and not reply.startswith("-LOADING"):
                return self._refuse_full_disk(reply)
            if reply:
                heard_at = monotonic()
            elif not is_locked(self._files.server_lock):
                raise cause_of_death(self._files, log_size)
            elif monotonic() > heard_at + SILENCE_TIMEOUT_S:
                raise self._silence()
            sleep(LOADING_POLL_S)

    def _ended_without_socket(self) -> bool:
        """Ends a server whose socket is gone, so that nobody could ask it to end; False when it has its socket."""
        pid = self._pid_on_file()
        if self._files.socket.exists() or pid is None or not is_held_by(self._files.server_lock, pid):
            return False
        os.kill(pid, signal.SIGTERM)  # it syncs its file, as when it is asked
        for _ in tries(STOP_TIMEOUT_S):
            if not is_locked(self._files.server_lock):
                self._files.remove_socket_folder()
                return True
        raise self._silence()

    def _shut_down(self) -> bool:
        """False when no server runs. The caller holds start.lock."""
        reply = self._ping()
        if not reply:
            if is_locked(self._files.server_lock):
                raise self._silence()
            return False
        self._refuse_full_disk(reply)  # to stop now would lose what the server holds only in memory
        # No RDB file; the append-only file is synced all the same. A server that stops does not answer.
        refusal = ask(self._files.socket, "SHUTDOWN NOSAVE")
        if refusal:
            raise EmbeddedServerError(f"{self._name} does not stop: {refusal[1:]}; see {self._files.log}")
        for _ in tries(STOP_TIMEOUT_S):
            if not is_locked(self._files.server_lock):
                self._files.remove_socket_folder()
                return True
        raise self._silence()

    def _keep_promise(self) -> None:
        if self._fsync == "everysec":
            return
        # A server that was adopted may have been started by somebody content with everysec.
        reply = ask(self._files.socket, "CONFIG SET appendfsync always")
        if reply != "+OK":
            raise EmbeddedServerError(f"{self._name} does not take appendfsync always: {reply}; try again")

    def _fsync_for_all(self) -> Fsync:
        # Users who were promised "always" hold a share. The caller holds start.lock, so none comes meanwhile.
        probe = try_lock(self._files.always_lock)
        if probe is None:
            return "always"
        unlock(probe)
        return self._fsync

    def _ping(self) -> str | None:
        return ask(self._files.socket, "PING")

    def _pid(self) -> int | None:
        info = ask(self._files.socket, "INFO server") or ""
        return next((int(line[11:]) for line in info.splitlines() if line.startswith("process_id:")), None)

    def _pid_on_file(self) -> int | None:
        with suppress(OSError, ValueError):
            return int(self._files.pid_file.read_text())
        return None

    def _refuse_full_disk(self, reply: str) -> None:
        if reply.startswith("-MISCONF"):
            raise EmbeddedServerError(
                f"{self._name} takes no writes: {reply[1:]}; free some disk space, it goes on by itself, or {OWN_REDIS}"
            )

    def _silence(self) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"{self._name} runs (pid {self._pid_on_file() or 'unknown'}), but does not answer on "
            f"{self._files.socket}: see {self._files.log}, end that process, or {OWN_REDIS}"
        )
