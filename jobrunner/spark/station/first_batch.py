"""Gathers the first batch of a driver while Spark starts, to use seconds in which the server would idle.

Invariants: a lane gets the batch once, or its items return to the queue: as soon as the driver takes no batch any more,
or after a minute, as a session that hangs must not keep items from other processes. No batch is gathered while the
queue has an open one, so a process that dies each time Spark starts does not hold more and more items.
"""

import threading
from collections.abc import Callable

from jobrunner.client.batches import BatchLease
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, JobrunnerError, ServerError
from jobrunner.logs import SafeLogger
from jobrunner.spark.station.background import RENEWALS_IN_A_LEASE

_LONGEST_S = 60.0
_log = SafeLogger("jobrunner.spark")


class FirstBatch:
    """Gathers and holds the first batch, in a thread:

    1. lets `gather` take a batch into `lease`;
    2. renews the lease until a lane takes the batch over;
    3. calls `give_back` when `takes` returns False before that, or after a minute.
    """

    def __init__(
        self,
        gather: Callable[["FirstBatch"], None],
        give_back: Callable[[BatchLease], object],
        takes: Callable[[], bool],
        lease_s: float,
    ) -> None:
        self.lease: BatchLease | None = None
        """The batch that is held or being gathered."""
        self._gather = gather
        self._give_back = give_back
        self._takes = takes
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobrunner-first-batch", daemon=True)

    def start(self) -> None:
        """Begins to gather."""
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread call `takes` again."""
        self._woken.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until no batch is held any more, for at most `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def hand_over(self) -> BatchLease | None:
        """Returns the batch with a renewed lease; None when there is none, or it was lost. On ServerError the batch is
        kept."""
        with self._lock:
            if (lease := self._renewed()) is not None:
                lease.taken_s = monotonic()  # the wait for Spark does not count as filling time
                self.lease = None
                self._woken.set()
            return lease

    def _run(self) -> None:
        try:
            self._gather(self)
        except JobrunnerError:  # an unreachable server, say: the lanes meet the error, too, and retry
            self.lease = None
            return
        ends = monotonic() + _LONGEST_S
        while True:
            with self._lock:
                lease = self.lease
                if lease is None:
                    return
                if not self._takes() or monotonic() >= ends:
                    self.lease = None
                    break
                self._renew_if_possible()
            self._woken.wait(min(self._lease_s / RENEWALS_IN_A_LEASE, _LONGEST_S))
            self._woken.clear()
        try:
            self._give_back(lease)
        except JobrunnerError as error:
            _log.warning("batch not given back", batch=lease.id, queue=lease.queue, error=str(error))

    def _renew_if_possible(self) -> None:
        try:
            self._renewed()
        except ServerError as error:
            assert self.lease is not None
            _log.warning("lease not renewed", batch=self.lease.id, error=str(error))

    def _renewed(self) -> BatchLease | None:
        if self.lease is not None:
            try:
                self.lease.renew()
            except BatchLost as error:
                _log.warning("batch lost", batch=self.lease.id, queue=self.lease.queue, error=str(error))
                self.lease = None
        return self.lease
