"""Reports of batches that were not processed, and what the server knows about their items. Each call is repeated in an
outage, as a lease that ends without a report counts against the items.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import BatchLease
from jobrunner.client.settings_hash import read_settings
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, ServerError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.jobs.batch_driver import BatchEnd, Seen
from jobrunner.jobs.batch_record import BatchOutcome
from jobrunner.logs import SafeLogger
from jobrunner.spark.failures import Cause
from jobrunner.spark.station.failure_history import PATIENT_WITH
from jobrunner.spark.station.members import new_nonce

_AGAIN_S = 0.2
"""Pause before a report that met an outage is sent again."""
_PROBE = (b"probe", b"", b"", b'{"new":1}')
_OUTCOMES: Mapping[str, BatchOutcome] = {"again": "failed", "split": "split", "dead": "dead"}
"""Result of `BatchLease.fail` → outcome."""
_log = SafeLogger("jobrunner.spark")
T = TypeVar("T")


class BatchReports:
    """The reports of one station. Thread-safe. `over` ends the wait for a server that is away."""

    def __init__(
        self, station: SparkStation, broker: Broker, keys: QueueKeys, seen: Seen, over: threading.Event
    ) -> None:  # fmt: skip
        self._station = station
        self._broker = broker
        self._keys = keys
        self._seen = seen
        self._over = over

    def send(self, report: Callable[[], T]) -> T:
        """Calls `report` and returns its result. Repeats the call in an outage while the lease may last."""
        ends = monotonic() + self._station.lease
        while True:
            try:
                return report()
            except ServerError:
                if monotonic() >= ends or self._over.wait(_AGAIN_S):
                    raise

    def failed(self, lease: BatchLease, line: str, cause: Cause, run_s: float) -> BatchOutcome:
        """Counts a failure against the items of a batch."""
        delay_s = self.send(partial(self._delay_s, lease.failures + 1))
        fate = self.send(partial(lease.fail, line, delay_s=delay_s, fate=self._fate(cause)))
        _log.warning("batch failed", batch=lease.id, queue=lease.queue, items=lease.size, fate=fate, error=line)
        counts = {"failed": lease.size, "dead": lease.size if fate == "dead" else 0}
        self._seen(BatchEnd(items=lease.size, counts=counts, run_s=run_s))
        return _OUTCOMES[fate]

    def divide(self, lease: BatchLease, line: str) -> BatchOutcome:
        """Splits a batch without counting a failure."""
        return _OUTCOMES[self.send(partial(lease.fail, line, delay_s=0, fate="divided"))]

    def release(self, lease: BatchLease, delay_s: float) -> BatchOutcome:
        """Hands a batch back without counting a failure, due again after `delay_s` seconds."""
        self.send(partial(lease.release, delay_s=delay_s))
        return "released"

    def lost(self, lease: BatchLease, line: str) -> BatchOutcome:
        """Leaves a batch to its other holder. It has none when a sink refuses the batch because the server forgot that
        the batch was split, or its epoch: then the batch is split again, as the sink knows its parts. Otherwise its
        lease would end without a report again and again, until its items had used up their attempts."""
        if lease.size > 1:
            with suppress(BatchLost):
                outcome = self.divide(lease, line)
                _log.warning("batch split: its sink has parts of it", batch=lease.id, queue=lease.queue, error=line)
                return outcome
        _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=line)
        return "lost"

    def few_are_left(self) -> bool:
        """Whether the queue has no other items that could show that the function works: then these are to blame."""
        return self.send(self._few_are_left)

    def is_final(self, lease: BatchLease, cause: Cause) -> bool:
        """Whether the single item of a batch dies if a failure of this cause counts, while more items come."""
        return self.send(partial(self._is_final, lease, cause))

    def _few_are_left(self) -> bool:
        waiting, pending, _ = self._broker.run_many(queues.coming(self._keys, until_ms=0))
        return not waiting and pending <= PATIENT_WITH

    def _is_final(self, lease: BatchLease, cause: Cause) -> bool:
        is_last = lease.size == 1 and (self._fate(cause) == "poison" or lease.is_at_last_attempt())
        return is_last and not self._few_are_left()

    def _fate(self, cause: Cause) -> str:
        return "failed" if cause is Cause.ITEMS else "poison" if self._station.quarantine else "blamed"

    def _delay_s(self, failures: int) -> float:
        return read_settings(self._broker.run(queues.settings(self._keys))).backoff.delay(failures)


def takes_rows(lease: BatchLease) -> bool:
    """Whether the server accepts a row for this batch. The row is removed when the batch is released."""
    try:
        lease.stage(new_nonce("probe."), _PROBE, after=0)
    except (ServerError, BatchLost):
        return False
    return True
