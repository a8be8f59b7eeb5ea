"""Rolling decided batches forward while Spark works for the next batch: the server is busy with one, Spark with the
other."""

import threading
from collections.abc import Callable

from jobrunner.client.batches import Advance, BatchLease
from jobrunner.errors import BatchLost, ClientClosed, ServerError
from jobrunner.logs import SafeLogger

_FULL_S = 0.2
"""Pause before a target that is full is tried again."""
_OUTAGE_S = 1.0
_log = SafeLogger("jobrunner.spark")


class RollForward:
    """Rolls one decided batch at a time forward, in a thread of its own. Other workers finish what a stop interrupts.
    """

    def __init__(self, stopping: threading.Event) -> None:
        self._stopping = stopping
        self._thread: threading.Thread | None = None
        self._count: Callable[[Advance], None] = lambda _: None
        self._waits = True
        self.lease: BatchLease | None = None

    @property
    def in_hand(self) -> int:
        """Items of the batch."""
        lease = self.lease
        return 0 if lease is None else lease.size

    def hand(self, lease: BatchLease, tell: Callable[[], None], count: Callable[[Advance], None]) -> None:
        """Takes a batch over: `count` is called after every slice, and `tell` when the batch is done. Waits until the
        previous batch is done."""
        self.wait(None)
        self.lease, self._count = lease, count
        self._thread = threading.Thread(target=self._close, args=(lease, tell), name=f"jobrunner-close-{lease.id}")
        self._thread.daemon = True
        self._thread.start()

    def wait(self, timeout_s: float | None) -> None:
        """Waits until there is nothing in hand, for at most `timeout_s` seconds; None: without a limit."""
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
        """Moves one slice; pauses after an outage, and while a target is full."""
        self._waits = True
        try:
            step = lease.advance()
        except ServerError as error:
            _log.warning("decided batch waits for the server", batch=lease.id, queue=lease.queue, error=str(error))
            self._stopping.wait(_OUTAGE_S)
            return False
        self._count(step)
        if step.full is not None:
            _log.info("decided batch waits for capacity", batch=lease.id, queue=lease.queue, target=step.full)
            self._stopping.wait(_FULL_S)
            return False
        self._waits = False
        return step.done
