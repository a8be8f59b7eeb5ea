"""The worker processes of a supervisor: each process, and the slot it has."""

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from jobrunner.clock import monotonic

TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that SIGTERM ended before it listened for that: while Python started, and later."""
ENDED = "ended"
"""The last known state of a process."""
_ASK_TWICE = 2
_LAST_WORDS_S = 0.5


class WorkerProcess:
    """One worker process, from its start. Its life:

    1. it has a process group of its own, so that Ctrl-C reaches the supervisor alone, and one end of a socket, its
       *lifeline*, whose end tells it that the supervisor is no more;
    2. `hear` gets the lines that it writes there, in a thread, and `ended` when it has; then `code` is known;
    3. `close` lets go of what is left.

    Raises OSError or RuntimeError when the system has no memory, process, thread or descriptor left for it.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        hear: Callable[["WorkerProcess", str], object],
        folder: Path | None = None,
    ) -> None:
        self._hear = hear
        self._lifeline, theirs = socket.socketpair()
        words = [*command, "--lifeline", str(theirs.fileno())]
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - ours
                    words, cwd=folder, pass_fds=[theirs.fileno()], process_group=0
                )
        except BaseException:
            self._lifeline.close()
            raise
        self.began = monotonic()
        self.took = False
        """Whether it came as far as taking tasks."""
        self.works = False
        """Whether it said that it is ready."""
        self.is_over = False
        """Whether it said that its run is over, before its exit."""
        self.asked = 0
        """How often it was asked to stop."""
        self._is_killed = False
        self._listening, waiting = (
            threading.Thread(target=act, name=f"jobrunner-{name}", daemon=True) for act in (self._listen, self._wait)
        )
        try:
            self._listening.start()
            waiting.start()
        except BaseException:  # nothing would notice its end
            self._process.kill()
            self._process.wait()
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def code(self) -> int:
        """Its exit code; below 0: the signal that ended it."""
        return cast(int, self._process.returncode)

    @property
    def is_wanted(self) -> bool:
        """Whether it was neither asked to stop nor killed."""
        return not self.asked and not self._is_killed

    @property
    def ended_well(self) -> bool:
        """Whether it did, or was asked to stop before it listened for that: it had begun nothing. An exit code of 0 may
        be that of a task that ended the process, as by `os._exit(0)`."""
        if self.code == 0:
            return self.is_over or not self.took
        return self.asked > 0 and self.code in TERMINATED

    def ask(self, times: int = 1) -> None:
        """Sees to it that it was asked to stop so often: once gracefully, twice at once; the third time kills it."""
        while self.asked < times:
            self.asked += 1
            self._process.send_signal(signal.SIGTERM if self.asked <= _ASK_TWICE else signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL."""
        self._is_killed = True
        self._process.kill()

    def close(self) -> None:
        """To be called when it has ended."""
        with suppress(OSError):  # macOS refuses it when the other end is gone
            self._lifeline.shutdown(socket.SHUT_RDWR)  # wakes who listens, even if something forked holds the other end
        self._lifeline.close()

    def _listen(self) -> None:
        try:
            with self._lifeline.makefile() as lines:
                for line in lines:
                    self._hear(self, line.strip())
        except OSError:
            return

    def _wait(self) -> None:
        self._process.wait()
        self._listening.join(_LAST_WORDS_S)  # no longer: something that it forked may hold its end of the lifeline
        self._hear(self, ENDED)


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A slot for one worker process. While that is replaced the slot has two."""

    number: int
    command: Sequence[str]
    process: WorkerProcess | None = None
    successor: WorkerProcess | None = None
    """Started to replace the process; takes no tasks yet."""
    predecessor: WorkerProcess | None = None
    """The replaced process, which finishes the tasks that it runs."""
    start_at: float | None = 0.0
    """When a process is to be started; None: not."""
    over: bool = False
    """Whether the process ended well by itself: its work was done, or it was asked to stop."""
    has_worked: bool = False
    """Whether any process of the slot has taken tasks."""
    crashes: int = 0
    """In a row, each soon after the start."""
    failed_starts: int = 0
    """The last of them, that came before any task was taken."""

    def __iter__(self) -> Iterator[WorkerProcess]:
        return (one for one in (self.process, self.successor, self.predecessor) if one is not None)

    @property
    def works(self) -> bool:
        """Whether its process works."""
        return self.process is not None and self.process.works

    def succeed(self) -> None:
        """Makes the successor the process of the slot."""
        assert self.successor is not None
        self.process, self.successor, self.predecessor = self.successor, None, self.process
        self.crashes = self.failed_starts = 0

    def forget(self, process: WorkerProcess) -> None:
        """Removes a process that has ended."""
        for role in ("process", "successor", "predecessor"):
            if getattr(self, role) is process:
                setattr(self, role, None)


def told(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
