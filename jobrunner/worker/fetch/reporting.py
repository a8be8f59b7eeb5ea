"""Reports of attempts that ended: from the executor until the server has taken them."""

from collections.abc import Iterable
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.errors import JobrunnerError, OutcomeUnknown, ServerUnavailable
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Acknowledged, Failed, Released, Unknown
from jobrunner.worker.fetch.backpressure import Backpressure
from jobrunner.worker.fetch.turn import FetchParts, FetchTurn
from jobrunner.worker.fetch.unknown_jobs import UnknownJobs
from jobrunner.worker.report.after_report import AfterReport
from jobrunner.worker.report.attempt_events import AttemptEvents
from jobrunner.worker.report.encryption import sealed
from jobrunner.worker.report.queue_backoff import QueueBackoffs
from jobrunner.worker.report.reports import Report, ReportCall, report_calls, too_many_hops
from jobrunner.worker.report.undelivered import UndeliveredReports

_REFUSALS = 50
"""Turns after which a report is dropped when the server answers each with an error."""
_AWAY = (ServerUnavailable, OutcomeUnknown)
"""Errors in the replies of a cluster with one server away; when no server answers, they are raised."""
_log = SafeLogger("jobrunner.fetcher")


class Reporting:
    """The reports that are still to be made, those that wait for capacity or for their server among them.

    Invariant: a report and its lease are kept until the server answered. No moment may look as if nothing were in hand
    while something is: a report is entered here before it leaves `prefetch`.
    """

    def __init__(self, parts: FetchParts, events: AttemptEvents, unknown: UnknownJobs) -> None:
        self._parts = parts
        self._keys = parts.keys
        self._keeper = parts.keeper
        self._unknown = unknown
        self._backoffs = QueueBackoffs(parts.broker, parts.keys)
        self._after_report = AfterReport(parts.broker, parts.keys, parts.keeper, parts.stats, events)
        self._undelivered = UndeliveredReports()
        self._refusals = 0
        self.backpressure = Backpressure(parts.rotation)
        self.pending: list[Report] = []
        """Those of the next exchange."""
        self.finished_total = 0

    def __len__(self) -> int:
        return len(self.pending) + len(self.backpressure) + len(self._undelivered) + len(self._after_report)

    @property
    def tokens(self) -> set[str]:
        """Of attempts that ended and are not yet reported, but for those that wait for capacity."""
        return {*self._undelivered.tokens(), *(attempt.token for attempt, _ in self.pending)}

    def collect(self) -> bool:
        """Takes in what the executor finished; returns whether that was anything."""
        reports = self._parts.finished.drain()
        if not reports:
            self._parts.prefetch.gave(0)
            return False
        kinds = [type(outcome) for _, outcome in reports]
        released, count = kinds.count(Released) + kinds.count(Unknown), len(kinds)
        if Acknowledged in kinds:
            over = [report for report in reports if type(report[1]) is Acknowledged]
            self._keeper.drop(attempt for attempt, _ in over)
            self._parts.stats.observe(over, ["ok"] * len(over))
            reports = [report for report in reports if type(report[1]) is not Acknowledged]
        if Unknown in kinds:
            reports = [
                (attempt, self._unknown.settle(attempt, outcome) if isinstance(outcome, Unknown) else outcome)
                for attempt, outcome in reports
            ]
        if Failed in kinds or Unknown in kinds:
            reports = [
                (attempt, self._backoffs.settle(attempt, outcome) if isinstance(outcome, Failed) else outcome)
                for attempt, outcome in reports
            ]
        if self._keys.seal is not None:
            reports = [(attempt, sealed(attempt, outcome, self._keys)) for attempt, outcome in reports]
        self.pending += reports
        self._parts.prefetch.gave(count - released, released)
        self.finished_total += count - released
        return True

    def release_waiting(self) -> None:
        """Releases the tasks whose reports wait for capacity, because the worker stops or is quiet."""
        self.pending += [(attempt, Released()) for attempt, _ in self.backpressure.take_all()]

    def calls(self) -> list[ReportCall]:
        """The calls of the next exchange, with the reports that are due to be tried again."""
        if self.backpressure.is_on:
            self.pending += self.backpressure.take_due()
        if self._undelivered.is_on:
            self.pending += self._undelivered.take_due()
        if not self.pending:
            return []
        return report_calls(self._keys, self.pending, singly=self._refusals > 0, worker=self._parts.worker_id)

    def take_replies(self, turn: FetchTurn) -> None:
        """Takes in the answers to the reports of a turn: drops what is over, keeps what is still to be made."""
        kept: list[Report] = []
        changed: list[Report] = []
        for call, reply in zip(turn.reports, turn.replies, strict=False):
            if isinstance(reply, _AWAY):
                self._undelivered.keep(call.reports, reply)
            elif isinstance(reply, JobrunnerError):
                turn.refused = reply
                kept += call.reports
            elif call.targets:
                changed += self._after_moves(call, reply)
            else:
                self._after_report.take(call, reply)
        self._refusals = self._refusals + 1 if kept else 0
        if self._refusals >= _REFUSALS:
            _log.error("reports given up; their leases will end", reports=len(kept), error=str(turn.refused))
            self._keeper.drop(attempt for attempt, _ in kept)
            kept, self._refusals = [], 0
        self.pending = kept + changed
        if self.backpressure.is_on:
            self.backpressure.after_turn(self.pending)
        if self._undelivered.is_on:
            self._undelivered.after_turn()

    def note(self) -> None:
        """Does the work after the reports of the turn before, as far as it needs no server."""
        self._after_report.note()

    def pass_on(self) -> None:
        """Does the rest of it: flows and events."""
        self._after_report.pass_on()

    def pause_s(self, pause_s: float) -> float:
        """The pause of a turn, shortened when a report is to be tried again before its end."""
        if self._undelivered.is_on:
            pause_s = min(pause_s, self._undelivered.until_next())
        return min(pause_s, self.backpressure.until_next()) if self.backpressure.is_on else pause_s

    def _after_moves(self, call: ReportCall, verdicts: list[Any]) -> list[Report]:
        """Keeps the reports whose target is full; returns those that have to be made in another way."""
        over: list[Attempt] = []
        changed: list[Report] = []
        for report, verdict in zip(call.reports, verdicts, strict=True):
            if verdict == "full":
                self.backpressure.keep(report)
            elif verdict == "hops":
                changed.append(too_many_hops(*report))
            else:
                over.append(report[0])
        if over:
            self._wake(call.targets)
        self._keeper.drop(over)
        self._after_report.take(call, verdicts)
        return changed

    def _wake(self, queues: Iterable[str]) -> None:
        """These queues got items from this worker, which need not wait for the hint of them."""
        for queue in queues:
            self._parts.rotation.wake(queue)
