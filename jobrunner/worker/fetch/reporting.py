"""Reports of attempts that ended: from the executor until the server has accepted them, and the work after that.

An accepted report is final, and later work does not change it: so a busy worker drops leases, counts and logs while the
server handles the next reports.
"""

from collections.abc import Sequence
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.call import text
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.flow_relay import relay
from jobrunner.errors import NO_ANSWER, JobrunnerError, OutcomeUnknown
from jobrunner.join import Ended
from jobrunner.logs import SafeLogger
from jobrunner.outcome import (
    Acknowledged,
    Cancelled,
    Deferred,
    Dropped,
    Failed,
    FannedOut,
    Outcome,
    Released,
    Succeeded,
    Unknown,
)
from jobrunner.worker.fetch.intake import TaskParts
from jobrunner.worker.fetch.queue_caps import CappedRotation
from jobrunner.worker.fetch.waiting_reports import Backpressure, RefusedReports, UndeliveredReports
from jobrunner.worker.report.report_calls import Report, ReportCall, Reporter, report_calls, too_many_hops
from jobrunner.worker.report.reported_outcome import QueueBackoffs, encrypted_outcome
from jobrunner.worker.report.stats import UNSURE
from jobrunner.worker.run.error_outcome import refused

_ENDINGS: dict[type, str] = {
    Succeeded: "succeeded", FannedOut: "succeeded", Cancelled: "cancelled", Dropped: "cancelled", Failed: "dead",
}  # fmt: skip
_log = SafeLogger("jobrunner.fetcher")


class AfterReport:
    """Work after the server accepted a report: drops the lease, counts and logs the end, writes its event, and passes
    it on to its flow.

    Its length counts the open steps. `take` costs nothing; `note` does not use the server; `pass_on` does.
    """

    def __init__(self, parts: TaskParts) -> None:
        self._broker = parts.broker
        self._keys = parts.keys
        self._leases = parts.leases
        self._stats = parts.stats
        self._events = parts.events
        self._log = parts.log
        self._cleaner = parts.cleaner
        self._taken: list[tuple[ReportCall, list[str]]] = []
        self._ends: list[Ended] = []

    def __len__(self) -> int:
        return len(self._taken) + len(self._ends)

    def take(self, call: ReportCall, verdicts: list[str]) -> None:
        """Takes the server's replies to reports."""
        self._taken.append((call, verdicts))

    def note(self) -> None:
        """Does the part that needs no server: drops leases, counts, logs."""
        if not self._taken:
            return
        try:
            for call, verdicts in self._taken:
                if not call.targets:  # some moves may still have to be reported in another way
                    self._leases.drop(attempt for attempt, _ in call.reports)
                self._stats.observe(call.reports, verdicts)
                self._log.note(call.reports, verdicts)
                if self._events is not None:
                    self._events.note(call.reports, verdicts)
                if self._cleaner is not None:
                    self._cleaner.note(call.reports, verdicts)
                self._ends += _ended_in_flows(self._keys, call, verdicts)
        finally:
            self._taken = []  # last: at no moment may open work be missing from the length

    def pass_on(self) -> None:
        """Passes ends of tasks on to their flows, and sends events. The ends are in their outboxes, so the leader
        passes on the ends that fail here."""
        if self._ends:
            try:
                relay(self._broker, self._keys, ended=self._ends)
            except JobrunnerError as error:
                _log.warning("flows continue at the leader's next scan", ends=len(self._ends), error=str(error))
            finally:
                self._ends = []
        if self._events is not None:
            self._events.send()


class Reporting:
    """The reports that are still to be made, with those that wait for capacity, for their server, or were refused.

    Invariants: a report and its lease are kept until the server answered; at no moment does a held task look as if it
    were not in hand: a report is entered here before it leaves `prefetch`.
    """

    def __init__(self, parts: TaskParts) -> None:
        self._parts = parts
        self._keys = parts.keys
        self._encryption = parts.encryption
        self._leases = parts.leases
        self._backoffs = QueueBackoffs(parts.broker, parts.keys)
        self.after_report = AfterReport(parts)
        self._by = Reporter(parts.worker_id, parts.release, parts.timed)
        self._undelivered = UndeliveredReports()
        self._refused = RefusedReports(parts.rotation)
        self._unanswered: set[str] = set()
        """Tokens of attempts whose report was sent without a reply, and may have been accepted."""
        self.backpressure = Backpressure(parts.rotation)
        self._collected: list[Report] = []
        """The reports of this turn until they are `pending`: some outcomes need a read from the server first."""
        self.pending: list[Report] = []
        """The reports of the next exchange."""
        self.ended: list[Attempt] = []
        """The attempts that ended since the last turn, reported or not."""
        self.finished_total = 0
        self.gave_way: set[str] = set()
        """Queues whose next hint is for another worker, which is to know when the tasks are due again."""

    def __len__(self) -> int:
        waiting = len(self.backpressure) + len(self._undelivered) + len(self._refused)
        return len(self.pending) + waiting + len(self.after_report)

    @property
    def has_refused(self) -> bool:
        """Whether the server's last answer to any report was an error."""
        return self._refused.is_on

    @property
    def tokens(self) -> set[str]:
        """The tokens of attempts that ended and are not yet reported, except those that wait for capacity or are
        released: a worker releases these at its end. Any thread may call it: reports pass in this order, so none is
        missed."""
        reports = [*self._parts.finished.copy(), *self._collected, *self.pending]
        ended = {attempt.token for attempt, outcome in reports if type(outcome) is not Released}
        return {*ended, *self._undelivered.tokens(), *self._refused.tokens()}

    def collect(self) -> bool:
        """Collects the executor's finished attempts; returns whether there were any."""
        reports = self._collected = self._parts.finished.drain()
        self.ended = [attempt for attempt, _ in reports]
        if not reports:
            self._parts.prefetch.gave(0)
            return False
        if isinstance(self._parts.rotation, CappedRotation):
            self._parts.rotation.ended(attempt.queue for attempt in self.ended)
        kinds = [type(outcome) for _, outcome in reports]
        released, count = kinds.count(Released) + kinds.count(Unknown), len(kinds)
        if Acknowledged in kinds:
            self._end_acknowledged([report for report in reports if type(report[1]) is Acknowledged])
            reports = [report for report in reports if type(report[1]) is not Acknowledged]
        if Unknown in kinds:
            reports = [
                (attempt, self._parts.unknown.reported(attempt, outcome) if isinstance(outcome, Unknown) else outcome)
                for attempt, outcome in reports
            ]
            prefetch = self._parts.prefetch
            if prefetch.has_free_slots and kinds.count(Unknown) == prefetch.in_hand:
                self._give_way(reports)
        if Failed in kinds or Unknown in kinds:
            reports = [
                (attempt, self._backoffs.reported(attempt, outcome) if isinstance(outcome, Failed) else outcome)
                for attempt, outcome in reports
            ]
        if self._encryption is not None:
            reports = [(attempt, self._encrypted(attempt, outcome)) for attempt, outcome in reports]
        self.pending += reports
        self._collected = []
        self._parts.prefetch.gave(count - released, released)
        self.finished_total += count - released
        return True

    def _end_acknowledged(self, over: Sequence[Report]) -> None:
        """Drops and counts attempts whose tasks were acknowledged before they began: there is nothing to report."""
        accepted = ["ok"] * len(over)
        self._leases.drop(attempt for attempt, _ in over)
        self._parts.stats.observe(over, accepted)
        if self._parts.cleaner is not None:
            self._parts.cleaner.note(over, accepted)
        done = [(one, outcome) for one, outcome in over if isinstance(outcome, Acknowledged) and outcome.succeeded]
        self._parts.log.note(done, ["ok"] * len(done))

    def _give_way(self, reports: Sequence[Report]) -> None:
        """Leaves the queues of tasks that are handed back alone for a second, as all that this worker had in hand were
        tasks of jobs that it does not know. Being idle, it would be the first to take them each time they are due, and
        the worker that knows them, which is busy, the last. Not while they fill its slots: its own tasks may be in line
        behind them."""
        for queue in {attempt.queue for attempt, outcome in reports if isinstance(outcome, Deferred)}:
            self._parts.rotation.pause(queue)
            self.gave_way.add(queue)

    def _encrypted(self, attempt: Attempt, outcome: Outcome) -> Outcome:
        """The encrypted outcome. An outcome that cannot be encrypted fails its own task, and delays no other report."""
        assert self._encryption is not None
        try:
            return encrypted_outcome(self._encryption, self._keys, attempt, outcome)
        except JobrunnerError as error:
            return refused(error)

    def calls(self) -> list[ReportCall]:
        """The calls of the next exchange, with the reports that are due to be tried again."""
        if self.backpressure.is_on:
            self.pending += self.backpressure.take_due()
        if self._undelivered.is_on:
            self.pending += self._undelivered.take_due()
        calls = report_calls(self._keys, self.pending, by=self._by) if self.pending else []
        if self._refused.is_on:
            calls += report_calls(self._keys, self._refused.take_due(), singly=True, by=self._by)
        return calls

    def end(self) -> None:
        """Prepares the last exchange of a worker: reports that wait are due, whatever their pause, and tasks that are
        handed back are left to its end."""
        self._undelivered.end()
        self._refused.end()

    def lost_answer(self, call: ReportCall) -> None:
        """Records that the connection broke after these reports were sent. They stay, and are sent again."""
        self._unanswered.update(attempt.token for attempt, _ in call.reports)

    def take_replies(self, calls: list[ReportCall], replies: list[Any]) -> JobrunnerError | None:
        """Handles the replies to the reports of a turn, which are the first of `replies`: drops finished reports, and
        keeps those still to be made. Returns the last error with which the server refused a call."""
        last: JobrunnerError | None = None
        changed: list[Report] = []
        for call, reply in zip(calls, replies, strict=False):
            if self._unanswered and isinstance(reply, list):
                reply = self._of_second_sending(call, reply)
            if isinstance(reply, NO_ANSWER):
                if isinstance(reply, OutcomeUnknown):
                    self.lost_answer(call)
                self._undelivered.keep(call.reports, reply)
            elif isinstance(reply, JobrunnerError):
                last = reply
                self._keep_refused(call, reply)
            elif call.targets:
                changed += self._after_moves(call, reply)
            else:
                self.after_report.take(call, reply)
        self.pending = changed
        if self.backpressure.is_on:
            self.backpressure.after_turn(self.pending)
        if self._undelivered.is_on:
            self._undelivered.after_turn()
        if self._refused.is_on:
            self._refused.after_turn()
        return last

    def _keep_refused(self, call: ReportCall, error: JobrunnerError) -> None:
        over = self._refused.keep(call.reports, error)
        if over:
            _log.error("reports given up; their leases will end", reports=len(over), error=str(error))
            self._leases.drop(attempt for attempt, _ in over)

    def pause_s(self, pause_s: float) -> float:
        """The pause of a turn, shortened when a report is to be tried again before its end."""
        if self._undelivered.is_on:
            pause_s = min(pause_s, self._undelivered.until_next())
        if self._refused.is_on:
            pause_s = min(pause_s, self._refused.until_next())
        return min(pause_s, self.backpressure.until_next()) if self.backpressure.is_on else pause_s

    def _of_second_sending(self, call: ReportCall, verdicts: list[Any]) -> list[Any]:
        """The verdicts, interpreted as those of a call that the driver sent again: see `Call.unsure`."""
        unsure = {text(word) for word in call.call.unsure}
        again = [attempt.token in self._unanswered for attempt, _ in call.reports]
        self._unanswered.difference_update(attempt.token for attempt, _ in call.reports)
        return [
            UNSURE if was_sent and verdict in unsure else verdict
            for was_sent, verdict in zip(again, verdicts, strict=True)
        ]

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
            for queue in call.targets:  # they got items from this worker, which waits for no hint
                self._parts.rotation.wake(queue)
        self._leases.drop(over)
        self.after_report.take(call, verdicts)
        return changed


def _ended_in_flows(keys: Keys, call: ReportCall, verdicts: list[str]) -> list[Ended]:
    """The ends of tasks of flows that these reports left in the outbox of their queue."""
    return [
        Ended(keys.queue(attempt.queue).tag, _ENDINGS[type(outcome)], attempt.then, getattr(outcome, "result", b""))
        for (attempt, outcome), verdict in zip(call.reports, verdicts, strict=True)
        if attempt.then is not None and (verdict == "dead" or (verdict == "ok" and type(outcome) in _ENDINGS))
    ]
