"""Gives the lanes of a driver their batches. It gathers the first one while Spark starts, to use seconds in which the
server would idle.

Invariants: a lane gets the first batch once, or its items return to the queue: as soon as the driver takes no batch any
more, or after a minute, as a session that hangs must not keep items from other processes. No such batch is gathered
while the queue has an open one, so a process that dies each time Spark starts does not hold more and more items.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, JobrunnerError, ServerError
from jobrunner.etl.spark_station import SparkStation
from jobrunner.logs import SafeLogger
from jobrunner.spark.station.background import RENEWALS_IN_A_LEASE
from jobrunner.spark.station.batch_failures import BatchFailures
from jobrunner.spark.station.gathering import BatchSizes, Gathering
from jobrunner.spark.station.lane import Lane

_TURN_S = 1.0
"""Longest wait of a lane for its turn."""
_DUE_S = 0.2
"""Seconds between two polls of a free lane for batches that are due again, while another lane gathers a new batch."""
_LONGEST_S = 60.0
_log = SafeLogger("jobrunner.spark")


class BatchSource:
    """Takes the batches of one station. One lane at a time takes new items, so that slowly arriving items make one
    batch and not several; meanwhile others may take batches that are due again.

    `may_take`: whether the driver takes batches at all. When it changes, call `wake`.
    """

    def __init__(
        self, station: SparkStation, batches: Batches, above: Sequence[QueueKeys], failures: BatchFailures,
        may_take: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.lease_s = station.lease
        self.may_take = may_take
        self.sizes = BatchSizes(station)
        self.gathering = Gathering(station, batches, above, self.sizes, lambda: not may_take())
        self.first = FirstBatch(self)
        self._batches = batches
        self._failures = failures
        self._turn = threading.Lock()

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """Whether the lane has the turn to take new items, for the length of the block; False when another lane keeps
        it."""
        is_own = self._turn.acquire(timeout=_DUE_S if self.gathering.is_busy else _TURN_S)
        try:
            yield is_own
        finally:
            if is_own:
                self._turn.release()

    def take(self, lane: Lane) -> None:
        """Gives a lane that has the turn a batch, filled as far as the station's limits ask for; none when the queue
        has no items, or when the batch was given back or lost meanwhile."""
        lane.lease = self.first.hand_over()
        if lane.lease is None:
            others = self._failures.others
            taken = others.take(self._batches, self.sizes.wanted, lease_s=self.lease_s)
            if others.is_single:
                lane.lease = taken
            else:
                self._gather(lane, taken)

    def take_due(self, lane: Lane) -> None:
        """Gives a lane without the turn a batch that is due again, if there is one while another lane gathers."""
        if self.gathering.is_busy:
            lane.lease = self._batches.take(0, lease_s=self.lease_s)

    def gather_first(self) -> None:
        """Takes a new batch into `first`: any driver rolls a decided batch forward, without Spark."""
        with self._turn:
            if self.may_take() and not self._batches.has_any():
                self._gather(self.first, self._batches.take_new(self.sizes.wanted, lease_s=self.lease_s))

    def give_back(self, lease: BatchLease) -> None:
        """Returns the members of a batch to their places in the queue."""
        self._failures.reports.send(lease.dissolve)

    def wake(self) -> None:
        """Makes every wait call `may_take` again."""
        self.first.wake()
        self.gathering.interrupt()

    def _gather(self, holder: "Lane | FirstBatch", lease: BatchLease | None) -> None:
        holder.lease = lease
        if lease is None or not lease.is_new:
            return
        try:
            self.gathering.fill(lease)
            if not self._failures.stopping.is_set():
                return
            self.give_back(lease)
        except BatchLost as error:
            _log.warning("batch lost", batch=lease.id, queue=lease.queue, error=str(error))
        holder.lease = None


class FirstBatch:
    """Gathers and holds the first batch, in a thread:

    1. has the source gather a batch into `lease`;
    2. renews the lease until a lane takes the batch over;
    3. gives the batch back when the driver takes no batches any more before that, or after a minute.
    """

    def __init__(self, source: BatchSource) -> None:
        self.lease: BatchLease | None = None
        """The batch that is held or being gathered."""
        self._source = source
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jobrunner-first-batch", daemon=True)

    def start(self) -> None:
        """Begins to gather."""
        self._thread.start()

    def wake(self) -> None:
        """Makes the thread call `may_take` again."""
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
            self._source.gather_first()
        except JobrunnerError:  # an unreachable server, say: the lanes meet the error, too, and retry
            self.lease = None
            return
        ends = monotonic() + _LONGEST_S
        while True:
            with self._lock:
                lease = self.lease
                if lease is None:
                    return
                if not self._source.may_take() or monotonic() >= ends:
                    self.lease = None
                    break
                self._renew_if_possible()
            self._woken.wait(min(self._source.lease_s / RENEWALS_IN_A_LEASE, _LONGEST_S))
            self._woken.clear()
        try:
            self._source.give_back(lease)
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
