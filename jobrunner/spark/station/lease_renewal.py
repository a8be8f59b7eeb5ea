"""Keeping the lease of the batch at hand while Spark works for it, however long that takes."""

import threading
from typing import Self

from jobrunner.client.batches import BatchLease
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, JobrunnerError
from jobrunner.logs import SafeLogger
from jobrunner.spark.station.jobs import SparkJobs

_RENEWALS_IN_A_LEASE = 3
_log = SafeLogger("jobrunner.spark")


class LeaseRenewal:
    """Renews the lease of one batch from a thread while its `with` block runs. Its duties:

    1. renews three times in the length of a lease; an outage of the server shorter than the lease does no harm;
    2. when the lease is lost, or has run out, cancels what Spark runs for the batch: all it stages is refused now.
    """

    def __init__(self, lease: BatchLease, lease_s: float, jobs: SparkJobs) -> None:
        self.lost = False
        self._lease = lease
        self._lease_s = lease_s
        self._jobs = jobs
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"jobrunner-lease-{lease.id}", daemon=True)

    def __enter__(self) -> Self:
        self._renewed_at = monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._over.wait(self._lease_s / _RENEWALS_IN_A_LEASE):
            if not self._renewed():
                self.lost = True
                _log.warning("batch lost", queue=self._lease.queue, batch=self._lease.id, epoch=self._lease.epoch)
                self._jobs.cancel_until(self._over)
                return

    def _renewed(self) -> bool:
        """Whether the batch is still ours, as far as one can know."""
        asked_at = monotonic()
        try:
            self._lease.renew()
        except BatchLost:
            return False
        except JobrunnerError as error:
            _log.warning("lease not renewed", batch=self._lease.id, error=str(error))
            return monotonic() - self._renewed_at < self._lease_s
        self._renewed_at = asked_at
        return True
