"""A worker process as its supervisor sees it, and the place it has."""

import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from jobrunner.clock import monotonic

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
    """

    def __init__(self, command: Sequence[str], name: str, hear: Callable[["WorkerProcess", str], object]) -> None:
        self._hear = hear
        self._lifeline, theirs = socket.socketpair()
        with theirs:
            words = [*command, "--lifeline", str(theirs.fileno())]
            self._process = subprocess.Popen(words, pass_fds=[theirs.fileno()], process_group=0)  # noqa: S603 - ours
        self.began = monotonic()
        self.took = False
        """Whether it came as far as taking tasks."""
        self.works = False
        """Whether it said that it is ready."""
        self.asked = 0
        """How often it was asked to stop."""
        self._is_killed = False
        self._listening, waiting = (
            threading.Thread(target=act, name=f"jobrunner-{name}", daemon=True) for act in (self._listen, self._wait)
        )
        self._listening.start()
        waiting.start()

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
        """Whether it did, or was asked to stop before it listened for that: it had begun nothing."""
        return self.code == 0 or (self.asked > 0 and self.code == -signal.SIGTERM)

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
        self._lifeline.shutdown(socket.SHUT_RDWR)  # wakes who listens, even if something it forked holds the other end
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
    """The place of one worker process. While it is replaced there are two."""

    number: int
    command: Sequence[str]
    process: WorkerProcess | None = None
    heir: WorkerProcess | None = None
    """Started to take the place; it does not work yet."""
    leaver: WorkerProcess | None = None
    """Had the place before, and finishes what it runs."""
    start_at: float | None = 0.0
    """When a process is to be started; None: not."""
    over: bool = False
    """Whether the process exited with 0 by itself: its work was done, or it was asked to stop."""
    has_worked: bool = False
    """Whether any process of it came as far as taking tasks."""
    crashes: int = 0
    """In a row, each soon after the start."""
    failed_starts: int = 0
    """The last of them, that came before any task was taken."""

    def __iter__(self) -> Iterator[WorkerProcess]:
        return (one for one in (self.process, self.heir, self.leaver) if one is not None)

    @property
    def works(self) -> bool:
        """Whether its process works."""
        return self.process is not None and self.process.works

    def succeed(self) -> None:
        """The heir takes the place."""
        assert self.heir is not None
        self.process, self.heir, self.leaver = self.heir, None, self.process
        self.crashes = self.failed_starts = 0

    def forget(self, process: WorkerProcess) -> None:
        """A process of it is no more."""
        for role in ("process", "heir", "leaver"):
            if getattr(self, role) is process:
                setattr(self, role, None)


def told(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
