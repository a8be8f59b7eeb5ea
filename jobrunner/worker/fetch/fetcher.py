"""The fetch loop: reports what ended and reserves what comes next, both in one round trip."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import probe, wake
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import JobrunnerError
from jobrunner.lease_number import LeaseNumbers
from jobrunner.worker.fetch.intake import Intake
from jobrunner.worker.fetch.notifier import ReserveAhead
from jobrunner.worker.fetch.reporting import AttemptEvents, Reporting
from jobrunner.worker.fetch.turn import FetchParts, FetchTurn
from jobrunner.worker.report.reported_outcome import UnknownJobs

_NO_KEEPER_PAUSE_S = 0.05
_LONG_S = 3600.0
_NOTIFY_BUSY = 256
_DEAF_S = 0.2


class Fetcher:
    """One turn is a row of steps over one record (turn.py): wake-ups and what they brought, finished attempts, the
    exchange with the server, its replies, the pause to the next turn.

    Invariants: see `Reporting` and `Intake`; besides, nothing is reserved that would wait here for long, and a turn
    that begins while the worker rests or after its end reserves nothing, begins nothing and sets `quiet`.
    """

    def __init__(
        self, parts: FetchParts, events: AttemptEvents, unknown: UnknownJobs, *, max_tasks: int = 0,
        isolates: bool = True,
    ) -> None:  # fmt: skip
        self._parts = parts
        self._rotation = parts.rotation
        self._prefetch = parts.prefetch
        self._executor = parts.executor
        self._reporting = Reporting(parts, events, unknown)
        self._intake = Intake(parts, self._reporting.backpressure, isolates=isolates)
        self._quarantine = self._intake.quarantine
        self._numbers = LeaseNumbers(parts.worker_id, parts.keeper.took)
        self._ahead = ReserveAhead(parts.keys, self._numbers)
        self._max_tasks = max_tasks
        self._woken: set[str] = set()
        self._heard_at = 0.0
        self.reserving = True
        """Off for good when the worker stops."""
        self.resting = False
        """True while a `quiet` command is in force."""
        self.quiet = False
        """Whether the last turn began with either of them in the way of reserving."""

    @property
    def in_hand(self) -> int:
        """Attempts reserved and not yet reported, and ends that were not yet passed on to their flows."""
        return self._prefetch.in_hand + len(self._ahead) + len(self._reporting)

    @property
    def finished_total(self) -> int:
        """Attempts that ended here, without those that were handed back."""
        return self._reporting.finished_total

    @property
    def unreported(self) -> set[str]:
        """Tokens of attempts that ended and are not yet reported, but for those that wait for capacity."""
        return self._reporting.tokens

    def woken(self, queue: str, brought: Sequence[Reservation | JobrunnerError]) -> None:
        """Called by the thread of the notifier: the queue of a hint, and the replies to the calls it was armed with."""
        if queue not in self._ahead.heard(brought) and queue:
            self._woken.add(queue)

    def step(self) -> float:
        """One turn; returns the seconds to the next, which a wake-up or a finished task cuts short. Raises what the
        server refused, after everything else was taken in."""
        turn = FetchTurn(self._may_reserve)
        if not turn.may_reserve:
            self._intake.give_back_unbegun()
            self._reporting.release_waiting()
        self._take_wakeups()
        self._take_brought()
        self._collect()
        turn.reports = self._reporting.calls()
        if turn.may_reserve:
            self._plan(turn)
        self._exchange(turn)
        self._take_replies(turn)
        self.quiet = not turn.may_reserve
        pause_s = self._pause()
        if turn.refused is not None or pause_s > 0 or not turn.may_reserve:
            self._reporting.note()
        self._reporting.pass_on()
        if turn.refused is not None:
            raise turn.refused
        return pause_s

    def _take_wakeups(self) -> None:
        while self._woken:
            queue = self._woken.pop()
            if self._wanted(self._executor.backlog):
                self._rotation.wake(queue)
            else:
                self._parts.broker.run(wake(self._parts.keys.queue(queue)))

    def _take_brought(self) -> None:
        """Takes in the tasks that came with a hint. Tasks that this worker cannot use any more go back in line."""
        while self._ahead:
            queue, count, brought = self._ahead.first()
            asked_at = monotonic() - self._parts.stats.age_ms(brought.now_ms) / 1000
            is_wanted = self._wanted(self._executor.backlog) >= len(brought.attempts)
            if len(brought.attempts) == count:
                self._rotation.wake(queue)
            attempts = self._intake.hold(queue, count, brought, asked_at)
            if attempts and is_wanted and self._may_reserve:
                self._intake.begin(queue, attempts)
            else:
                self._intake.give_back(attempts)
            self._ahead.done()

    def _collect(self) -> None:
        """Takes in what ended. When nothing did for long, others get what waits here behind long tasks."""
        if not self._reporting.collect() and self._prefetch.is_stuck(self._executor.backlog):
            self._prefetch.forget_rate()
            self._intake.give_back_backlog()
        if self._quarantine.is_on:
            self._intake.isolate([attempt for attempt, _ in self._reporting.pending])

    def _plan(self, turn: FetchTurn) -> None:
        wanted, now = self._wanted(self._executor.backlog), monotonic()
        if not wanted:
            return
        if self._parts.notifier.is_armed:
            self._heard_at = now
        elif now - self._heard_at >= _DEAF_S:  # no hint is heard while every slot is taken, so all queues are polled
            self._heard_at = now
            self._rotation.wake_all()
        turn.plan = self._rotation.plan(wanted)

    def _exchange(self, turn: FetchTurn) -> None:
        """The round trip of a turn: its reports, reserves and probes. Nothing is sent when there are none."""
        keys = self._parts.keys
        calls: list[Call[Any]] = [report.call for report in turn.reports]
        for queue, share in turn.plan.shares.items():
            first = self._numbers.first_of(share)
            calls.append(leases.reserve(keys.queue(queue), share, token=first, most_bytes=leases.REPLY_BYTES))
        calls += [probe(keys.queue(queue)) for queue in turn.plan.probed]
        if not calls:
            return
        self._parts.broker.connect()
        turn.asked_at, began = monotonic(), perf_counter()
        turn.replies = self._parts.broker.run_each(calls, meanwhile=self._reporting.note)
        self._parts.stats.round_trip(perf_counter() - began)

    def _take_replies(self, turn: FetchTurn) -> None:
        if not turn.replies:
            return
        found = iter(turn.replies[len(turn.reports) :])
        for queue, share in turn.plan.shares.items():
            reply = next(found)
            if isinstance(reply, JobrunnerError):
                self._rotation.refused(queue)
                turn.refused = reply
                continue
            attempts = self._intake.hold(queue, share, reply, turn.asked_at)
            if attempts and self._may_reserve:
                self._intake.begin(queue, attempts)
            else:
                self._intake.give_back(attempts)
        for queue in turn.plan.probed:
            turn.refused = self._intake.take_probe(queue, next(found)) or turn.refused
        self._reporting.take_replies(turn)

    @property
    def _may_reserve(self) -> bool:
        return self.reserving and not self.resting

    def _wanted(self, backlog: int) -> int:
        """How many to reserve now."""
        if not self._may_reserve or self._quarantine.is_on or self._intake.lacks_keeper:
            return 0
        wanted = self._prefetch.wanted(backlog)
        if self._max_tasks:
            wanted = min(wanted, self._max_tasks - self.finished_total - self._prefetch.in_hand)
        return max(wanted, 0)

    def _listen(self) -> None:
        """Lets the notifier block on the server, with calls behind the wait that reserve the first tasks."""
        if self._parts.notifier.is_armed:
            return
        may_bring = self._parts.notifier.can_bring and not self._reporting.backpressure.is_on
        queues = self._rotation.open if may_bring else []
        self._parts.notifier.arm(partial(self._ahead.plan, queues, self._wanted(self._executor.backlog)))

    def _pause(self) -> float:
        if self._reporting.pending:
            return 0.0
        pause_s = self._pause_for_work_s()
        if self._quarantine.is_on:
            pause_s = min(pause_s, self._quarantine.pause_s(self._prefetch.in_hand))
        return self._reporting.pause_s(pause_s)

    def _pause_for_work_s(self) -> float:
        backlog, finished = self._executor.backlog, self._parts.finished
        wanted = self._wanted(backlog)
        if backlog:
            finished.notify_at = self._prefetch.ends_together(backlog, _NOTIFY_BUSY)
            if wanted and self._rotation.until_next() == 0.0:
                return 0.0
            self._executor.nudge()
            if self._prefetch.has_free_slots and wanted and self._rotation.queues:
                self._listen()  # what comes now can begin at once
            return self._prefetch.pause_s
        finished.notify_at = 1
        if len(finished):
            return 0.0
        if not wanted:
            return _NO_KEEPER_PAUSE_S if self._intake.lacks_keeper else _LONG_S
        pause_s = self._rotation.until_next()
        if pause_s > 0 and self._rotation.queues:
            self._listen()
        return pause_s
