"""The driver of a station on Spark: its lanes take batch after batch from the queue and run them concurrently.

`batch_source` takes batches, `gathering` decides when a new batch begins, `lane` runs one batch, and `batch_failures`
handles failed batches.
"""

import threading
from contextlib import suppress
from functools import partial

from pyspark.sql import SparkSession

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.server import confirmation
from jobrunner.broker.notifier import WakeListener
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import Client, broker_of, endpoint_of, keys_of
from jobrunner.clock import monotonic, unix_ms
from jobrunner.errors import ServerError, StationError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import CurrentBatch, Seen
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints, Loop
from jobrunner.spark.connect_watch import end_retries, watch_connection
from jobrunner.spark.payloads import check_plain
from jobrunner.spark.running import running_session, silence_query_contexts
from jobrunner.spark.session import spark_session
from jobrunner.spark.station.batch_failures import BatchFailures
from jobrunner.spark.station.batch_log import BatchLog
from jobrunner.spark.station.batch_reports import BatchReports
from jobrunner.spark.station.batch_run import StationPlan, plan_of
from jobrunner.spark.station.batch_source import BatchSource
from jobrunner.spark.station.lane import Lane
from jobrunner.spark.ui_names import log_web_ui

_IDLE_S = 1.0
"""Longest pause between two polls of an idle queue; a wake-up ends it."""
_CANCEL_S = 10.0
"""Time for the current batches to end after they were cancelled."""
_STOP_S = 0.5
"""Seconds to wait for a stop after Spark failed to start, as a SIGTERM to the whole process group may end Java first.
Also the wait for a lane that starts Spark when the driver stops: it holds no batch, and Java takes seconds, even after
a Ctrl-C."""
_SLICE_S = 1.0
"""Seconds for the current slice of a roll-forward when the driver ends."""
_STARTING = threading.Lock()
"""Held while a station starts the session, so the stations of one process share one start."""
_log = SafeLogger("jobrunner.spark")


class StationDriver:
    """Serves the queue of a station or sink on the session of this process; calls `seen` with the result of each batch:

    1. runs up to `parallel` batches at once, each in a lane, a thread of its own;
    2. pauses longer and longer while batch after batch fails, so that an outage of a sink's system kills no item;
    3. ends the worker's process when the engine is gone;
    4. while quiet, finishes the current batches and takes no other.
    """

    def __init__(self, station: SparkStation, client: Client, seen: Seen = lambda _: None) -> None:
        self._quiet = self._has_begun = False
        self._station = station
        self._client = client
        check_plain(client.settings, "a station on Spark")
        keys = keys_of(client)
        self._keys = keys.queue(station.queue)
        self._broker = Broker(
            endpoint_of(client), retry_timeout_s=0, now_ms=broker_of(client).now_ms,
            greeting=server_calls.check_format(keys),
            confirmation=confirmation(client.settings.durability, client.settings.durability_timeout),
        )  # fmt: skip
        self._batches = Batches(self._broker, self._keys)
        self._hints = WakeListener(self._broker, [self._keys])
        self._stopping = threading.Event()
        self._over = threading.Event()
        reports = BatchReports(station, self._broker, self._keys, seen, self._over)
        self._failures = BatchFailures(station.queue, reports, self._stopping)
        self._notes = BatchLog(station, client, seen)
        above = [keys.queue(name) for name in station.link.above()]
        self._source = BatchSource(station, self._batches, above, self._failures, self.takes)
        self._spark: SparkSession | None = None
        self._plan: StationPlan | None = None
        complaints = Complaints()
        make = partial(Lane, station, client, self._failures, self._notes, self._source.sizes, seen)
        self._lanes = [make() for _ in range(station.parallel)]
        self._loops = [
            Loop(f"spark-{station.queue}-{number}", partial(self._turn, lane), complaints)
            for number, lane in enumerate(self._lanes)
        ]

    def takes(self) -> bool:
        """Whether the driver takes batches: it is neither quiet, nor asked to stop, nor broken."""
        return not (self._quiet or self._stopping.is_set() or self.failure is not None)

    @property
    def failure(self) -> BaseException | None:
        """The error for which the process must be replaced; None without one."""
        if self._failures.failure is None and any(loop.has_died for loop in self._loops):
            return StationError("a thread that runs its batches has ended")
        return self._failures.failure

    @property
    def in_hand(self) -> int:
        """The number of items in current batches and in batches that are being rolled forward."""
        return sum(lease.size for lease in self._held())

    @property
    def running(self) -> tuple[CurrentBatch, ...]:
        """The current batches, and those that are being rolled forward."""
        ahead_ms = unix_ms() - monotonic() * 1000
        return tuple(
            CurrentBatch(id=lease.id, attempt=lease.epoch, items=lease.size, began_ms=lease.taken_s * 1000 + ahead_ms)
            for lease in self._held()
        )

    def _held(self) -> list[BatchLease]:
        """All leases, each once, also while a lane hands a batch over to be rolled forward."""
        first = self._source.first.lease
        held = ([] if first is None else [first]) + [lease for lane in self._lanes for lease in lane.held]
        return list({lease.id: lease for lease in held}.values())

    def start(self) -> None:
        """Starts the lanes. The first turn of one starts a session if there is none; a batch is gathered meanwhile."""
        with suppress(Exception):  # PySpark lacks a part, say: the first turn of a lane ends with that error
            if running_session() is None:
                self._source.first.start()
        for loop in self._loops:
            loop.start()

    def be_quiet(self, quiet: bool) -> None:
        """Makes the driver quiet: it takes no batch, and no longer fills up the current one, which runs to its end."""
        self._quiet = quiet
        self._wake()

    def ask_to_stop(self) -> None:
        """Takes no new batches from now on."""
        self._stopping.set()
        self._hints.leave()
        self._wake()

    def stop(self, grace_s: float) -> None:
        """Stops the driver within about `grace_s` seconds; a batch that is not decided by then is released."""
        spark_starts = self._has_begun and self._spark is None
        ends = monotonic() + (min(grace_s, _STOP_S) if spark_starts else grace_s)
        given_back_by = monotonic() + min(grace_s, _CANCEL_S)
        self.ask_to_stop()
        late = [lane for lane, loop in zip(self._lanes, self._loops, strict=True) if not loop.stop(_left(ends))]
        cancelled = [threading.Thread(target=lane.cancel, args=(_CANCEL_S,), daemon=True) for lane in late]
        cancelled_by = monotonic() + (_STOP_S if spark_starts else _CANCEL_S)
        for thread in cancelled:
            thread.start()
        for thread in cancelled:  # an unreachable Spark Connect server blocks the call for ten minutes
            thread.join(_left(cancelled_by))
        ended = [loop.stop(_left(cancelled_by)) for loop in self._loops]
        for lane, has_ended in zip(self._lanes, ended, strict=True):
            if not has_ended:
                lane.give_back()
        if self._spark is not None and not (all(ended) and self.failure is None):
            end_retries(self._spark)
        # The release calls only the server, which may be slow; otherwise the items would wait for the lease to expire,
        # which costs an attempt.
        self._source.first.wait(_left(max(cancelled_by, given_back_by)))
        for lane in self._lanes:
            lane.closing.wait(_left(ends))
        self._over.set()
        self._hints.close()
        self._broker.close()
        for lane in self._lanes:
            lane.closing.wait(_SLICE_S)
        self._notes.close()

    def step(self, spark: SparkSession) -> bool:
        """Runs one batch, if there is one. Raises ServerError when the server cannot be reached."""
        if self._plan is None:
            self._plan = plan_of(self._station, self._client)
        self._failures.wait_out_pause()
        lane = self._lanes[0]
        with self._source.turn():
            self._source.take(lane)
        if lane.lease is None:
            return False
        lane.run(spark, self._plan)
        return True

    def _turn(self, lane: Lane) -> float:
        try:
            return self._serve(lane)
        except Exception:
            raise
        except BaseException as error:  # it would end the thread, and the queue would not be served
            self._failures.give_up(error)
            return _IDLE_S

    def _serve(self, lane: Lane) -> float:
        if not self.takes() or (self._spark is None and not self._begin()):
            return _IDLE_S
        assert self._spark is not None and self._plan is not None  # noqa: PT018  both were made by `_begin`
        self._failures.wait_out_pause()
        with self._source.turn() as is_own:
            if not self.takes():
                return 0.0
            if not is_own:
                self._source.take_due(lane)
            else:
                self._source.take(lane)
                if lane.lease is None:
                    return self._idle()
        if lane.lease is not None:
            lane.run(self._spark, self._plan)
        return 0.0

    def _begin(self) -> bool:
        """Joins or starts the session of this process. Returns False on failure: the process must be replaced then."""
        self._has_begun = True
        with _STARTING:
            if self._spark is not None:
                return True
            if self._stopping.is_set() or self.failure is not None:  # meanwhile, or another lane's
                return False
            try:
                spark = spark_session(self._station.pipeline)
                self._plan = plan_of(self._station, self._client)
            except Exception as error:  # a JVM that does not start, or has ended, fails in many ways
                if self._stopping.wait(_STOP_S):
                    _log.info("Spark did not start before the stop", queue=self._station.queue)
                    return False
                self._failures.give_up(error)
                self._source.first.wake()
                return False
            if self._stopping.is_set():
                return False
            self._spark = spark
        silence_query_contexts()
        log_web_ui(spark)
        watch_connection(spark)
        return True

    def _idle(self) -> float:
        try:
            if self._hints.wait(_IDLE_S) and self._quiet:
                self._broker.run(queues.wake(self._keys))  # the wake-up is for another worker
        except ServerError:
            return _IDLE_S
        return 0.0

    def _wake(self) -> None:
        self._source.wake()
        for loop in self._loops:
            loop.wake()


def _left(ends: float) -> float:
    return max(ends - monotonic(), 0.0)
