"""Reports to a node of a cluster that is away while other nodes answer.

Invariant: a report is kept until its server answers, however long that takes, as with a single server, whose worker
can do nothing else meanwhile. It is tried again after pauses that grow, as each try may cost the others a time-out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger
from jobrunner.loop import back_off
from jobrunner.worker.report.reports import Report

_SHORTEST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 3.0
_log = SafeLogger("jobrunner.fetcher")


@dataclass(slots=True)
class _QueueReports:
    """Reports of one queue, and when they are tried again."""

    reports: list[Report] = field(default_factory=list)
    failures: int = 0
    due_at: float = 0.0


class UndeliveredReports:
    """The reports that wait, by queue. Its length is their number."""

    def __init__(self) -> None:
        self._queues: dict[str, _QueueReports] = {}

    def __len__(self) -> int:
        return sum(len(queue.reports) for queue in self._queues.values())

    @property
    def is_on(self) -> bool:
        """Whether anything waits, or was taken and is not yet made."""
        return bool(self._queues)

    def keep(self, reports: Iterable[Report], error: Exception) -> None:
        """The server of these, all of one queue, did not answer."""
        for report in reports:
            name = report[0].queue
            if name not in self._queues:
                self._queues[name] = _QueueReports()
                _log.warning("reports are kept: the server of a queue is away", queue=name, error=str(error))
            self._queues[name].reports.append(report)

    def take_due(self) -> list[Report]:
        """The reports to be made again in this turn."""
        now, due = monotonic(), []
        for queue in self._queues.values():
            if queue.due_at <= now:
                due += queue.reports
                queue.reports = []
        return due

    def after_turn(self) -> None:
        """Those that are here again, or new, wait longer; queues of which nothing is here have their server back."""
        now = monotonic()
        for name, queue in list(self._queues.items()):
            if not queue.reports:
                _log.info("the server of a queue is back; its reports were made", queue=name)
                del self._queues[name]
            elif queue.due_at <= now:
                queue.failures += 1
                queue.due_at = now + back_off(queue.failures, _SHORTEST_PAUSE_S, _LONGEST_PAUSE_S)

    def tokens(self) -> Iterable[str]:
        """Of the attempts whose reports wait."""
        return (attempt.token for queue in self._queues.values() for attempt, _ in queue.reports)

    def until_next(self) -> float:
        """Seconds until a report is to be tried again."""
        return max(min(queue.due_at for queue in self._queues.values()) - monotonic(), 0.0)
