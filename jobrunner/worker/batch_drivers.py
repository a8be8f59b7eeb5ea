"""The batch drivers of a worker. A driver reads a queue in whole batches, in place of the fetch loop."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.shards import WITHOUT
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import shard_name, whole_queue
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.errors import DriverFailed, InvalidOption
from jobrunner.jobs.batch_driver import BatchEnd, CurrentBatch, Driver
from jobrunner.jobs.registry import driver_of
from jobrunner.logs import SafeLogger
from jobrunner.worker.declarations import align_queue
from jobrunner.worker.shards import ServedShards, read_shard_counts

_log = SafeLogger("jobrunner.drivers")


class BatchDrivers:
    """The drivers of these queues, created when they are started. A driver that fails to start stops the others.

    Threads may start and stop them at the same time, and start those of partitions that are added. Invariant: a driver
    that was started is stopped. `seen` is called with each queue and the end of each of its batches.
    """

    def __init__(self, client: Client, queues: Iterable[str], seen: Callable[[str, BatchEnd], None]) -> None:
        self._client = client
        self._seen = seen
        self.queues = [queue for queue in queues if driver_of(queue) is not None]
        self._running: dict[str, Driver] = {}
        self._lock = threading.Lock()
        self._starting = threading.RLock()  # a signal handler may stop the worker in the thread that starts it
        """Held while a driver starts, for seconds: a stop waits for that, a command to rest does not."""
        self._takes_more = self._is_quiet = False
        self.stopping = threading.Event()
        """Set when a stop is requested: no more of them are started."""
        self.shards = ServedShards(keys_of(client), dict.fromkeys(self.queues, 1), [WITHOUT] * len(self.queues))
        """A batch is filled from one slot, so every shard has a driver of its own."""

    def check(self, broker: Broker, keys: Keys) -> None:
        """Asks for the shards of the queues. Raises InvalidOption for a queue with partitions whose driver cannot serve
        them."""
        found = read_shard_counts(broker, keys, self.queues)
        for queue, counts in zip(self.queues, found, strict=True):
            if counts.partitions > 1 and driver_of(shard_name(queue, 1)) is None:
                raise InvalidOption(
                    f"queue {queue!r} has {counts.partitions} partitions and is read in batches, which are filled from "
                    f"one slot: set it back with configure(partitions=1), or let jobs read it one task at a time"
                )
        self.shards = ServedShards(keys, dict.fromkeys(self.queues, 1), found)
        self.shards.on_change = self._serve_more

    def start(self) -> None:
        """Starts them one by one, until a stop is requested. Raises what a driver raises."""
        for shard in self.shards.weights:
            self._start(shard)
            if self.stopping.is_set():
                return
            if shard in self.queues and shard_name(shard, 1) in self.shards.weights:
                # The first driver wrote what its station declares.
                align_queue(broker_of(self._client), keys_of(self._client), shard)
        self._takes_more = True
        self._serve_more()  # those that were added by now

    def _start(self, shard: str) -> None:
        """Starts the driver of a shard, unless it has one or a stop was requested."""
        with self._starting:
            if self.stopping.is_set() or shard in self._running:
                return
            make = driver_of(shard)
            assert make is not None, "a driver was forgotten while its worker started"
            driver = make(self._client, partial(self._seen, whole_queue(shard)))
            if was_quiet := self._is_quiet:
                driver.be_quiet(True)
            driver.start()
            with self._lock:
                if not self.stopping.is_set():
                    self._running[shard] = driver
                    if self._is_quiet != was_quiet:  # the command came while it started
                        driver.be_quiet(self._is_quiet)
                    return
            driver.stop(0.0)

    def _serve_more(self) -> None:
        self.shards.has_changed = False
        if not self._takes_more:
            return
        for shard in self.shards.weights:
            with _logged(shard, "a partition has no driver: it is served when the worker starts again"):
                self._start(shard)

    def be_quiet(self, quiet: bool) -> None:
        """Lets none of them take anything new, or all of them again."""
        with self._lock:
            self._is_quiet = quiet
            for queue, driver in self._running.items():
                with _logged(queue, "a driver failed on a command to rest or go on"):
                    driver.be_quiet(quiet)

    def ask_to_stop(self) -> None:
        """Lets none of them take anything new, and starts no more of them. Waits for one that is just starting."""
        self.stopping.set()
        with self._starting:
            running = list(self._running.items())
        for queue, driver in running:
            with _logged(queue, "a driver cannot be asked to stop"):
                driver.ask_to_stop()

    def stop(self, ends: float) -> None:
        """Stops all of them, which together have until then (monotonic clock)."""
        self.ask_to_stop()
        for queue, driver in self._running.items():
            with _logged(queue, "a driver did not stop as it should"):
                driver.stop(max(ends - monotonic(), 0.0))
        self._running.clear()

    @property
    def in_hand(self) -> int:
        """Items they hold."""
        return sum(driver.in_hand for driver in list(self._running.values()))

    @property
    def running(self) -> list[tuple[str, CurrentBatch]]:
        """The batches they work for, with their queues."""
        found = list(self._running.items())
        return [(whole_queue(shard), batch) for shard, driver in found for batch in driver.running]

    @property
    def failure(self) -> DriverFailed | None:
        """Why one of them cannot go on, if one cannot."""
        for queue, driver in list(self._running.items()):
            if (cause := driver.failure) is not None:
                failed = DriverFailed(f"the driver of queue {queue!r} cannot go on: {type(cause).__name__}: {cause}")
                failed.__cause__ = cause
                return failed
        return None


@contextmanager
def _logged(queue: str, event: str) -> Iterator[None]:
    """Logs an error of the driver of a queue, which must not keep the others from what they are told."""
    try:
        yield
    except Exception:
        _log.exception(event, queue=queue)
