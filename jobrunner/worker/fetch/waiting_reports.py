"""Reports that the server could not accept yet: moves into full queues, reports to a cluster node that is away, and
those that it answered with an error.

Invariant: such a report is kept, with its lease, until the server has accepted it or the worker ends, also while the
worker is quiet, so its function does not run again; only one that the server refuses for a minute, while it takes
writes, is given up. At its end, when the grace of its stop is over, the worker releases
the items that wait for capacity (`worker/drain.py`).
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from jobrunner.broker.redis_errors import is_demoted, refuses_writes
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, ServerFull
from jobrunner.logs import SafeLogger
from jobrunner.loop import back_off
from jobrunner.outcome import Released
from jobrunner.worker.fetch.reserve_plan import QueueRotation
from jobrunner.worker.report.report_calls import Report, targets_of

_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2
_SHORTEST_AWAY_S = 0.2
_LONGEST_AWAY_S = 3.0
_GIVEN_UP_S = 60.0
_TOGETHER_S = 0.1
"""Refused reports that are due within this time are tried in one turn."""
_MOST_REFUSED = 64
_TOLD_EVERY_S = 60.0
"""A small queue fills and has room again many times a second."""
_log = SafeLogger("jobrunner.fetcher")


@dataclass(slots=True)
class _WaitingMoves:
    """The waiting reports of one queue."""

    reports: list[Report] = field(default_factory=list)
    targets: set[str] = field(default_factory=set)
    tried: int = 0
    pause_s: float = _SHORTEST_PAUSE_S
    due_at: float = 0.0


class Backpressure:
    """Reports of moves into full queues, by the queue of their items. They are tried again after a pause, and as soon
    as this worker itself took items out of the target.

    Invariant: while such a report waits, the worker reserves nothing from the queue of that item, and serves its other
    queues. Moves inside a cycle of queues skip back-pressure (`Moved.waits=False`); otherwise two full queues could
    deadlock.
    """

    def __init__(self, turns: QueueRotation) -> None:
        self._turns = turns
        self._held_up: dict[str, _WaitingMoves] = {}
        self._told_at: dict[str, float] = {}
        self.is_on = False
        """Whether any report waits."""

    def __len__(self) -> int:
        return sum(len(held.reports) for held in list(self._held_up.values()))  # a copy: any thread may ask

    @property
    def held(self) -> dict[str, tuple[int, frozenset[str]]]:
        """The number of waiting reports of each queue, and their targets. Any thread may ask."""
        found = {queue: list(held.reports) for queue, held in list(self._held_up.items())}
        return {
            queue: (len(reports), frozenset[str]().union(*(targets_of(outcome) for _, outcome in reports)))
            for queue, reports in found.items() if reports
        }  # fmt: skip

    def keep(self, report: Report) -> None:
        """Keeps a report that the server refused because the target is full."""
        attempt, outcome = report
        self.is_on = True
        held = self._held_up.get(attempt.queue)
        if held is None:
            held = self._held_up[attempt.queue] = _WaitingMoves(due_at=monotonic() + _SHORTEST_PAUSE_S)
            self._turns.block(attempt.queue)
            self._tell(attempt.queue, sorted(targets_of(outcome)))
        held.reports.append(report)
        held.targets |= targets_of(outcome)

    def _tell(self, queue: str, full: list[str]) -> None:
        now = monotonic()
        if now - self._told_at.get(queue, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
            self._told_at[queue] = now
            _log.info("a queue waits for capacity in others", queue=queue, full=full)

    def take_due(self) -> list[Report]:
        """The reports to be made again in this turn."""
        now = monotonic()
        due: list[Report] = []
        for held in self._held_up.values():
            if held.reports and held.due_at <= now:
                due += held.reports
                held.tried, held.reports, held.targets = len(held.reports), [], set()
        return due

    def made_room(self, queue: str) -> None:
        """Makes reports due whose target queue this worker took items from."""
        for held in self._held_up.values():
            if queue in held.targets:
                held.due_at = 0.0

    def after_turn(self, unsettled: list[Report]) -> None:
        """Handles the result of a retry; resumes queues without waiting or unsettled reports."""
        for queue, held in list(self._held_up.items()):
            if held.tried:
                self._after_try(queue, held, unsettled)
        self.is_on = bool(self._held_up)

    def _after_try(self, queue: str, held: _WaitingMoves, unsettled: list[Report]) -> None:
        if held.reports:
            went_on = len(held.reports) < held.tried
            held.pause_s = _SHORTEST_PAUSE_S if went_on else min(held.pause_s * 2, _LONGEST_PAUSE_S)
            held.due_at, held.tried = monotonic() + held.pause_s, 0
        elif not any(attempt.queue == queue and targets_of(outcome) for attempt, outcome in unsettled):
            del self._held_up[queue]
            self._turns.unblock(queue)

    def until_next(self) -> float:
        """Seconds until a report is to be tried again."""
        return max(min(held.due_at for held in self._held_up.values()) - monotonic(), 0.0)


@dataclass(slots=True)
class _QueueReports:
    """Reports of one queue, and when they are tried again."""

    reports: list[Report] = field(default_factory=list)
    failures: int = 0
    due_at: float = 0.0


class UndeliveredReports:
    """Reports to a node of a cluster that is away while other nodes answer, by queue. Its length is their number.

    They wait without limit, as a worker does for a single server, and are tried again after growing pauses, as each try
    may delay the other nodes' calls by a timeout.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _QueueReports] = {}
        self.is_on = False
        """Whether any report waits, or was taken by `take_due` and is not yet accepted."""

    def __len__(self) -> int:
        return sum(len(queue.reports) for queue in list(self._queues.values()))  # a copy: any thread may ask

    def keep(self, reports: Iterable[Report], error: Exception) -> None:
        """Keeps reports, all of one queue, whose server did not answer."""
        for report in reports:
            self.is_on = True
            name = report[0].queue
            if name not in self._queues:
                self._queues[name] = _QueueReports()
                _log.warning("reports are kept: the server of a queue is away", queue=name, error=str(error))
            self._queues[name].reports.append(report)

    def end(self) -> None:
        """Makes all reports due, except those of tasks that are handed back: a worker that ends does that itself."""
        for queue in self._queues.values():
            queue.reports = [report for report in queue.reports if type(report[1]) is not Released]
            queue.due_at = 0.0

    def take_due(self) -> list[Report]:
        """The reports to be made again in this turn."""
        now, due = monotonic(), []
        for queue in self._queues.values():
            if queue.due_at <= now:
                due += queue.reports
                queue.reports = []
        return due

    def after_turn(self) -> None:
        """Makes queues whose reports came back, or are new, wait longer; forgets queues whose reports were all
        accepted."""
        now = monotonic()
        for name, queue in list(self._queues.items()):
            if not queue.reports:
                _log.info("the server of a queue is back; its reports were made", queue=name)
                del self._queues[name]
            elif queue.due_at <= now:
                queue.failures += 1
                queue.due_at = now + back_off(queue.failures, _SHORTEST_AWAY_S, _LONGEST_AWAY_S)
        self.is_on = bool(self._queues)

    def tokens(self) -> Iterable[str]:
        """The tokens of the attempts whose reports wait. Any thread may call it."""
        return (attempt.token for queue in list(self._queues.values()) for attempt, _ in queue.reports)

    def until_next(self) -> float:
        """Seconds until a report is to be tried again."""
        return max(min(queue.due_at for queue in self._queues.values()) - monotonic(), 0.0)


@dataclass(slots=True)
class _RefusedReport:
    """A report, since when the server has refused it while it takes writes, and when it is tried again."""

    report: Report
    since: float
    due_at: float
    failures: int = 0
    is_tried: bool = False


class RefusedReports:
    """Reports that the server answered with an error, as a key of their queue is damaged, or it takes no writes. Its
    length is their number, with those that are just tried again.

    Each is tried again alone, after growing pauses, so that none holds up another. When the server takes no writes at
    all they wait without limit; otherwise a report is given up after a minute, as its task would never end.

    Invariant: while more than `_MOST_REFUSED` reports of a queue wait, the worker takes no tasks of it. It could report
    none of them either, and the retries would take the time of its other queues.
    """

    def __init__(self, turns: QueueRotation) -> None:
        self._turns = turns
        self._waiting: dict[str, _RefusedReport] = {}
        self._left_out: set[str] = set()
        """Queues that have no turn."""
        self.is_on = False
        """Whether any report waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def keep(self, reports: Sequence[Report], error: JobrunnerError) -> list[Report]:
        """Keeps the reports of one call, except those that have been refused for too long, which it returns."""
        self.is_on = True
        now, may_end, over = monotonic(), not takes_no_writes(error), []
        for report in reports:
            token = report[0].token
            one = self._waiting.get(token) or _RefusedReport(report, now, now)
            one.is_tried = False
            if not may_end:  # the minute of an error about the report itself begins after that
                one.since = now
            elif now - one.since >= _GIVEN_UP_S:
                self._waiting.pop(token, None)
                over.append(report)
                continue
            if len(reports) == 1:  # else each is tried alone at once: only one of them may be to blame
                one.failures += 1
                one.due_at = now + back_off(one.failures, _SHORTEST_AWAY_S, _LONGEST_AWAY_S)
            self._waiting[token] = one
        return over

    def take_due(self) -> list[Report]:
        """The reports to be made again in this turn."""
        for queue in self._left_out:
            self._turns.pause(queue)
        now = monotonic()
        if all(one.due_at > now for one in self._waiting.values()):
            return []
        due = [one for one in self._waiting.values() if one.due_at <= now + _TOGETHER_S]
        for one in due:
            one.is_tried = True
        return [one.report for one in due]

    def after_turn(self) -> None:
        """Forgets reports that were tried and did not come back. The others of their queue are due then."""
        accepted = {one.report[0].queue for one in self._waiting.values() if one.is_tried}
        if accepted:
            self._waiting = {token: one for token, one in self._waiting.items() if not one.is_tried}
        for one in self._waiting.values() if accepted else ():
            if one.report[0].queue in accepted:
                one.due_at = 0.0
        self._leave_out()
        self.is_on = bool(self._waiting)

    def _leave_out(self) -> None:
        counts = Counter(one.report[0].queue for one in self._waiting.values())
        left_out = {queue for queue, count in counts.items() if count > _MOST_REFUSED}
        for queue in left_out - self._left_out:
            _log.warning("no tasks are taken from a queue: its reports are refused", queue=queue, reports=counts[queue])
        for queue in self._left_out - left_out:
            _log.info("tasks are taken from a queue again", queue=queue)
            self._turns.resume(queue)
        self._left_out = left_out

    def end(self) -> None:
        """Makes all reports due, except those of tasks that are handed back: a worker that ends does that itself."""
        self._waiting = {
            token: one for token, one in self._waiting.items() if type(one.report[1]) is not Released
        }  # fmt: skip
        for one in self._waiting.values():
            one.due_at = 0.0

    def tokens(self) -> list[str]:
        """The tokens of the attempts whose reports wait. Any thread may call it."""
        return list(self._waiting)

    def until_next(self) -> float:
        """Seconds until a report is to be tried again."""
        return max(min(one.due_at for one in self._waiting.values()) - monotonic(), 0.0)


def takes_no_writes(error: JobrunnerError) -> bool:
    """Whether no report to this server would be accepted, so that the error says nothing about a report."""
    return isinstance(error, ServerFull) or refuses_writes(error.__cause__) or is_demoted(error.__cause__)
