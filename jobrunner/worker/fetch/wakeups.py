"""Wake-ups of the fetch loop: hints that queues have tasks, and the tasks that came with a hint."""

import random
from collections import deque
from collections.abc import Callable, Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import run_each_or_errors
from jobrunner.broker.call import Call
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import wake
from jobrunner.clock import monotonic, sleep
from jobrunner.errors import JobrunnerError
from jobrunner.worker.fetch.intake import Intake, TaskParts
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.reporting import Reporting
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers
from jobrunner.worker.fetch.turn import SentReserve, reserve

_MOST_AHEAD = 2
"""Two tasks of a queue: the second shows whether the queue has more. A worker that loses its connection strands at most
this many tasks until their leases expire."""
_QUEUES_AHEAD = 4
"""Workers that serve more queues than this poll instead."""
_GIVE_WAY_S = 0.00003
_GIVE_WAY_TIMES = 10


class Wakeups:
    """Lets the notifier block on the server, with reserves pipelined behind the wait, and takes what that brings. Its
    length is the number of replies to such reserves that were not taken in yet.

    `wanted` returns how many tasks the worker would reserve now. The thread of the notifier calls `woken` and
    `take_planned`, and makes the plan that it is armed with; the fetch loop calls all other methods.

    Invariant: the reserves ask for no more tasks than the worker could take when it began to block, and the worker
    hands back tasks that it can no longer take; a task counts as held since the server handed it out. A hint that this
    worker cannot use is passed on.
    """

    def __init__(
        self, parts: TaskParts, intake: Intake, reporting: Reporting, numbers: LeaseNumbers, wanted: Callable[[], int]
    ) -> None:  # fmt: skip
        self._parts = parts
        self._rotation = parts.rotation
        self._capped = parts.rotation if isinstance(parts.rotation, CappedRotation) else None
        self._intake = intake
        self._reporting = reporting
        self._numbers = numbers
        self._wanted = wanted
        self._woken: set[str] = set()
        self._planned: list[SentReserve] = []
        self._planned_at = 0.0
        self._brought: deque[tuple[SentReserve, Reservation, float]] = deque()
        """Replies to reserves, each with the instant at which its wait began (monotonic clock)."""

    def __len__(self) -> int:
        return len(self._brought)

    def listen(self) -> None:
        """Lets the notifier block on the server, with calls behind the wait that reserve the first tasks."""
        if self._parts.notifier.is_armed:
            return
        may_bring = self._parts.notifier.can_bring and not self._reporting.backpressure.is_on
        queues, wanted = self._rotation.open if may_bring else [], self._wanted()
        self._parts.notifier.arm(lambda: self._plan(queues, wanted))

    def _plan(self, queues: Sequence[str], wanted: int) -> list[Call[Reservation]]:
        """Plans reserves from these queues, at most `wanted` tasks in total; none when the queues are too many."""
        count = min(wanted // max(len(queues), 1), _MOST_AHEAD)
        asks = count > 0 and len(queues) <= _QUEUES_AHEAD
        self._planned = [reserve(self._parts.keys, self._numbers, queue, count) for queue in queues] if asks else []
        self._planned_at = monotonic()
        return [planned.call for planned in self._planned]

    def woken(self, queues: Sequence[str], brought: Sequence[Reservation | JobrunnerError]) -> None:
        """Takes the queues of hints, and the replies to the calls that the notifier was armed with. A reply tells more
        than a hint: its queue needs no poll."""
        polled = set()
        for sent, one in zip(self.take_planned(), brought, strict=False):
            if isinstance(one, Reservation):
                self._brought.append((sent, one, self._planned_at))
                polled.add(sent.queue)
        self._woken.update([queue for queue in queues if queue not in polled])

    def take_planned(self) -> list[SentReserve]:
        """Removes and returns the reserves that were planned last and have no reply."""
        planned, self._planned = self._planned, []
        return planned

    def take(self) -> None:
        """Wakes the queues of hints, and takes in the tasks that came with them."""
        if self._capped is not None:
            self._woken.update(self._capped.due_hints())
        if self._woken:
            self._take_hints()
        while self._brought:
            try:
                self._take_in(*self._brought[0])
            finally:
                self._brought.popleft()  # last: until then its tasks are in hand here

    def _take_hints(self) -> None:
        """Wakes the queues of hints: one for each task that this worker wants. Other hints are passed on."""
        woken, passed = [], []
        while self._woken:
            woken.append(self._woken.pop())
        random.shuffle(woken)  # those that are passed on must not be the same each time
        left = self._wanted()
        for queue in woken:
            if self._capped is not None and not self._capped.has_room(queue, 1):
                if self._capped.passes_on(queue):
                    passed.append(queue)
            elif queue in self._reporting.gave_way and self._rotation.is_paused(queue):
                self._reporting.gave_way.discard(queue)
                passed.append(queue)
            elif left > 0:
                self._rotation.wake(queue)
                left -= 1
            else:
                passed.append(queue)
        if passed:
            run_each_or_errors(self._parts.broker, [wake(self._parts.keys.queue(queue)) for queue in passed])

    def _take_in(self, sent: SentReserve, brought: Reservation, listened_at: float) -> None:
        """Takes in tasks that came with a hint. Tasks that this worker cannot use any more go back in line."""
        count = len(brought.attempts)
        asked_at = max(monotonic() - self._parts.stats.age_ms(brought.now_ms) / 1000, listened_at)
        begins = 0 < count <= self._wanted() and (self._capped is None or self._capped.has_room(sent.queue, count))
        if count == sent.wanted:
            self._rotation.wake(sent.queue)
        self._intake.take(sent.queue, sent.wanted, brought, asked_at, begins=begins)
        if begins:
            _give_way_to(brought.attempts[0])


def _give_way_to(attempt: Attempt) -> None:
    """Leaves the interpreter to the thread that was woken for an attempt. That thread is awake before this turn ends,
    and would find the interpreter taken, sleep again, and begin a third of a millisecond later."""
    for _ in range(_GIVE_WAY_TIMES):
        sleep(_GIVE_WAY_S)
        if attempt.began_s:
            return
