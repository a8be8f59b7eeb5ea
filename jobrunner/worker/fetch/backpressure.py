"""Back-pressure: reports of moves into queues that are full.

Invariant: such a report is kept, with its lease, until the target has capacity, and its function does not run again;
meanwhile the worker reserves nothing from the queue of that item, and serves its other queues. Moves inside a cycle of
queues skip back-pressure (`Moved.waits=False`); otherwise two full queues could deadlock.
"""

from dataclasses import dataclass, field

from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger
from jobrunner.worker.fetch.queue_rotation import QueueRotation
from jobrunner.worker.report.reports import Report, targets_of

_SHORTEST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2
_log = SafeLogger("jobrunner.pressure")


@dataclass(slots=True)
class _WaitingMoves:
    """The waiting reports of one queue."""

    reports: list[Report] = field(default_factory=list)
    targets: set[str] = field(default_factory=set)
    tried: int = 0
    pause_s: float = _SHORTEST_PAUSE_S
    due_at: float = 0.0


class Backpressure:
    """The reports that wait, by the queue of their items. Tried again after a pause, and as soon as this worker itself
    took something out of the target."""

    def __init__(self, turns: QueueRotation) -> None:
        self._turns = turns
        self._held_up: dict[str, _WaitingMoves] = {}

    def __len__(self) -> int:
        return sum(len(held.reports) for held in self._held_up.values())

    @property
    def is_on(self) -> bool:
        """Whether anything waits."""
        return bool(self._held_up)

    def keep(self, report: Report) -> None:
        """A report that was answered: the target is full."""
        attempt, outcome = report
        held = self._held_up.get(attempt.queue)
        if held is None:
            held = self._held_up[attempt.queue] = _WaitingMoves(due_at=monotonic() + _SHORTEST_PAUSE_S)
            self._turns.block(attempt.queue)
            _log.info("a queue waits for capacity in others", queue=attempt.queue, full=sorted(targets_of(outcome)))
        held.reports.append(report)
        held.targets |= targets_of(outcome)

    def take_due(self) -> list[Report]:
        """The reports to be made again in this turn."""
        now = monotonic()
        due: list[Report] = []
        for held in self._held_up.values():
            if held.reports and held.due_at <= now:
                due += held.reports
                held.tried, held.reports, held.targets = len(held.reports), [], set()
        return due

    def take_all(self) -> list[Report]:
        """Everything that waits; nothing does any more."""
        taken = [report for held in self._held_up.values() for report in held.reports]
        for queue in self._held_up:
            self._turns.unblock(queue)
        self._held_up.clear()
        return taken

    def made_room(self, queue: str) -> None:
        """This worker took something out of a queue."""
        for held in self._held_up.values():
            if queue in held.targets:
                held.due_at = 0.0

    def after_turn(self, unsettled: list[Report]) -> None:
        """Takes in the result of a retry; resumes queues without waiting or unsettled reports."""
        for queue, held in list(self._held_up.items()):
            if held.tried:
                self._after_try(queue, held, unsettled)

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
