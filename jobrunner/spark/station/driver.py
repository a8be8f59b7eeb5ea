"""The driver of a station on Spark: takes batch after batch from the queue, runs each to its decision, and has what was
decided rolled forward. Failed batches are handled in `failures`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.server import confirmation
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.notifier import WakeListener
from jobrunner.client.batch_recovery import MemberLists, reclaim_items
from jobrunner.client.batches import Advance, Batches, BatchLease
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of, middleware_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import queue_names
from jobrunner.clock import monotonic, unix_ms
from jobrunner.errors import BatchLost, JobrunnerError, ServerError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.registry import BatchEnd, CurrentBatch, RunningBatch, Seen
from jobrunner.logs import SafeLogger
from jobrunner.loop import Loop
from jobrunner.middleware import OBSERVERS, MiddlewareStack, observed_batch
from jobrunner.spark.failures import BatchFailures
from jobrunner.spark.payloads import check_plain
from jobrunner.spark.session import ship_package, spark_session
from jobrunner.spark.station.background import LeaseRenewal, RollForward, SparkJobs
from jobrunner.spark.station.batch_run import BatchRun, StationPlan, plan_of

_IDLE_S = 1.0
"""Longest pause between two polls of an idle queue; a wake-up ends it."""
_TOP_UPS = 10
"""Polls for more items while a batch waits to be full."""
_CANCEL_S = 10.0
"""Time for the current batch to end after it was cancelled."""
_SLICE_S = 1.0
"""Time for a slice of rolling forward that is under way when the driver ends."""
_LINKED = 128
"""Items whose spans the span of a batch links to, when it is traced."""
_TIMED = 32
"""Items of a batch whose waits are measured, as a sample of all."""
_RECLAIM_S = 3.0
"""Longest search of a large server for items that an earlier version left, before the first batch."""
_STARTING = threading.Lock()
"""Stations of one process start its session together."""
_log = SafeLogger("jobrunner.spark")


def build_driver(station: SparkStation, client: Client, seen: Seen = lambda _: None) -> "StationDriver":
    """The driver of a declared station or sink, for a worker to start; `seen` is called with the result of each batch.
    """
    return StationDriver(station, client, seen)


class StationDriver:
    """Serves one queue in a thread of its own, on the session of this process. Its duties:

    1. takes a batch: one that is due again, else a new one, which it fills for `max_wait` seconds;
    2. runs it to the decision while its lease is renewed, or reports its failure (see BatchFailures);
    3. has decided batches rolled forward meanwhile, also those of a driver that died (see RollForward);
    4. pauses longer and longer while batch after batch fails, so that an outage behind a sink kills no item;
    5. ends the worker's process when the engine is gone;
    6. while it is quiet, finishes the current batch and takes no other.
    """

    def __init__(self, station: SparkStation, client: Client, seen: Seen) -> None:
        self._lease: BatchLease | None = None
        self._quiet = False
        self._seen = seen
        self._station = station
        self._client = client
        check_plain(client.settings, "a station on Spark")
        self._keys = keys_of(client).queue(station.queue)
        self._broker = Broker(
            endpoint_of(client), retry_timeout_s=0, now_ms=broker_of(client).now_ms,
            greeting=server_calls.check_format(keys_of(client)),
            confirmation=confirmation(client.settings.durability, client.settings.durability_timeout),
        )  # fmt: skip
        self._batches = Batches(self._broker, self._keys)
        self._hints = WakeListener(self._broker, [self._keys])
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._idle_now = threading.Event()
        self._failures = BatchFailures(
            station, self._broker, self._keys, seen, stopping=self._stopping, over=self._over
        )
        self._closing = RollForward(self._stopping)
        self._jobs: SparkJobs | None = None
        self._loop = Loop(f"spark-{station.queue}", self._turn)
        self._spark: SparkSession | None = None
        self._plan: StationPlan | None = None
        self._middleware = middleware_of(client)
        self._rest = station.rest

    @property
    def failure(self) -> BaseException | None:
        """The error that this process does not survive, once there is one."""
        return self._failures.failure

    @property
    def in_hand(self) -> int:
        """Items it holds, with those that are being rolled forward."""
        lease = self._lease
        return (0 if lease is None else lease.size) + self._closing.in_hand

    @property
    def running(self) -> tuple[CurrentBatch, ...]:
        """The current batch, and the one that is being rolled forward."""
        held = [lease for lease in (self._closing.lease, self._lease) if lease is not None]
        ahead_ms = unix_ms() - monotonic() * 1000
        return tuple(
            CurrentBatch(id=lease.id, attempt=lease.epoch, items=lease.size, began_ms=lease.taken_s * 1000 + ahead_ms)
            for lease in {lease.id: lease for lease in held}.values()
        )

    def start(self) -> None:
        """Starts the thread; its first turn starts the session when there is none."""
        self._loop.start()

    def be_quiet(self, quiet: bool) -> None:
        """Takes no batch while it is quiet; the current one is no longer filled up, and runs to its end."""
        self._quiet = quiet
        self._loop.wake()

    def ask_to_stop(self) -> None:
        """Takes nothing new from now on."""
        self._stopping.set()
        self._loop.wake()

    def stop(self, grace_s: float) -> None:
        """Ends within about `grace_s` seconds; a batch that is not decided by then is released."""
        ends = monotonic() + grace_s
        self.ask_to_stop()
        if not self._loop.stop(grace_s) and (jobs := self._jobs) is not None:
            jobs.cancel_until(self._idle_now, _CANCEL_S)
            self._loop.stop(_CANCEL_S)
        self._closing.wait(max(ends - monotonic(), 0.0))
        self._over.set()
        self._hints.close()
        self._broker.close()
        self._closing.wait(_SLICE_S)

    def _turn(self) -> float:
        if self._stopping.is_set() or self._quiet or self.failure is not None:
            return _IDLE_S
        if self._spark is None and not self._begin():
            return _IDLE_S
        assert self._spark is not None
        return 0.0 if self.step(self._spark) else self._idle()

    def _begin(self) -> bool:
        """Joins the session of this process, or starts it. Returns False when it cannot: the process must be replaced
        then."""
        try:
            with _STARTING:
                spark = spark_session(self._station.pipeline)
                ship_package(spark)
                self._plan = plan_of(self._station, self._client)
        except Exception as error:  # a JVM that does not start, or is gone, fails in many ways
            self._failures.give_up(error)
            return False
        self._spark = spark
        _put_back_left_items(self._broker, keys_of(self._client), self._keys)
        return True

    def step(self, spark: SparkSession) -> bool:
        """Runs one batch, if there is one. Raises ServerError when the server cannot be asked for one."""
        if self._plan is None:
            self._plan = plan_of(self._station, self._client)
        lease = self._batches.take(self._station.batch, lease_s=self._station.lease)
        if lease is None:
            return False
        self._lease = lease
        self._idle_now.clear()
        try:
            self._handle(spark, self._plan, lease)
        except BatchLost as error:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=str(error))
        finally:
            self._lease = None
            self._idle_now.set()
        return True

    def _handle(self, spark: SparkSession, plan: StationPlan, lease: BatchLease) -> None:
        began = filled = monotonic()
        rows = 0
        if lease.state == "open":
            self._fill(lease)
            if self._stopping.is_set() and lease.is_new:
                self._failures.report(lease.dissolve)
                return
            filled, waits_ms = monotonic(), _waits_ms(lease)
            jobs = self._jobs = SparkJobs(spark, f"jobrunner-{lease.id}-{lease.epoch}")
            with LeaseRenewal(lease, self._station.lease, jobs) as keeping:
                made = self._attempt(BatchRun(spark, plan, lease), jobs)
            self._jobs = None
            if isinstance(made, BaseException):
                if not keeping.lost:
                    self._failures.set_back(spark, lease, made, monotonic() - filled)
                return
            rows = made
            self._failures.has_worked = True
            self._seen(BatchEnd(items=lease.size, run_s=monotonic() - filled, waits_ms=waits_ms))
        if self._failures.in_a_row:
            self._failures.succeeded()
        self._closing.hand(lease, partial(_log_done, lease, rows, began, filled, monotonic()), self._count)

    def _count(self, step: Advance) -> None:
        """Counts what a slice of rolling forward did, also for a batch whose driver is dead."""
        counts = {"moved": step.moved, self._rest: step.ended, "failed": step.dead, "dead": step.dead}
        self._seen(BatchEnd(counts=counts))

    def _fill(self, lease: BatchLease) -> None:
        """Fills up a new batch for up to `max_wait` seconds."""
        station = self._station
        if not lease.is_new or lease.size >= station.batch:
            return
        ends = monotonic() + station.max_wait
        while (left := ends - monotonic()) > 0 and lease.size < station.batch:
            if self._quiet or self._stopping.wait(min(left, max(station.max_wait / _TOP_UPS, 0.02), station.lease / 3)):
                return
            try:
                lease.renew()
                self._batches.top_up(lease, station.batch - lease.size)
            except ServerError:  # the attempt meets the outage, too, and releases the batch
                return

    def _attempt(self, run: BatchRun, jobs: SparkJobs) -> int | BaseException:
        """Runs a batch to its decision. Returns the number of rows, or what went wrong."""
        lease = run.lease
        try:
            if self._client.settings.durability != "none":
                lease.confirm()  # before a sink writes under an id that a failover could forget
            with jobs:  # the first thing that an engine which died meanwhile refuses
                return _observed(run, self._station.name, self._middleware)()
        except (Exception, SystemExit) as error:
            return error

    def _idle(self) -> float:
        try:
            if self._hints.wait(_IDLE_S) and self._quiet:
                self._broker.run(queues.wake(self._keys))  # the wake-up is for another worker
        except ServerError:
            return _IDLE_S
        return 0.0


def _put_back_left_items(broker: Broker, keys: Keys, queue: QueueKeys) -> None:
    """Puts items back in line that an earlier version left behind. The leader does so, too, and to the end."""
    try:
        items = reclaim_items(broker, queue)
        lists = MemberLists(broker, keys, run_operation(broker, queue_names(keys)), queue.tag)
        lists.run(_RECLAIM_S)
    except JobrunnerError as error:  # a user who may not SCAN, say: no reason not to work
        _log.warning("cannot look for items of no open batch", queue=queue.name, error=str(error))
        return
    if items + lists.items:
        _log.warning("items of no open batch put back in line", queue=queue.name, items=items + lists.items)


def _observed(run: BatchRun, name: str, middleware: MiddlewareStack | None) -> Callable[[], int]:
    """The run of a batch within the middleware of the client and what observes this process, where there are any."""
    lease, work = run.lease, run.run
    if middleware is not None:
        batch = RunningBatch(id=lease.id, queue=lease.queue, job=name, attempt=lease.epoch, items=lease.size)
        work = partial(middleware.around, f"station {name!r}", batch, work)
    if OBSERVERS:
        work = partial(observed_batch, lease.queue, lease.id, lease.size, partial(lease.headers, _LINKED), work)
    return work


def _waits_ms(lease: BatchLease) -> list[tuple[float, int]]:
    if lease.is_new:
        with suppress(ServerError):  # statistics hold nothing up
            return lease.waits_ms(_TIMED)
    return []  # the time at which a batch that comes back was due is not kept


def _log_done(lease: BatchLease, rows: int, began: float, filled: float, decided: float) -> None:
    now = monotonic()
    seconds = {"take_s": filled - began, "run_s": decided - filled, "advance_s": now - decided}
    lengths = {name: round(value, 3) for name, value in seconds.items()}
    per_s = round(lease.size / max(now - began, 0.001))
    _log.info("batch done", queue=lease.queue, batch=lease.id, epoch=lease.epoch, items=lease.size, rows=rows,
              per_s=per_s, **lengths)  # fmt: skip
