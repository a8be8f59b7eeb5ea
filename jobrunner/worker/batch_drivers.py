"""The drivers of a worker: they serve the queues of batch stations instead of the fetch loop."""

from collections.abc import Callable, Iterable
from functools import partial

from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.errors import DriverFailed
from jobrunner.jobs.driver import BatchEnd, CurrentBatch, Driver
from jobrunner.jobs.registry import driver_of
from jobrunner.logs import SafeLogger

_log = SafeLogger("jobrunner.drivers")


class BatchDrivers:
    """The drivers of these queues, created when they are started. A driver that fails to start stops the others.

    `seen` is called with each queue and the end of each of its batches.
    """

    def __init__(self, client: Client, queues: Iterable[str], seen: Callable[[str, BatchEnd], None]) -> None:
        self._client = client
        self._seen = seen
        self.queues = [queue for queue in queues if driver_of(queue) is not None]
        self._running: dict[str, Driver] = {}

    def start(self) -> None:
        """Starts them one by one. Raises what a driver raises."""
        for queue in self.queues:
            make = driver_of(queue)
            assert make is not None, "a driver was forgotten while its worker started"
            driver = make(self._client, partial(self._seen, queue))
            driver.start()
            self._running[queue] = driver

    def be_quiet(self, quiet: bool) -> None:
        """Lets none of them take anything new, or all of them again."""
        for queue, driver in self._running.items():
            try:
                driver.be_quiet(quiet)
            except Exception:
                _log.exception("a driver failed on a command to rest or go on", queue=queue)

    def ask_to_stop(self) -> None:
        """Lets none of them take anything new."""
        for queue, driver in self._running.items():
            try:
                driver.ask_to_stop()
            except Exception:
                _log.exception("a driver cannot be asked to stop", queue=queue)

    def stop(self, ends: float) -> None:
        """Stops all of them, which together have until then (monotonic clock)."""
        self.ask_to_stop()
        for queue, driver in self._running.items():
            try:
                driver.stop(max(ends - monotonic(), 0.0))
            except Exception:
                _log.exception("a driver did not stop as it should", queue=queue)
        self._running.clear()

    @property
    def in_hand(self) -> int:
        """Items they hold."""
        return sum(driver.in_hand for driver in list(self._running.values()))

    @property
    def running(self) -> list[tuple[str, CurrentBatch]]:
        """The batches they work for, with their queues."""
        return [(queue, batch) for queue, driver in list(self._running.items()) for batch in driver.running]

    @property
    def failure(self) -> DriverFailed | None:
        """Why one of them cannot go on, if one cannot."""
        for queue, driver in list(self._running.items()):
            if (cause := driver.failure) is not None:
                failed = DriverFailed(f"the driver of queue {queue!r} cannot go on: {type(cause).__name__}: {cause}")
                failed.__cause__ = cause
                return failed
        return None
