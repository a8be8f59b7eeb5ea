"""The worker processes of a supervisor: each process, the place it has, and how places are renewed one by one.

At SIGHUP all processes are replaced, and those that are due for recycling when they report it.
"""

import math
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger

TERMINATED = (-signal.SIGTERM, 128 + signal.SIGTERM)
"""Exit codes of a process that SIGTERM ended before it listened for that: while Python started, and later."""
ENDED = "ended"
"""The last known state of a process."""
_ASK_TWICE = 2
_LAST_WORDS_S = 0.5
_READY_S = 120.0
_log = SafeLogger("jobrunner.supervisor")


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


class RollingRestart:
    """Replaces worker processes, never two at a time. Its duties:

    1. starts the successor, and waits until it works;
    2. asks the predecessor to stop, and waits for its end; one that does not end within `leave_s` is killed;
    3. a successor that cannot be started, does not come up within 120 s, or ends before, is not put in: the predecessor
       works on, and a roll is stopped there;
    4. a roll that is asked for while one is on comes after it, once.

    So there are always as many that work as there should be, and at most one more. The supervisor calls `step` after
    each event.
    """

    def __init__(
        self, slots: Sequence[WorkerSlot], launch: Callable[[WorkerSlot], WorkerProcess | None], leave_s: float
    ) -> None:
        self._slots = slots
        self._launch = launch
        self._leave_s = leave_s
        self._queue: deque[WorkerSlot] = deque()
        self._at_hand: WorkerSlot | None = None
        self._deadline = math.inf
        self._rolling = self._again = False

    @property
    def deadline(self) -> float:
        """When `step` is to be called although nothing happens."""
        return self._deadline

    def roll(self) -> None:
        """Replaces all that run; those that wait for their next start have that now."""
        if self._rolling:
            _log.info("a roll is on; another one follows")
            self._again = True
            return
        self._rolling = True
        for slot in self._slots:
            if slot.start_at is not None:
                slot.start_at, slot.crashes = 0.0, 0
            elif not slot.over and slot not in self._queue:
                self._queue.append(slot)  # also the one at hand: its successor may have read the code before the change
        _log.info("roll begins", processes=len(self._queue))

    def add(self, slot: WorkerSlot) -> None:
        """Replaces this one, when its turn comes, unless that is on its way."""
        if slot not in self._queue and slot is not self._at_hand:
            self._queue.append(slot)

    def step(self) -> None:
        """Does what there is to do now."""
        slot = self._at_hand
        if slot is not None and monotonic() >= self._deadline:
            self._deadline = math.inf
            late = slot.successor or slot.predecessor
            assert late is not None
            why = "did not come up" if slot.successor else "did not stop"
            _log.error(f"worker is killed, as it {why}", pid=late.pid)
            late.kill()
        while self._at_hand is None and (self._queue or self._rolling):
            self._next()

    def successor_ready(self, slot: WorkerSlot) -> None:
        """Has the old process of the slot stop, now that its successor takes tasks."""
        slot.succeed()
        assert slot.predecessor is not None
        slot.predecessor.ask()
        self._deadline = monotonic() + self._leave_s

    def predecessor_ended(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        """The old process of a slot has ended; its successor works."""
        if not process.ended_well:
            _log.warning("worker crashed while it left", process=slot.number, how=told(process.code))
        self._done(slot)

    def failed(self, slot: WorkerSlot, process: WorkerProcess) -> None:
        """The successor of a slot ended before it took tasks; the old process works on."""
        if not process.asked:
            how = told(process.code)
            _log.error("new worker did not come up; the old one works on", process=slot.number, how=how)
            self._stop_roll()
        self._done(slot)

    def promote_successor(self, slot: WorkerSlot) -> None:
        """The old process of a slot ended before its successor was ready: the successor takes the slot as it is."""
        slot.succeed()
        self._done(slot)

    def cancel(self) -> None:
        """Replaces no more processes, and asks a successor that is not ready yet to stop."""
        self._queue.clear()
        self._rolling = self._again = False
        for slot in self._slots:
            if slot.successor is not None:
                slot.successor.ask()
        self._at_hand, self._deadline = None, math.inf

    def _next(self) -> None:
        if not self._queue:
            self._end_roll()
            return
        slot = self._queue.popleft()
        if slot.process is None or slot.successor is not None or slot.predecessor is not None:
            return  # it crashed meanwhile, and what is started in its place is new
        _log.info("worker is replaced", process=slot.number, pid=slot.process.pid)
        slot.successor = self._launch(slot)
        if slot.successor is None:
            self._stop_roll()
        else:
            self._at_hand, self._deadline = slot, monotonic() + _READY_S

    def _done(self, slot: WorkerSlot) -> None:
        if slot is self._at_hand:
            self._at_hand, self._deadline = None, math.inf

    def _end_roll(self) -> None:
        self._rolling = False
        _log.info("roll is complete")
        self._begin_again()

    def _stop_roll(self) -> None:
        if self._rolling:
            _log.error("roll is stopped", left=len(self._queue) + 1)
            self._rolling = False
            self._queue.clear()
            self._begin_again()

    def _begin_again(self) -> None:
        if self._again:
            self._again = False
            self.roll()


def told(code: int) -> str:
    """How a process ended, in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
