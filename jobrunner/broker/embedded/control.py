"""Starting, asking and stopping the server of one folder. `EmbeddedServer` decides when, and holds the locks."""

import os
import signal
from contextlib import suppress
from typing import Final

from jobrunner.broker.embedded.files import OWN_REDIS, ServerFiles
from jobrunner.broker.embedded.locks import is_held_by, is_locked, tries, try_lock, unlock
from jobrunner.broker.embedded.process import Fsync, ask, cause_of_death, launch, launch_guard
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import EmbeddedServerError

SILENCE_TIMEOUT_S: Final = 10.0
STOP_TIMEOUT_S: Final = 10.0
DYING_TIMEOUT_S: Final = 0.5
LOADING_POLL_S: Final = 0.05


class ServerControl:
    """The server of one folder. `files` may be replaced when the folder was moved. Raises EmbeddedServerError."""

    def __init__(self, files: ServerFiles, fsync: Fsync) -> None:
        self.files = files
        self.name = f"the embedded server in {files.folder}"
        self._fsync = fsync

    def start(self) -> int:
        """Starts the server, waits for any answer, and returns the earlier size of its log. The caller holds
        start.lock."""
        log_size = self.files.log.stat().st_size if self.files.log.exists() else 0
        launched = False
        for _ in tries(SILENCE_TIMEOUT_S):
            if self.ping():
                return log_size
            lock = try_lock(self.files.server_lock)
            if lock is None:
                continue
            try:
                if launched:
                    raise cause_of_death(self.files, log_size)
                launch(self.files, fsync=self._fsync_for_all(), lock=lock)
                launched = True
            finally:
                os.close(lock)  # not unlocked: the server has inherited it
        raise self._silence()

    def start_guard(self, *, temporary: bool) -> None:
        """Starts the guard (guard.py) unless the folder has one. The caller holds start.lock."""
        lock = try_lock(self.files.guard_lock)
        if lock is not None:
            try:
                launch_guard(self.files, lock=lock, temporary=temporary)
            finally:
                os.close(lock)  # not unlocked: the guard has inherited it

    def wait_until_loaded(self, log_size: int) -> None:
        """Waits as long as the server replies LOADING, and 10 s while it does not reply."""
        heard_at = monotonic()
        while True:
            reply = self.ping()
            if reply and not reply.startswith("-LOADING"):
                return self._refuse_full_disk(reply)
            if reply:
                heard_at = monotonic()
            elif not is_locked(self.files.server_lock):
                raise cause_of_death(self.files, log_size)
            elif monotonic() > heard_at + SILENCE_TIMEOUT_S:
                raise self._silence()
            sleep(LOADING_POLL_S)

    def end_without_socket(self) -> bool:
        """Ends a server whose socket is gone, so that no command could stop it; False when it has its socket."""
        pid = self.pid_on_file()
        if self.files.socket.exists() or pid is None or not is_held_by(self.files.server_lock, pid):
            return False
        os.kill(pid, signal.SIGTERM)  # it syncs its file, as when it is asked
        self._await_end()
        return True

    def shut_down(self) -> bool:
        """Stops the server; False when none runs. The caller holds start.lock."""
        reply = self.ping()
        if not reply:
            # A server that was just killed does not answer, and still holds its lock for a moment.
            if all(is_locked(self.files.server_lock) for _ in tries(DYING_TIMEOUT_S)):
                raise self._silence()
            return False
        self._refuse_full_disk(reply)  # a stop would lose data that the server has only in memory
        # No RDB file; the append-only file is synced all the same. A server that stops does not answer.
        refusal = ask(self.files.socket, "SHUTDOWN NOSAVE")
        if refusal:
            raise EmbeddedServerError(f"{self.name} does not stop: {refusal[1:]}; see {self.files.log}")
        self._await_end()
        return True

    def _await_end(self) -> None:
        for _ in tries(STOP_TIMEOUT_S):
            if not is_locked(self.files.server_lock):
                self.files.remove_socket_folder()
                return
        raise self._silence()

    def apply_fsync(self) -> None:
        """Sets `appendfsync always` on an adopted server, where this process asked for that."""
        if self._fsync == "everysec":
            return
        # The process that started the server may have asked for everysec.
        reply = ask(self.files.socket, "CONFIG SET appendfsync always")
        if reply != "+OK":
            raise EmbeddedServerError(f"{self.name} does not take appendfsync always: {reply}; try again")

    def _fsync_for_all(self) -> Fsync:
        # Processes that asked for "always" hold a share. The caller holds start.lock, so none is added meanwhile.
        probe = try_lock(self.files.always_lock)
        if probe is None:
            return "always"
        unlock(probe)
        return self._fsync

    def ping(self) -> str | None:
        """The server's reply; None when it does not answer."""
        return ask(self.files.socket, "PING")

    def pid(self) -> int | None:
        """The process id from the server's reply; None when it does not answer."""
        info = ask(self.files.socket, "INFO server") or ""
        return next((int(line[11:]) for line in info.splitlines() if line.startswith("process_id:")), None)

    def pid_on_file(self) -> int | None:
        """The process id in the pid file, which a server that was killed leaves behind."""
        with suppress(OSError, ValueError):
            return int(self.files.pid_file.read_text())
        return None

    def _refuse_full_disk(self, reply: str) -> None:
        if reply.startswith("-MISCONF"):
            raise EmbeddedServerError(
                f"{self.name} takes no writes: {reply[1:]}; free some disk space, it goes on by itself, or {OWN_REDIS}"
            )

    def _silence(self) -> EmbeddedServerError:
        return EmbeddedServerError(
            f"{self.name} runs (pid {self.pid_on_file() or 'unknown'}), but does not answer on "
            f"{self.files.socket}: see {self.files.log}, end that process, or {OWN_REDIS}"
        )
