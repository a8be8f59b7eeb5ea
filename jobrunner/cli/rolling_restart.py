"""How the worker processes of a supervisor are replaced, one after the other: all at SIGHUP, and those that are due for
recycling when they report it."""

import math
from collections import deque
from collections.abc import Callable, Sequence

from jobrunner.cli.worker_processes import WorkerProcess, WorkerSlot, told
from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger

_READY_S = 120.0
_log = SafeLogger("jobrunner.supervisor")


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
