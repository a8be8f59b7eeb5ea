"""Selects the next batch and gathers its items until the batch is large enough, or no more items are to come.

A small batch costs Spark as much as a large batch, and a sink a file; a large batch is late, and a bad item in it holds
up many others. So a batch begins as soon as it is full, or has `min_rows` items while the queues before it are empty,
or after `max_wait` seconds. With `batch="auto"` it is full at the size that recently ran for about five seconds.
"""

import threading
from collections.abc import Callable, Sequence

from jobrunner.broker.calls.queues import coming
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.clock import monotonic, unix_ms
from jobrunner.errors import ServerError
from jobrunner.etl.spark_station import AUTO, LARGEST_AUTO, SMALLEST_AUTO, SparkStation

_POLLS = 10
"""Polls for more items while a batch is gathered."""
_SHORTEST_S, _LONGEST_S = 0.02, 1.0
_AUTO_S = 5.0
"""Target duration of a batch: Spark's fixed cost is a small part of it, and batches behind it do not wait long."""
_STEP = 2.0
"""The most that the size grows or shrinks at a time, as a factor: the duration of a single batch varies."""
_MOST_NEW = 32
"""The most new batches that `OtherItems` takes without a success: in an outage of hours each stays open."""


class OtherItems:
    """Takes the batches of one station; while `wanted`, every other batch is new. Not thread-safe.

    Failed batches are due again before new batches are taken, and no item dies of an error that all items have. So a
    run of bad items as long as a batch would hold up all items behind it forever: while a station stops because all
    batches fail, some items from further back show whether its function works.

    Invariant: the number of such batches is bounded, so an outage does not reorder the whole queue.
    """

    def __init__(self) -> None:
        self.wanted = False
        """Whether all batches fail with an error that other items may not have."""
        self.is_single = False
        """Whether the last batch taken has one item on purpose, and so is not filled up."""
        self._is_turn = False
        self._taken = 0

    def forget(self) -> None:
        """Resets the state after a batch succeeded."""
        self.wanted, self._is_turn, self._taken = False, False, 0

    def take(self, batches: Batches, n: int, *, lease_s: float) -> BatchLease | None:
        """Takes the next batch, as `Batches.take`. New batches alternate between a single item, which is seldom bad
        where most are good, and `n` items, which get past a run of bad items."""
        self.is_single, self._is_turn = False, self.wanted and not self._is_turn
        if self._is_turn and self._taken < _MOST_NEW:
            is_single = self._taken % 2 == 0
            lease = batches.take_new(1 if is_single else n, lease_s=lease_s)
            if lease is not None:
                self._taken, self.is_single = self._taken + 1, is_single
                return lease
        return batches.take(n, lease_s=lease_s)


class BatchSizes:
    """The size of the next batch. Thread-safe."""

    def __init__(self, station: SparkStation) -> None:
        self._is_auto = station.batch == AUTO
        self.wanted = SMALLEST_AUTO if isinstance(station.batch, str) else station.batch
        """Items of a full batch."""
        self._lock = threading.Lock()

    def saw(self, items: int, run_s: float) -> None:
        """Adapts the size to the duration of a batch. Batches smaller than `wanted` are ignored: the queue was empty.
        """
        with self._lock:
            if not self._is_auto or items < self.wanted:
                return
            factor = min(max(_AUTO_S / max(run_s, 0.001), 1 / _STEP), _STEP)
            self.wanted = min(max(round(items * factor), SMALLEST_AUTO), LARGEST_AUTO)


class Gathering:
    """Fills up the new batches of one station, one at a time."""

    def __init__(
        self,
        station: SparkStation,
        batches: Batches,
        above: Sequence[QueueKeys],
        sizes: BatchSizes,
        ends_early: Callable[[], bool],
    ) -> None:
        self.is_busy = False
        """Whether `fill` waits for more items."""
        self._station = station
        self._batches = batches
        self._above = above
        self._sizes = sizes
        self._ends_early = ends_early
        self._pause = threading.Event()

    def fill(self, lease: BatchLease) -> None:
        """Adds items to a new batch until it should begin. Raises BatchLost when another driver may hold the batch."""
        full, enough = self._sizes.wanted, self._enough
        ends = monotonic() + self._station.max_wait
        poll_s = min(max(self._station.max_wait / _POLLS, _SHORTEST_S), _LONGEST_S, self._station.lease / 3)
        self.is_busy = True
        self._pause.clear()
        try:
            while (left := ends - monotonic()) > 0 and lease.size < full and not self._ends_early():
                if lease.size >= enough and self._is_dry():
                    return
                self._pause.wait(min(left, poll_s))
                self._pause.clear()
                lease.renew()
                self._batches.top_up(lease, full - lease.size)
        except ServerError:  # the attempt will meet the error, too, and hand the batch back
            return
        finally:
            self.is_busy = False

    def interrupt(self) -> None:
        """Ends the pause of a lane that waits for items: the lane then calls `ends_early` again."""
        self._pause.set()

    @property
    def _enough(self) -> int:
        """The size at which a batch begins once no more items are on their way."""
        return max(self._sizes.wanted // 10, 1) if self._station.min_rows is None else self._station.min_rows

    def _is_dry(self) -> bool:
        """Whether no item of the queues before this queue can arrive within `max_wait`."""
        if not self._above:
            return False  # programs enqueue into the queue at any time
        soon_ms = unix_ms() + self._station.max_wait * 1000
        calls = [call for keys in self._above for call in coming(keys, until_ms=soon_ms)]
        return not any(self._batches.broker.run_many(calls))
