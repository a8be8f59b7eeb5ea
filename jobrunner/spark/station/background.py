"""Background threads of a station's driver: they renew leases and roll decided batches forward.

The lease of a batch is renewed while Spark runs its jobs; when the lease is lost, these jobs are cancelled. Decided
batches are rolled forward while Spark runs the next batch, so the server and Spark work at the same time.
"""

import threading
from collections.abc import Callable
from typing import Self

from jobrunner.client.batches import Advance, BatchLease
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, ClientClosed, JobrunnerError, ServerError
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints
from jobrunner.spark.station.batch_jobs import SparkJobs

RENEWALS_IN_A_LEASE = 3
"""Renewals in the length of a lease: two may fail before the lease ends."""
_log = SafeLogger("jobrunner.spark")


class LeaseRenewal:
    """Renews the lease of one batch from a thread while its `with` block runs:

    1. renews three times in the length of a lease; an outage of the server shorter than the lease does no harm;
    2. when the lease is lost or has expired, cancels the Spark jobs of the batch: the server now refuses the rows that
       they stage.
    """

    def __init__(self, lease: BatchLease, lease_s: float, jobs: SparkJobs) -> None:
        self.lost = False
        self._lease = lease
        self._lease_s = lease_s
        self._jobs = jobs
        self._renewed_at = monotonic()
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
        while not self._over.wait(self._lease_s / RENEWALS_IN_A_LEASE):
            if not self._renewed():
                self.lost = True
                _log.warning("batch lost", queue=self._lease.queue, batch=self._lease.id, epoch=self._lease.epoch)
                self._jobs.cancel_until(self._over)
                return

    def _renewed(self) -> bool:
        """Whether this driver still holds the batch, as far as it can know."""
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


_FULL_S = 0.2
"""Seconds before a full target is tried again."""
_OUTAGE_S = 1.0


class RollForward:
    """Rolls one decided batch at a time forward, in a thread of its own. Other workers finish what a stop interrupts,
    and what of a write finds no room.

    A lasting failure is logged once in ten seconds.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._thread: threading.Thread | None = None
        self._count: Callable[[Advance], None] = lambda _: None
        self._waits = True
        self._complaints = Complaints()
        self.lease: BatchLease | None = None

    def hand(self, lease: BatchLease, tell: Callable[[], None], count: Callable[[Advance], None]) -> None:
        """Takes over a batch once the previous batch is done. Calls `count` after every slice, and `tell` when the
        batch is done."""
        self.wait(None)
        self.lease, self._count = lease, count
        self._thread = threading.Thread(target=self._close, args=(lease, tell), name=f"jobrunner-close-{lease.id}")
        self._thread.daemon = True
        self._thread.start()

    def wait(self, timeout_s: float | None) -> None:
        """Waits until no batch is being rolled forward, for at most `timeout_s` seconds; None: without a limit."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _close(self, lease: BatchLease, tell: Callable[[], None]) -> None:
        try:
            while not self._is_done(lease):
                if self._stopping.is_set() and self._waits:
                    return
            tell()
        except BatchLost as error:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=str(error))
        except ClientClosed:  # the driver stopped meanwhile
            _log.info("decided batch is left to other workers", batch=lease.id, queue=lease.queue)
        finally:
            self.lease = None

    def _is_done(self, lease: BatchLease) -> bool:
        """Moves one slice; pauses after an outage, and while a target is full. True also for a write into the queue
        that the station reads, while that is full: to wait would keep the lane from what makes room for it."""
        self._waits = True
        try:
            step = lease.advance()
        except ServerError as error:
            if self._complaints.may_tell("server"):
                _log.warning("decided batch waits for the server", batch=lease.id, queue=lease.queue, error=str(error))
            self._stopping.wait(_OUTAGE_S)
            return False
        self._count(step)
        if step.full is not None and not lease.size:
            return True
        if step.full is not None:
            if self._complaints.may_tell(step.full):
                _log.info("decided batch waits for capacity", batch=lease.id, queue=lease.queue, target=step.full)
            self._stopping.wait(_FULL_S)
            return False
        self._waits = False
        return step.done
