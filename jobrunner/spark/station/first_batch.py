"""The first batch of a driver, gathered while Spark starts: that takes some seconds, in which the server idles.

Invariants: a lane gets it once, or it goes back into line: as soon as the driver takes no batch any more, or after a
minute, as a session that hangs must not keep items from other processes. None is gathered while the queue has an open
one, so a process that dies each time Spark starts does not hold more and more items.
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
    """Its duties, in a thread of its own:

    1. lets `gather` take a batch into `lease`;
    2. renews the lease until a lane takes the batch over;
    3. calls `give_back` when `takes` says no before that, or when that takes longer than a minute.
    """

    def __init__(
        self,
        gather: Callable[["FirstBatch"], None],
        give_back: Callable[[BatchLease], object],
        takes: Callable[[], bool],
        lease_s: float,
    ) -> None:
        self.lease: BatchLease | None = None
        """The batch that it keeps, or is gathering."""
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
        """Has it ask `takes` again."""
        self._woken.set()

    def wait(self, timeout_s: float) -> None:
        """Waits until it keeps no batch any more, for at most `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def hand_over(self) -> BatchLease | None:
        """The batch, under a fresh lease; None when there is none, or it was lost. Raises ServerError, and keeps it."""
        with self._lock:
            if (lease := self._renewed()) is not None:
                lease.taken_s = monotonic()  # what it waited for Spark is not the time that it was filled in
                self.lease = None
                self._woken.set()
            return lease

    def _run(self) -> None:
        try:
            self._gather(self)
        except JobrunnerError:  # a server that is away, say: the lanes meet it, too, and go on
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
