"""Reports failed batches by their verdict: a batch fails, is split or is handed back, and the station may pause.

Invariant: while all batches fail with the same error, the station stops with the reason until a batch succeeds.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from random import uniform
from typing import TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import BatchLease
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, ServerError, ServerRefused
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import BatchEnd, Seen
from jobrunner.jobs.batch_record import BatchOutcome
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Retry, Snooze
from jobrunner.spark.failures import Cause, cause_of, engine_gone, error_line, is_never_of_items
from jobrunner.spark.station.batch_jobs import group_of, title_of
from jobrunner.spark.station.failure_verdict import (
    PATIENT_WITH,
    Blame,
    FailedBatch,
    FailureHistory,
    Fate,
    Pause,
    compared,
    verdict_on,
)
from jobrunner.spark.station.gathering import OtherItems
from jobrunner.spark.station.members import new_nonce
from jobrunner.spark.station.misfits import InnerPayloads, NoPayloadFits
from jobrunner.spark.user_frame import user_frame

_FIRST_S = 1.0
_LONGEST_S = 60.0
_LONGEST_OUTAGE_S = 10.0
"""Longest pause while the server answers but takes no rows, for example because it is full. Short, as other batches of
the station wait meanwhile."""
_AGAIN_S = 0.2
"""Pause before a report that met an outage is sent again."""
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
_PROBE = (b"probe", b"", b"", b'{"new":1}')
_log = SafeLogger("jobrunner.spark")
T = TypeVar("T")
_OUTCOMES: Mapping[str, BatchOutcome] = {"again": "failed", "split": "split", "dead": "dead"}
"""Result of `BatchLease.fail` → outcome."""


class CircuitBreaker:
    """Counts failures in a row. The first `patient_with` failures cost no pause, later failures a growing pause.

    While all batches fail, the items are not to blame, and splitting their batches until they are dead would lose good
    items.
    """

    def __init__(self, patient_with: int = PATIENT_WITH, longest_s: float = _LONGEST_S) -> None:
        self.in_a_row = 0
        self.patient_with = patient_with
        self._longest_s = longest_s

    def succeeded(self) -> None:
        """Ends the row of failures."""
        self.in_a_row = 0

    def failed(self) -> float:
        """Counts a failure. Returns the seconds to wait before the next attempt: 0 for the first few."""
        self.in_a_row += 1
        beyond = self.in_a_row - self.patient_with
        return 0.0 if beyond <= 0 else min(_FIRST_S * 2.0 ** min(beyond - 1, 10), self._longest_s)


class StationPauses:
    """The pauses of one station: after failures in a row, and in an outage. Not thread-safe."""

    def __init__(self) -> None:
        self._breaker = CircuitBreaker()
        self._outages = CircuitBreaker(patient_with=1, longest_s=_LONGEST_OUTAGE_S)
        self._until = 0.0

    @property
    def left_s(self) -> float:
        """Seconds until the pause is over; 0 or less without one."""
        return self._until - monotonic()

    def end(self) -> None:
        """Ends pauses and rows of failures: a batch succeeded."""
        self._breaker.succeeded()
        self._outages.succeeded()
        self._until = 0.0

    def after(self, pause: Pause, began: float) -> float:
        """Seconds to pause after a failure of an attempt that began at `began` (monotonic clock)."""
        if pause is Pause.NONE:
            return 0.0
        self._breaker.patient_with = 0 if pause is Pause.STATION_AT_ONCE else PATIENT_WITH
        return self._breaker.failed() if pause is Pause.BATCH else self._begin(began, self._breaker)

    def after_outage(self, began: float) -> float:
        """Seconds to pause after an outage: the second in a row begins a pause."""
        return self._begin(began, self._outages)

    def _begin(self, began: float, breaker: CircuitBreaker) -> float:
        """Begins a pause, or returns the rest of the current one: failures of batches that were already running when it
        began do not extend it."""
        now = monotonic()
        if began < self._until and now < self._until:
            return self._until - now
        pause_s = breaker.failed()
        self._until = now + pause_s
        return pause_s


class BatchFailures:
    """Reports the failed batches of one station, and pauses the station while batch after batch fails. Thread-safe:
    several threads run batches of the station concurrently.

    `stopping` cuts pauses short and hands batches back uncounted; `over` ends reports that wait for the server.
    `failure` is set when this process cannot go on: the worker then replaces the process.
    """

    def __init__(
        self, station: SparkStation, broker: Broker, keys: QueueKeys, seen: Seen, *,
        stopping: threading.Event, over: threading.Event,
    ) -> None:  # fmt: skip
        self.failure: BaseException | None = None
        self.reason: str | None = None
        """The error for which the station has stopped, as no item is to blame; None while the station works."""
        self._stops_by = ""
        self._station = station
        self._broker = broker
        self._keys = keys
        self._seen = seen
        self.stopping = stopping
        self._over = over
        self._lock = threading.Lock()
        self._history = FailureHistory()
        self.others = OtherItems()
        self.inner = InnerPayloads(lambda: self.report(self._few_are_left))
        self._pauses = StationPauses()

    def succeeded(self) -> None:
        """Ends the row of failures, after a batch with payloads that fit was decided with the rows of the function."""
        with self._lock:
            self._history.succeeded()
            self.others.forget()
            self._pauses.end()
            reason, self.reason = self.reason, None
        if reason is not None:
            _log.info("station goes on", queue=self._station.queue)

    def may_bury(self) -> bool:
        """Whether a whole batch may die of payloads that do not fit: others have succeeded, or hardly any item is left
        that could."""
        return self._history.has_worked or self.report(self._few_are_left)

    def report(self, send: Callable[[], T]) -> T:
        """Calls `send` and returns its result. Repeats the call in an outage while the lease may last: a lease that
        ends without a report counts against the items."""
        ends = monotonic() + self._station.lease
        while True:
            try:
                return send()
            except ServerError:
                if monotonic() >= ends or self._over.wait(_AGAIN_S):
                    raise

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
            return self._release(lease, delay_s), error_line(error)
        if cause is Cause.ENGINE:
            error = engine_gone(spark, error)
        line = _line_of(error)
        is_refusal = cause is Cause.OUTAGE and line.startswith(_REFUSED) and not self.stopping.is_set()
        blame = self._blame(lease) if is_refusal else Blame.NONE
        if blame is Blame.LAST:
            self.reason = None
            return self._failed(lease, line, Cause.ITEMS, run_s), line
        if blame is Blame.ITEMS:
            cause = Cause.ITEMS
        if cause is Cause.LOST:
            return self._lost(lease, line), line
        if cause not in (Cause.OUTAGE, Cause.ENGINE) and not self.stopping.is_set():
            return self._judge(lease, error, line, cause, run_s)
        pause_s = self._pause_in_outage(lease, line, cause, run_s)
        has_ended = cause is Cause.ENGINE and not self.stopping.is_set()
        if has_ended:
            self.give_up(error)
        if has_ended and lease.epoch >= _TOO_LARGE:
            return self._after_ends_of_spark(lease, line, run_s), line
        if blame is Blame.SEARCH:
            return self._divide(lease, line), line
        return self._release(lease, _behind(pause_s) if is_refusal else 0.0), line  # later if a row may be to blame

    def _after_ends_of_spark(self, lease: BatchLease, line: str, run_s: float) -> BatchOutcome:
        """Splits a batch in whose attempts Spark may have ended again and again. Of a single item the end is a failure
        when no other batch is suspect, and others work: it would end each new process for ever. Else it is due again
        after others, which show whether they work."""
        if lease.size > 1:
            _log.warning("batch split: may be too large for Java", batch=lease.id, queue=lease.queue, items=lease.size)
            return self._divide(lease, line)
        others = [epoch for batch_id, epoch in list(on_spark.items()) if batch_id != lease.id]
        is_only_suspect = all(epoch < _TOO_LARGE for epoch in others)
        if is_only_suspect and (self._history.has_worked or self.report(self._few_are_left)):
            return self._failed(lease, f"{line}, as in each attempt at this item", Cause.ITEMS, run_s)
        return self._release(lease, uniform(0.5, 1.0) * _LONGEST_S)

    def give_up(self, error: BaseException) -> None:
        """Records an error after which this process cannot go on."""
        _log.error("station cannot go on", queue=self._station.queue, error=error_line(error))
        self.failure = error

    def wait_out_pause(self) -> None:
        """Waits until the pause that a failure began is over. The station holds no batch meanwhile."""
        if (left := self._pauses.left_s) > 0:
            self.stopping.wait(left)

    def _blame(self, lease: BatchLease) -> Blame:
        takes = _takes_rows(lease)
        few_are_left = takes and self.report(self._few_are_left)
        with self._lock:
            return self._history.refused(lease.root, lease.size, takes_rows=takes, few_are_left=few_are_left)

    def _pause_in_outage(self, lease: BatchLease, line: str, cause: Cause, run_s: float) -> float:
        """Begins a pause at the second outage in a row, and returns its seconds. Without it, a server that is full or
        refuses single commands would hand the batch out again and again without a delay."""
        pause_s = 0.0
        if cause is Cause.OUTAGE and not self.stopping.is_set():
            with self._lock:
                pause_s = self._pauses.after_outage(monotonic() - run_s)
        if pause_s and self._stops(line, line):
            _log.error("station stops: an outage", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        elif pause_s:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        else:
            is_of_stop = self.stopping.is_set() and cause not in (Cause.OUTAGE, Cause.ENGINE)
            _log.warning("batch handed back", batch=lease.id, queue=lease.queue, error=line,
                         cause="stop" if is_of_stop else cause)  # fmt: skip
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
            is_final=cause is not Cause.CODE and self.report(partial(self._is_final, lease, cause)),
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
            return self._failed(lease, described, cause, run_s), described
        if pause_s and self._stops(described, compared(line, may_pass=may_pass)):
            _log.error("station stops: the error is no item's", queue=lease.queue, batch=lease.id, items=lease.size,
                       error=described, pauses_s=pause_s)  # fmt: skip
        else:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=described, pauses_s=pause_s)
        if verdict.fate is Fate.DIVIDED:
            return self._divide(lease, described), described
        return self._release(lease, _behind(pause_s)), described

    def _wait_for_one_that_fits(self, lease: BatchLease, line: str, run_s: float) -> BatchOutcome:
        """Hands back a batch of which no payload fits. It is no failure of the function, so it says nothing about other
        batches that fail."""
        with self._lock:
            pause_s = self._pauses.after(Pause.STATION_AT_ONCE, monotonic() - run_s)
            self.others.wanted = True
        if self._stops(line, NoPayloadFits.__name__):
            _log.error("station stops: no payload fits", queue=lease.queue, batch=lease.id, items=lease.size,
                       error=line, pauses_s=pause_s)  # fmt: skip
        return self._release(lease, _behind(pause_s))

    def _stops(self, reason: str, error: str) -> bool:
        """Records the reason of a stop. Returns whether `error` differs from the error of the previous stop."""
        is_new = self.reason is None or error != self._stops_by
        self.reason, self._stops_by = reason, error
        return is_new

    def _is_final(self, lease: BatchLease, cause: Cause) -> bool:
        is_last = lease.size == 1 and (self._fate(cause) == "poison" or lease.is_at_last_attempt())
        return is_last and not self._few_are_left()

    def _few_are_left(self) -> bool:
        """Whether the queue has no other items that could show that the function works: then these are to blame."""
        waiting, pending, _ = self._broker.run_many(queues.coming(self._keys, until_ms=0))
        return not waiting and pending <= PATIENT_WITH

    def _failed(self, lease: BatchLease, line: str, cause: Cause, run_s: float) -> BatchOutcome:
        delay_s = self.report(partial(self._delay_s, lease.failures + 1))
        fate = self.report(partial(lease.fail, line, delay_s=delay_s, fate=self._fate(cause)))
        _log.warning("batch failed", batch=lease.id, queue=lease.queue, items=lease.size, fate=fate, error=line)
        counts = {"failed": lease.size, "dead": lease.size if fate == "dead" else 0}
        self._seen(BatchEnd(items=lease.size, counts=counts, run_s=run_s))
        return _OUTCOMES[fate]

    def _fate(self, cause: Cause) -> str:
        return "failed" if cause is Cause.ITEMS else "poison" if self._station.quarantine else "blamed"

    def _lost(self, lease: BatchLease, line: str) -> BatchOutcome:
        """Leaves a batch to its other holder. It has none when a sink refuses the batch because the server forgot that
        the batch was split, or its epoch: then the batch is split again, as the sink knows its parts. Otherwise its
        lease would end without a report again and again, until its items had used up their attempts."""
        if lease.size > 1:
            with suppress(BatchLost):
                outcome = self._divide(lease, line)
                _log.warning("batch split: its sink has parts of it", batch=lease.id, queue=lease.queue, error=line)
                return outcome
        _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=line)
        return "lost"

    def _divide(self, lease: BatchLease, line: str) -> BatchOutcome:
        """Splits a batch without counting a failure."""
        return _OUTCOMES[self.report(partial(lease.fail, line, delay_s=0, fate="divided"))]

    def _release(self, lease: BatchLease, delay_s: float) -> BatchOutcome:
        """Hands a batch back without counting a failure, due again after `delay_s` seconds."""
        self.report(partial(lease.release, delay_s=delay_s))
        return "released"

    def _delay_s(self, failures: int) -> float:
        return read_settings(self._broker.run(queues.settings(self._keys))).backoff.delay(failures)


def _takes_rows(lease: BatchLease) -> bool:
    """Whether the server accepts a row for this batch. The row is removed when the batch is released."""
    try:
        lease.stage(new_nonce("probe."), _PROBE, after=0)
    except (ServerError, BatchLost):
        return False
    return True


def _line_of(error: BaseException) -> str:
    """The error in one line, with a hint when the function registered a view on another session."""
    line = error_line(error)
    if isinstance(error, AnalysisException) and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        line += "; a view that the function registers is known to df.sparkSession.sql(...) alone"
    return line


def _behind(pause_s: float) -> float:
    return _BEHIND_PAUSE * max(pause_s, _FIRST_S)
