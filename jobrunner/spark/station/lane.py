"""A lane of a station's driver: a thread that runs one batch after the other to its decision.

Invariant: the outcome of a batch is reported once, by the lane that ran it, or by its driver when the lane does not
end; when both die, the driver that takes the batch next finishes it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from jobrunner.client.batches import Advance, BatchLease
from jobrunner.client.client import Client, middleware_of
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, ServerError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import BatchEnd, RunningBatch, Seen
from jobrunner.jobs.batch_record import BatchOutcome
from jobrunner.logs import SafeLogger
from jobrunner.middleware import MiddlewareStack
from jobrunner.observers import OBSERVERS, observed_batch
from jobrunner.spark.failures import Cause, error_line
from jobrunner.spark.station.background import LeaseRenewal, RollForward
from jobrunner.spark.station.batch_failures import BatchFailures, on_spark
from jobrunner.spark.station.batch_jobs import SparkJobs, group_of, title_of
from jobrunner.spark.station.batch_log import AttemptNote, BatchLog
from jobrunner.spark.station.batch_run import BatchRun, StationPlan
from jobrunner.spark.station.gathering import BatchSizes
from jobrunner.spark.station.lane_session import LaneSession

_LINKED = 128
"""Most items whose spans the span of a batch links to, when tracing is on."""
_TIMED = 32
"""Items of a batch whose waits are measured, as a sample."""
_log = SafeLogger("jobrunner.spark")


class Lane:
    """Runs the batches that its driver assigns:

    1. runs a batch to the decision while its lease is renewed, or reports its failure (see BatchFailures);
    2. hands decided batches to RollForward, also batches of a driver that died.
    """

    def __init__(
        self, station: SparkStation, client: Client, failures: BatchFailures, notes: BatchLog, sizes: BatchSizes,
        seen: Seen,
    ) -> None:  # fmt: skip
        self._station = station
        self._durability = client.settings.durability
        self._middleware = middleware_of(client)
        self._failures = failures
        self._notes = notes
        self._sizes = sizes
        self._seen = seen
        self._session = LaneSession()
        self.lease: BatchLease | None = None
        """The assigned batch; None when the lane is free."""
        self._jobs: SparkJobs | None = None
        self._idle_now = threading.Event()
        self.closing = RollForward(failures.stopping)

    @property
    def held(self) -> list[BatchLease]:
        """The batch that is rolled forward, and the current one."""
        return [lease for lease in (self.closing.lease, self.lease) if lease is not None]

    def cancel(self, timeout_s: float) -> None:
        """Cancels the Spark jobs of the current batch until it has ended, for up to `timeout_s` seconds."""
        if (jobs := self._jobs) is not None:
            jobs.cancel_until(self._idle_now, timeout_s)

    def give_back(self) -> None:
        """Releases the batch from another thread when the lane's thread does not end; the server refuses later reports
        of that thread. If the lease expired instead, the batch would count as failed."""
        if (lease := self.lease) is None or lease.state != "open":
            return
        with suppress(BatchLost, ServerError):  # it was decided meanwhile; else its lease ends
            lease.release()
            _log.warning("batch handed back", batch=lease.id, queue=lease.queue, cause="stop",
                         error="its function, or a call to Spark, did not end in time")  # fmt: skip

    def run(self, spark: SparkSession, plan: StationPlan) -> None:
        """Runs the assigned batch to its decision or failure. Raises ServerError when the outcome cannot be
        reported."""
        lease = self.lease
        assert lease is not None
        self._idle_now.clear()
        try:
            self._handle(spark, plan, lease)
        except BatchLost as error:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=str(error))
        finally:
            self.lease = None
            self._idle_now.set()

    def _handle(self, spark: SparkSession, plan: StationPlan, lease: BatchLease) -> None:
        note = self._notes.begin(lease)
        if lease.state == "open":
            spark = self._session.for_batch(spark)
            waits_ms = _waits_ms(lease)
            jobs = self._jobs = SparkJobs(spark, group_of(lease), title_of(lease))
            self._notes.filled(note, jobs)
            run = BatchRun(spark, plan, lease, self._failures.may_bury, self._failures.inner)
            on_spark[lease.id] = lease.epoch
            with LeaseRenewal(lease, self._station.lease, jobs) as keeping:
                made = self._attempt(run, jobs)
                self._jobs = None
                run_s = monotonic() - note.filled_s
                if isinstance(made, BaseException):
                    cause = self._failures.cause_of(spark, lease, made)
            if not isinstance(made, BaseException) or cause is not Cause.ENGINE:
                on_spark.pop(lease.id, None)
            if isinstance(made, BaseException):
                outcome: BatchOutcome = "lost"
                line = error_line(made)
                try:
                    if not keeping.lost:
                        outcome, line = self._failures.set_back(spark, lease, made, cause, run_s)
                finally:  # a report that the server does not take for as long as the lease lasts leaves the batch lost
                    self._failed(note, outcome, line)
                return
            note.rows, note.commit_s, note.decided_s = made, run.commit_s, monotonic()
            run_s = note.decided_s - note.filled_s
            if run.some_fit:
                self._failures.succeeded()
            self._sizes.saw(lease.size, run_s)
            self._seen(BatchEnd(items=lease.size, run_s=run_s, waits_ms=waits_ms))
        self.closing.hand(lease, self._noted(note), self._count)

    def _noted(self, note: AttemptNote) -> Callable[[], None]:
        """The function that records the end of a batch that is rolled forward. Not every such batch ran through the
        station's function."""
        if note.lease.is_dead:
            return partial(self._failed, note, "dead", note.lease.error)
        if not note.lease.size:  # a write into the queue
            return lambda: None
        return partial(self._notes.done, note)

    def _failed(self, note: AttemptNote, outcome: BatchOutcome, cause: str) -> None:
        self._notes.failed(note, outcome, cause, stops=cause == self._failures.reason)

    def _count(self, step: Advance) -> None:
        """Counts the items that a slice of a roll-forward moved, also for a batch whose driver is dead."""
        counts = {"moved": step.moved, self._station.rest: step.ended, "failed": step.dead, "dead": step.dead}
        self._seen(BatchEnd(counts=counts))

    def _attempt(self, run: BatchRun, jobs: SparkJobs) -> int | BaseException:
        """Runs a batch to its decision. Returns the number of rows, or the error, also one that is no Exception, as a
        panic of polars or deltalake or a CancelledError. But a Ctrl-C is passed on."""
        try:
            if self._durability != "none":
                run.lease.confirm()  # before a sink writes under an id that a failover could forget
            with jobs:  # an engine that died meanwhile fails here first
                return _observed(run, self._station.name, self._middleware)()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return error


def _observed(run: BatchRun, name: str, middleware: MiddlewareStack | None) -> Callable[[], int]:
    """The run of a batch within the client's middleware and the observers of this process, where there are any."""
    lease, work = run.lease, run.run
    if middleware is not None:
        batch = RunningBatch(id=lease.id, queue=lease.queue, job=name, attempt=lease.epoch, items=lease.size)
        work = partial(run.run, partial(middleware.around, f"station {name!r}", batch))
    if OBSERVERS:
        work = partial(observed_batch, lease.queue, lease.id, lease.size, partial(lease.headers, _LINKED), work)
    return work


def _waits_ms(lease: BatchLease) -> list[tuple[float, int]]:
    if lease.is_new:
        with suppress(ServerError):  # statistics must not fail the batch
            return lease.waits_ms(_TIMED)
    return []  # the server does not keep the due time of a retried batch
