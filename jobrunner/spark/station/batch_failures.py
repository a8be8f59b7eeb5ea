"""Judges failed batches: a batch fails, is split or is handed back, and the station may pause.

Invariant: while all batches fail with the same error, the station stops with the reason until a batch succeeds.
"""

import threading
from random import uniform

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobrunner.client.batches import BatchLease
from jobrunner.clock import monotonic
from jobrunner.errors import ServerRefused
from jobrunner.jobs.batch_record import BatchOutcome
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Retry, Snooze
from jobrunner.spark.failures import Cause, cause_of, engine_gone, error_line, is_never_of_items
from jobrunner.spark.station.batch_jobs import group_of, title_of
from jobrunner.spark.station.batch_reports import BatchReports, takes_rows
from jobrunner.spark.station.failure_history import Blame, FailureHistory, compared
from jobrunner.spark.station.failure_verdict import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    FailedBatch,
    Fate,
    Pause,
    StationPauses,
    verdict_on,
)
from jobrunner.spark.station.gathering import OtherItems
from jobrunner.spark.station.misfits import InnerPayloads, NoPayloadFits
from jobrunner.spark.user_frame import user_frame

_BEHIND_PAUSE = 1.5
"""A batch that is handed back is due after this many pauses, so that another batch runs in between: if that batch
succeeds, the function works, and the next error counts."""
_TOO_LARGE = 3
"""The attempt at a batch from which on the end of Spark splits it, or counts against its only item: the batch may need
more memory than Java has, and would end each new process."""
on_spark: dict[str, int] = {}
"""The attempts of the batches that run on the Spark of this process, of all stations, by id. Those that ran when it
ended stay."""
_REFUSED = f"{ServerRefused.__name__}: "
_log = SafeLogger("jobrunner.spark")


class BatchFailures:
    """Judges the failed batches of one station and reports them, and pauses the station while batch after batch fails.
    Thread-safe: several threads run batches of the station concurrently.

    `stopping` cuts pauses short and hands batches back uncounted.
    """

    def __init__(self, queue: str, reports: BatchReports, stopping: threading.Event) -> None:
        self._queue = queue
        self.reports = reports
        self.stopping = stopping
        self.failure: BaseException | None = None
        """Set when this process cannot go on: the worker then replaces the process."""
        self.reason: str | None = None
        """The error for which the station has stopped, as no item is to blame; None while the station works."""
        self._stops_by = ""
        self._lock = threading.Lock()
        self._history = FailureHistory()
        self.others = OtherItems()
        self.inner = InnerPayloads(reports.few_are_left)
        self._pauses = StationPauses()

    def succeeded(self) -> None:
        """Ends the row of failures, after a batch with payloads that fit was decided with the rows of the function."""
        with self._lock:
            self._history.succeeded()
            self.others.forget()
            self._pauses.end()
            reason, self.reason = self.reason, None
        if reason is not None:
            _log.info("station goes on", queue=self._queue)

    def may_bury(self) -> bool:
        """Whether a whole batch may die of payloads that do not fit: others have succeeded, or hardly any item is left
        that could."""
        return self._history.has_worked or self.reports.few_are_left()

    def cause_of(self, spark: SparkSession, lease: BatchLease, error: BaseException) -> Cause:
        """Returns the side that caused the error of an attempt. May run a Spark job, which waits for the jobs of other
        batches: the lease must be renewed meanwhile."""
        if isinstance(error, (Snooze, Retry)) and error.delay_s is not None:
            return Cause.ITEMS  # the function asked for a later attempt
        return cause_of(error, spark, f"{title_of(lease)}: check that Spark is alive", group_of(lease))

    def set_back(
        self, spark: SparkSession, lease: BatchLease, error: BaseException, cause: Cause, run_s: float
    ) -> tuple[BatchOutcome, str]:
        """Reports a batch whose attempt raised `error` after `run_s` seconds, for this `cause`: hands it back or counts
        a failure. Returns the outcome and the error in one line. Call `wait_out_pause` before the next batch."""
        if isinstance(error, (Snooze, Retry)) and (delay_s := error.delay_s) is not None:
            return self.reports.release(lease, delay_s), error_line(error)
        if cause is Cause.ENGINE:
            error = engine_gone(spark, error)
        line = _line_of(error)
        if cause is Cause.LOST:
            return self.reports.lost(lease, line), line
        if self.stopping.is_set():
            _log_handed_back(lease, line, cause if cause in (Cause.OUTAGE, Cause.ENGINE) else "stop")
            return self.reports.release(lease, 0.0), line
        if cause is Cause.ENGINE:
            return self._after_end_of_spark(lease, error, line, run_s), line
        if cause is not Cause.OUTAGE:
            return self._judge(lease, error, line, cause, run_s)
        if line.startswith(_REFUSED):
            return self._after_refusal(lease, error, line, run_s)
        self._pause_in_outage(lease, line, run_s)
        return self.reports.release(lease, 0.0), line

    def _after_end_of_spark(self, lease: BatchLease, error: BaseException, line: str, run_s: float) -> BatchOutcome:
        """Hands a batch back, as this process has no Spark any more. A batch in whose attempts Spark may have ended
        again and again is split. Of a single item the end is a failure when no other batch is suspect, and others work:
        it would end each new process for ever. Else it is due again after others, which show whether they work."""
        _log_handed_back(lease, line, Cause.ENGINE)
        self.give_up(error)
        if lease.epoch < _TOO_LARGE:
            return self.reports.release(lease, 0.0)
        if lease.size > 1:
            _log.warning("batch split: may be too large for Java", batch=lease.id, queue=lease.queue, items=lease.size)
            return self.reports.divide(lease, line)
        others = [epoch for batch_id, epoch in list(on_spark.items()) if batch_id != lease.id]
        is_only_suspect = all(epoch < _TOO_LARGE for epoch in others)
        if is_only_suspect and (self._history.has_worked or self.reports.few_are_left()):
            return self.reports.failed(lease, f"{line}, as in each attempt at this item", Cause.ITEMS, run_s)
        return self.reports.release(lease, uniform(0.5, 1.0) * LONGEST_PAUSE_S)

    def _after_refusal(
        self, lease: BatchLease, error: BaseException, line: str, run_s: float
    ) -> tuple[BatchOutcome, str]:
        """Reports a batch whose rows the server refused: a row may be to blame, or a server that is full or takes no
        writes."""
        can_stage = takes_rows(lease)
        few_are_left = can_stage and self.reports.few_are_left()
        with self._lock:
            blame = self._history.refused(lease.root, lease.size, takes_rows=can_stage, few_are_left=few_are_left)
        if blame is Blame.LAST:
            self.reason = None
            return self.reports.failed(lease, line, Cause.ITEMS, run_s), line
        if blame is Blame.ITEMS:
            return self._judge(lease, error, line, Cause.ITEMS, run_s)
        pause_s = self._pause_in_outage(lease, line, run_s)
        if blame is Blame.SEARCH:
            return self.reports.divide(lease, line), line
        return self.reports.release(lease, _behind(pause_s)), line

    def give_up(self, error: BaseException) -> None:
        """Records an error after which this process cannot go on."""
        _log.error("station cannot go on", queue=self._queue, error=error_line(error))
        self.failure = error

    def wait_out_pause(self) -> None:
        """Waits until the pause that a failure began is over. The station holds no batch meanwhile."""
        if (left := self._pauses.left_s) > 0:
            self.stopping.wait(left)

    def _pause_in_outage(self, lease: BatchLease, line: str, run_s: float) -> float:
        """Begins a pause at the second outage in a row, and returns its seconds. Without it, a server that is full or
        refuses single commands would hand the batch out again and again without a delay."""
        with self._lock:
            pause_s = self._pauses.after_outage(monotonic() - run_s)
        if not pause_s:
            _log_handed_back(lease, line, Cause.OUTAGE)
        elif self._stops(line, line):
            _log.error("station stops: an outage", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        else:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        return pause_s

    def _judge(
        self, lease: BatchLease, error: BaseException, line: str, cause: Cause, run_s: float
    ) -> tuple[BatchOutcome, str]:
        if isinstance(error, NoPayloadFits):
            return self._wait_for_one_that_fits(lease, line, run_s), line
        is_never = is_never_of_items(error)
        may_pass = is_never or cause is Cause.ITEMS  # a success elsewhere, or at another time, proves nothing
        failed = FailedBatch(
            cause=cause, size=lease.size,
            is_final=cause is not Cause.CODE and self.reports.is_final(lease, cause),
            is_divisible=not is_never or getattr(error, "may_be_of_rows", False),
        )  # fmt: skip
        place = user_frame(error)
        with self._lock:
            evidence = self._history.failed(
                lease.id, lease.root, line, place, may_pass=may_pass, worked_elsewhere=lease.others_worked
            )
            verdict = verdict_on(failed, evidence)
            pause_s = self._pauses.after(verdict.pause, monotonic() - run_s)
            may_be_of_items = failed.is_divisible and (cause is not Cause.CODE or evidence.has_worked)
            self.others.wanted = verdict.fate is not Fate.COUNTED and pause_s > 0 and may_be_of_items
        described = f"{line} ({place})" if place else line
        if verdict.fate is Fate.COUNTED:
            return self.reports.failed(lease, described, cause, run_s), described
        if pause_s and self._stops(described, compared(line, may_pass=may_pass)):
            _log.error("station stops: the error is no item's", queue=lease.queue, batch=lease.id, items=lease.size,
                       error=described, pauses_s=pause_s)  # fmt: skip
        else:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=described, pauses_s=pause_s)
        if verdict.fate is Fate.DIVIDED:
            return self.reports.divide(lease, described), described
        return self.reports.release(lease, _behind(pause_s)), described

    def _wait_for_one_that_fits(self, lease: BatchLease, line: str, run_s: float) -> BatchOutcome:
        """Hands back a batch of which no payload fits. It is no failure of the function, so it says nothing about other
        batches that fail."""
        with self._lock:
            pause_s = self._pauses.after(Pause.STATION_AT_ONCE, monotonic() - run_s)
            self.others.wanted = True
        if self._stops(line, NoPayloadFits.__name__):
            _log.error("station stops: no payload fits", queue=lease.queue, batch=lease.id, items=lease.size,
                       error=line, pauses_s=pause_s)  # fmt: skip
        return self.reports.release(lease, _behind(pause_s))

    def _stops(self, reason: str, error: str) -> bool:
        """Records the reason of a stop. Returns whether `error` differs from the error of the previous stop."""
        is_new = self.reason is None or error != self._stops_by
        self.reason, self._stops_by = reason, error
        return is_new


def _log_handed_back(lease: BatchLease, line: str, cause: str) -> None:
    _log.warning("batch handed back", batch=lease.id, queue=lease.queue, error=line, cause=cause)


def _line_of(error: BaseException) -> str:
    """The error in one line, with a hint when the function registered a view on another session."""
    line = error_line(error)
    if isinstance(error, AnalysisException) and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        line += "; a view that the function registers is known to df.sparkSession.sql(...) alone"
    return line


def _behind(pause_s: float) -> float:
    return _BEHIND_PAUSE * max(pause_s, FIRST_PAUSE_S)
