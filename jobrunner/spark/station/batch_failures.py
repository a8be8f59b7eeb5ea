"""The cost of an error for a batch: it fails, is split, or is handed back while its items are not to blame.

Invariant: an item dies only of an error that others do not have. While everything fails with the same error, no batch
counts as failed, and the station stops with the reason until a batch succeeds.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import BatchLease
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError, ServerRefused
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import BatchEnd, Seen
from jobrunner.jobs.batch_record import BatchOutcome
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Retry, Snooze
from jobrunner.spark.failures import Cause, cause_of, engine_gone, error_line, is_never_of_items
from jobrunner.spark.station.refused_batches import Blame, Refusals, takes_rows
from jobrunner.spark.ui_names import group_of_batch, title_of_batch
from jobrunner.spark.user_frame import with_user_frame

_PATIENT_WITH = 5
"""Failures in a row that a few bad items make among many good ones, as parts that succeed come between."""
_SEARCHED = 32
"""Failures in a row up to which a batch is split to find out whether any item works: the parts of one path from a large
batch to single items."""
_PROVEN_IN_A_ROW = 64
"""Failures in a row up to which an earlier success proves that the items are to blame. Bad items may be neighbours, but
many failures without a success may have another cause by now."""
_REMEMBERED = 10_000
_FIRST_S = 1.0
_LONGEST_S = 60.0
_LONGEST_OUTAGE_S = 10.0
"""Longest pause while the server answers but takes no rows, for example because it is full. Short, as other batches of
the station wait meanwhile."""
_AGAIN_S = 0.2
"""Pause before a report is sent again that met an outage."""
_BEHIND_PAUSE = 1.5
"""A batch that is handed back is due so many pauses later, so that another one runs in between."""
_REFUSED = f"{ServerRefused.__name__}: "
_log = SafeLogger("jobrunner.spark")
T = TypeVar("T")
Ended = Callable[[BatchOutcome, str], None]
"""Notes how an attempt ended: the outcome, and the cause in one line."""
_OUTCOMES: Mapping[str, BatchOutcome] = {"again": "failed", "split": "split", "dead": "dead"}
"""By what `BatchLease.fail` answers."""


def _unnoted(_outcome: BatchOutcome, _cause: str) -> None:
    """Where nothing keeps a batch log."""


class CircuitBreaker:
    """Counts failures in a row; the first `patient_with` of them cost no pause, later ones a growing one.

    While everything fails, the items are not to blame, and splitting their batches until they are dead would lose good
    items.
    """

    def __init__(self, patient_with: int = _PATIENT_WITH, longest_s: float = _LONGEST_S) -> None:
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


@dataclass(frozen=True, slots=True)
class Evidence:
    """Results of other batches that say whether a failed one is to blame."""

    others_worked: bool
    """Whether any batch succeeded since this one, or one of which it is a part, first failed with this class of error.
    """
    in_a_row: int
    """Batches that failed since the last success, each counted once."""
    is_one_error: bool
    """Whether those failed with the same error."""


class FailureHistory:
    """The successes and failures of one station in this process. Not safe in several threads at once."""

    def __init__(self) -> None:
        self.successes = 0
        self._failed_at: dict[tuple[str, str], int] = {}
        self._in_a_row: dict[str, str] = {}
        self._since_success = 0

    def succeeded(self) -> None:
        """Counts a batch whose function made its rows."""
        self.successes += 1
        self._in_a_row.clear()
        self._since_success = 0

    def failed(self, batch_id: str, root: str, line: str, *, may_pass: bool = False) -> Evidence:
        """Counts a failure with this error. `may_pass`: it may be an outage behind a sink, so a success of others
        proves nothing."""
        kind = line.partition(":")[0]
        first = min(self._failed_at.get((one, kind), self.successes) for one in _with_larger(batch_id, root))
        self._failed_at.setdefault((batch_id, kind), self.successes)
        if len(self._failed_at) > _REMEMBERED:
            del self._failed_at[next(iter(self._failed_at))]
        self._since_success += 1
        others_worked = self.successes > first and self._since_success <= _PROVEN_IN_A_ROW and not may_pass
        if not others_worked:
            self._in_a_row[batch_id] = line
        return Evidence(others_worked, len(self._in_a_row), len(set(self._in_a_row.values())) <= 1)


def _with_larger(batch_id: str, root: str) -> list[str]:
    found = [batch_id]
    while found[-1] != root and "." in found[-1]:
        found.append(found[-1].rpartition(".")[0])
    return found


class BatchFailures:
    """Reports the failed batches of one station, and pauses the station while batch after batch fails. Safe in several
    threads, which run batches of the station beside each other.

    `stopping` cuts pauses short and hands batches back uncounted; `over` ends reports that wait for the server.
    `failure` is set when this process cannot go on: the worker replaces it.
    """

    def __init__(
        self, station: SparkStation, broker: Broker, keys: QueueKeys, seen: Seen, *,
        stopping: threading.Event, over: threading.Event,
    ) -> None:  # fmt: skip
        self.failure: BaseException | None = None
        self.reason: str | None = None
        """The error for which the station stops, as no item is to blame; None while it works."""
        self._station = station
        self._broker = broker
        self._keys = keys
        self._seen = seen
        self.stopping = stopping
        self._over = over
        self._lock = threading.Lock()
        self._history = FailureHistory()
        self._refusals = Refusals()
        self._breaker = CircuitBreaker()
        self._outages = CircuitBreaker(patient_with=1, longest_s=_LONGEST_OUTAGE_S)
        self._paused_until = 0.0

    def succeeded(self) -> None:
        """The function made the rows of a batch, which was decided: failures are no longer in a row."""
        with self._lock:
            self._history.succeeded()
            self._refusals.succeeded()
            self._breaker.succeeded()
            self._outages.succeeded()
            self._paused_until = 0.0
            reason, self.reason = self.reason, None
        if reason is not None:
            _log.info("station goes on", queue=self._station.queue)

    def report(self, send: Callable[[], T]) -> T:
        """Returns what `send` returns. It is called again while there is an outage and the lease may last: a lease that
        ends without a report counts against the items."""
        ends = monotonic() + self._station.lease
        while True:
            try:
                return send()
            except ServerError:
                if monotonic() >= ends or self._over.wait(_AGAIN_S):
                    raise

    def cause_of(self, spark: SparkSession, lease: BatchLease, error: BaseException) -> Cause:
        """Which side caused the error of an attempt. It may ask Spark by a job, which waits for those of other batches:
        the lease must be renewed meanwhile."""
        if isinstance(error, (Snooze, Retry)) and error.delay_s is not None:
            return Cause.ITEMS  # the function said what to do
        title = f"{title_of_batch(lease.queue, lease.id, lease.size, lease.epoch)}: check that Spark is alive"
        return cause_of(error, spark, title, group_of_batch(lease.id, lease.epoch))

    def set_back(
        self, spark: SparkSession, lease: BatchLease, error: BaseException, cause: Cause, run_s: float,
        ended: Ended = _unnoted,
    ) -> None:  # fmt: skip
        """Reports a batch whose attempt raised `error` after `run_s` seconds, for this `cause`: handed back, or counted
        as failed. `ended` is called with the outcome and the cause. `wait_out_pause` comes before the next batch."""
        if isinstance(error, (Snooze, Retry)) and (delay_s := error.delay_s) is not None:
            self.report(partial(lease.release, delay_s=delay_s))
            ended("released", error_line(error))
            return
        if cause is Cause.ENGINE:
            error = engine_gone(spark, error)
        line = error_line(error)
        is_refusal = cause is Cause.OUTAGE and line.startswith(_REFUSED) and not self.stopping.is_set()
        blame = self._blame(lease) if is_refusal else Blame.NONE
        if blame is Blame.ITEMS:
            cause = Cause.ITEMS
        if blame is Blame.LAST:
            self.reason = None
            ended(self._failed(lease, line, Cause.ITEMS, run_s), line)
        elif cause is Cause.LOST:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=line)
            ended("lost", line)
        elif cause in (Cause.OUTAGE, Cause.ENGINE) or self.stopping.is_set():
            pause_s = self._pause_in_outage(lease, line, cause, run_s)
            if cause is Cause.ENGINE and not self.stopping.is_set():
                self.give_up(error)
            if blame is Blame.SEARCH:
                ended(self._divide(lease, line), line)
                return
            delay_s = _BEHIND_PAUSE * max(pause_s, _FIRST_S) if is_refusal else 0.0  # maybe of one row: others go first
            self.report(partial(lease.release, delay_s=delay_s))
            ended("released", line)
        else:
            self._judge(lease, error, line, cause, run_s, ended)

    def give_up(self, error: BaseException) -> None:
        """Notes an error that this process does not survive."""
        _log.error("station cannot go on", queue=self._station.queue, error=error_line(error))
        self.failure = error

    def wait_out_pause(self) -> None:
        """Waits until the pause of the station is over, which a failure began. Nothing is held meanwhile."""
        if (left := self._paused_until - monotonic()) > 0:
            self.stopping.wait(left)

    def _blame(self, lease: BatchLease) -> Blame:
        takes = takes_rows(lease)
        few_are_left = takes and self.report(self._few_are_left)
        with self._lock:
            return self._refusals.refused(lease.root, lease.size, takes_rows=takes, few_are_left=few_are_left)

    def _pause_in_outage(self, lease: BatchLease, line: str, cause: Cause, run_s: float) -> float:
        """Begins a pause at the second outage in a row, and returns its seconds. A server that is full, or refuses
        single commands, hands the batch out again at once, and nothing else would hold the station up."""
        pause_s = 0.0
        if cause is Cause.OUTAGE and not self.stopping.is_set():
            with self._lock:
                pause_s = self._pause(monotonic() - run_s, self._outages)
        if pause_s and self.reason != line:
            self.reason = line
            _log.error("station stops: an outage", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        elif pause_s:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        else:
            is_of_stop = self.stopping.is_set() and cause not in (Cause.OUTAGE, Cause.ENGINE)
            _log.warning("batch handed back", batch=lease.id, queue=lease.queue, error=line,
                         cause="stop" if is_of_stop else cause)  # fmt: skip
        return pause_s

    def _judge(
        self, lease: BatchLease, error: BaseException, line: str, cause: Cause, run_s: float, ended: Ended
    ) -> None:
        are_last = cause is Cause.ROWS and lease.size == 1 and self.report(self._few_are_left)
        is_never = is_never_of_items(error)
        may_pass = is_never or cause is Cause.ITEMS  # what works elsewhere, or at another time, proves nothing
        with self._lock:
            has_worked = self._history.successes > 0
            found = self._history.failed(lease.id, lease.root, line, may_pass=may_pass)
            if lease.others_worked and not may_pass and found.in_a_row <= _PROVEN_IN_A_ROW:
                found = replace(found, others_worked=True)  # in another process, which may be dead
            is_last_part = cause is Cause.ROWS and lease.size == 1 and lease.root != lease.id and not are_last
            is_everything = found.is_one_error and (found.in_a_row > _PATIENT_WITH or is_last_part)
            is_code = cause is Cause.CODE and (is_never or not found.others_worked)
            pause_s = 0.0
            is_lone = has_worked and found.in_a_row <= 1  # it comes back later and later, and others go on meanwhile
            if not found.others_worked and (found.in_a_row > 1 or is_code):
                self._breaker.patient_with = _PATIENT_WITH if has_worked or not is_code else 0
                pause_s = self._breaker.failed() if is_lone else self._pause(monotonic() - run_s, self._breaker)
        told = with_user_frame(line, error)
        if is_code or (is_everything and not found.others_worked):
            # A part that succeeds proves that some items work. A function that never worked is mended first, and so is
            # a table or folder.
            divides = (has_worked or not is_code) and (not is_never or getattr(error, "may_be_of_rows", False))
            divides = divides and found.in_a_row <= _SEARCHED
            ended(self._hand_back(lease, told, pause_s, divides=divides, stops=not is_lone), told)
        else:
            ended(self._failed(lease, told, cause, run_s), told)

    def _few_are_left(self) -> bool:
        """Whether there is no other item that will show that the function works: then these are to blame."""
        waiting, pending, _ = self._broker.run_many(queues.coming(self._keys, until_ms=0))
        return not waiting and pending <= _PATIENT_WITH

    def _pause(self, began: float, breaker: CircuitBreaker) -> float:
        """Seconds to pause. Batches that ran beside the one whose failure began the pause do not make it longer."""
        now = monotonic()
        if began < self._paused_until and now < self._paused_until:
            return self._paused_until - now
        pause_s = breaker.failed()
        self._paused_until = now + pause_s
        return pause_s

    def _failed(self, lease: BatchLease, line: str, cause: Cause, run_s: float) -> BatchOutcome:
        how = "failed" if cause is Cause.ITEMS else "poison" if self._station.quarantine else "blamed"
        delay_s = self.report(partial(self._delay_s, lease.failures + 1))
        fate = self.report(partial(lease.fail, line, delay_s=delay_s, fate=how))
        _log.warning("batch failed", batch=lease.id, queue=lease.queue, items=lease.size, fate=fate, error=line)
        counts = {"failed": lease.size, "dead": lease.size if fate == "dead" else 0}
        self._seen(BatchEnd(items=lease.size, counts=counts, run_s=run_s))
        return _OUTCOMES[fate]

    def _hand_back(
        self, lease: BatchLease, line: str, pause_s: float, *, divides: bool, stops: bool
    ) -> BatchOutcome:
        """Hands a batch back whose items are not to blame, or its parts. It is due again behind the pause, so another
        one runs in between: when that succeeds the function works, and the next error counts."""
        if pause_s and stops and self.reason != line:
            self.reason = line
            _log.error("station stops: the error is no item's", queue=lease.queue, batch=lease.id, items=lease.size,
                       error=line, pauses_s=pause_s)  # fmt: skip
        else:
            _log.info("batch handed back", queue=lease.queue, batch=lease.id, error=line, pauses_s=pause_s)
        if divides and lease.size > 1:
            return self._divide(lease, line)
        self.report(partial(lease.release, delay_s=_BEHIND_PAUSE * max(pause_s, _FIRST_S)))
        return "released"

    def _divide(self, lease: BatchLease, line: str) -> BatchOutcome:
        """Splits a batch with no failure counted."""
        return _OUTCOMES[self.report(partial(lease.fail, line, delay_s=0, fate="divided"))]

    def _delay_s(self, failures: int) -> float:
        return read_settings(self._broker.run(queues.settings(self._keys))).backoff.delay(failures)
