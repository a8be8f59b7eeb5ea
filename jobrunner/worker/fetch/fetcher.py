"""The fetch loop: reports what ended and reserves what comes next, both in one round trip."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import NO_ANSWER, JobrunnerError, OutcomeUnknown
from jobrunner.loop import Complaints, Loop
from jobrunner.worker.fetch.intake import Intake, TaskParts
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.reporting import Reporting
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers
from jobrunner.worker.fetch.turn import FetchTurn, LostReplies, Reserves
from jobrunner.worker.fetch.wakeups import Wakeups
from jobrunner.worker.shards import ServedShards

_NO_KEEPER_PAUSE_S = 0.05
_LONG_S = 3600.0
_NOTIFY_BUSY = 256
_POLL_ALL_S = 0.2


class Fetcher:
    """One turn is a row of steps over one record (`FetchTurn`): wake-ups and what they brought, finished attempts, the
    exchange with the server, its replies, the pause to the next turn.

    Invariants: see `Wakeups`, `Reporting` and `Intake`; besides, nothing is reserved that would wait here for long, and
    a turn that begins while the worker rests or after its end reserves nothing, begins nothing and sets `quiet`.
    """

    def __init__(
        self, parts: TaskParts, complaints: Complaints | None = None, *, max_tasks: int = 0, isolates: bool = True
    ) -> None:
        self._parts = parts
        self._rotation = parts.rotation
        self._capped = parts.rotation if isinstance(parts.rotation, CappedRotation) else None
        self._prefetch = parts.prefetch
        self._executor = parts.executor
        self.reporting = Reporting(parts)
        self._intake = Intake(parts, self.reporting.backpressure, isolates=isolates)
        self._quarantine = self._intake.quarantine
        self._lost = LostReplies(parts.broker, parts.keys)
        numbers = LeaseNumbers(parts.worker_id, parts.leases.took)
        self._reserves = Reserves(parts, self._intake, numbers, self._lost, self._may_reserve)
        self.wakeups = Wakeups(parts, self._intake, self.reporting, numbers, self._wanted)
        self._max_tasks = max_tasks
        if parts.shards is not None:
            parts.shards.on_change = self.fetch_now
        self._listened_at = 0.0
        self.reserving = True
        """Off for good when the worker stops."""
        self.resting = False
        """True while a `quiet` command is in force, or a gate is closed."""
        self.quiet = False
        """Whether the last turn began with either of them in the way of reserving."""
        self.refusal: JobrunnerError | None = None
        """The last error with which the server refused a call of the last turn."""
        self.loop = Loop("fetch", self.step, complaints, is_well=self._is_well)
        """Repeats `step`; a finished task or a hint wakes it."""
        parts.finished.wake = self.loop.wake
        parts.notifier.on_wake = self._on_wake

    @property
    def in_hand(self) -> int:
        """Attempts reserved and not yet reported, and ends that were not yet passed on to their flows."""
        return self._prefetch.in_hand + self._reserves.unread_tasks + len(self.wakeups) + len(self.reporting)

    @property
    def finished_total(self) -> int:
        """Attempts that ended here, without those that were handed back."""
        return self.reporting.finished_total

    def fetch_now(self) -> None:
        """Polls all queues at once."""
        self._rotation.wake_all()
        self.loop.wake()

    def _on_wake(self, queues: Sequence[str] | None, brought: list[Any]) -> None:
        """Called by the thread of the notifier, which does the turn itself: the fetch thread would have to be woken for
        it, and the slot after that."""
        if queues is None:
            for lost in self.wakeups.take_planned():
                self._lost.note(lost)
            self.fetch_now()
        else:
            self.wakeups.woken(queues, brought)
            self.loop.turn_here()

    def step(self) -> float:
        """One turn; returns the seconds to the next, which a wake-up or a finished task cuts short. Raises when the
        server answers nothing, or every call with an error. An error beside answers is only logged: no queue waits
        because a key of another is damaged."""
        turn = FetchTurn(self._may_reserve())
        if self._parts.shards is not None and self._parts.shards.has_changed:
            self._serve_more(self._parts.shards)
        if not turn.may_reserve:
            self._reserves.take_unread(turn)
            self._intake.give_back_unbegun()
        self.wakeups.take()
        if not self.reporting.collect():
            self._intake.give_back_stuck()
        if self._quarantine.is_on:
            self._intake.isolate(self.reporting.ended)
        turn.reports = self.reporting.calls()
        if turn.may_reserve:
            self._plan(turn)
        self._exchange(turn)
        if turn.replies:
            self._reserves.take_replies(turn, turn.replies[len(turn.reports) :])
            turn.refused = self.reporting.take_replies(turn.reports, turn.replies) or turn.refused
        self._lost.hand_back()
        self.quiet = not turn.may_reserve
        pause_s = self._pause()
        if turn.refused is not None or pause_s > 0 or not turn.may_reserve:
            self._catch_up(turn)
        self.reporting.after_report.pass_on()
        self.refusal = turn.refused
        if turn.refused is not None:
            if turn.is_refused_whole:
                raise turn.refused
            self.loop.complain(turn.refused)
        return pause_s

    def _serve_more(self, shards: ServedShards) -> None:
        shards.has_changed = False
        weights = shards.weights
        self._rotation.serve(weights)
        self._parts.leases.serve(self._rotation.queues)
        self._parts.notifier.listen_to(weights)

    def _plan(self, turn: FetchTurn) -> None:
        wanted, now = self._wanted(), monotonic()
        if not wanted:
            return
        if self._parts.notifier.is_armed:
            self._listened_at = now
        elif now - self._listened_at >= _POLL_ALL_S:  # the notifier does not listen while every slot is taken
            self._listened_at = now
            self._rotation.wake_all()
        turn.plan = self._rotation.plan(wanted)

    def _exchange(self, turn: FetchTurn) -> None:
        """The round trip of a turn: its reports, reserves and probes. Nothing is sent when there are none."""
        calls = [report.call for report in turn.reports] + self._reserves.calls(turn)
        try:
            if calls:
                self._parts.broker.connect()
                turn.asked_at, began = monotonic(), perf_counter()
                turn.replies = self._parts.broker.run_each(calls, meanwhile=partial(self._catch_up, turn))
                self._parts.stats.round_trip(perf_counter() - began)
        except NO_ANSWER as error:
            if self._parts.broker.endpoint.cluster is not None:  # the node of these queues is away, and maybe no other
                turn.replies = [error] * len(calls)
                return
            if not isinstance(error, OutcomeUnknown):
                raise
            for report in turn.reports:
                self.reporting.lost_answer(report)
            self._reserves.lose(turn)
            raise
        finally:
            self._reserves.take_unread(turn)

    def _catch_up(self, turn: FetchTurn) -> None:
        """Takes in what the exchange before brought. A busy worker does this while the server handles the next one."""
        self._reserves.take_unread(turn)
        self.reporting.after_report.note()

    def _is_well(self) -> bool:
        """Whether every queue takes reports, and answers that it asks for tasks. Those that do not, as on a node of a
        cluster that is away, rest for some turns, which have no error then."""
        return not (self._rotation.has_refused and self.wants_tasks) and not self.reporting.has_refused

    @property
    def wants_tasks(self) -> bool:
        """Whether it takes tasks when there are any: not while it rests or every slot has its task."""
        return self._wanted() > 0

    def _may_reserve(self) -> bool:
        return self.reserving and not self.resting

    def _wanted(self) -> int:
        """How many to reserve now."""
        if not self._may_reserve() or self._quarantine.is_on or self._intake.lacks_keeper:
            return 0
        coming = self._reserves.unread_tasks
        wanted = self._prefetch.wanted(self._executor.backlog, coming)
        if self._max_tasks:
            wanted = min(wanted, self._max_tasks - self.finished_total - self._prefetch.in_hand - coming)
        return max(wanted, 0)

    def _pause(self) -> float:
        if self.reporting.pending:
            return 0.0
        pause_s = self._pause_for_work_s()
        if self._quarantine.is_on:
            pause_s = min(pause_s, self._quarantine.pause_s(self._prefetch.in_hand))
        if self._capped is not None:
            pause_s = min(pause_s, self._capped.until_hint())
        return self._lost.until_next(self.reporting.pause_s(pause_s))

    def _pause_for_work_s(self) -> float:
        backlog, finished = self._executor.backlog, self._parts.finished
        wanted = self._wanted()
        if backlog:
            finished.notify_at = self._prefetch.ends_together(backlog, _NOTIFY_BUSY)
            if wanted and self._rotation.until_next() == 0.0:
                return 0.0
            self._executor.nudge()
            if self._prefetch.has_free_slots and wanted and self._rotation.queues:
                self.wakeups.listen()  # what comes now can begin at once
            return self._prefetch.pause_s
        finished.notify_at = 1
        if len(finished):
            return 0.0
        if not wanted:
            return _NO_KEEPER_PAUSE_S if self._intake.lacks_keeper else _LONG_S
        pause_s = self._rotation.until_next()
        if pause_s > 0 and self._rotation.queues:
            self.wakeups.listen()
        return pause_s
