"""Which batch is taken, and when it begins: it is gathered until it is large enough, or nothing more is to come.

A small batch costs Spark as much as a large one, and a sink a file; a large one is late, and holds up what comes behind
a bad item. So a batch begins as soon as it is full, or has `min_rows` items while the queues before it are empty, or
after `max_wait` seconds. With `batch="auto"` it is full at the size that ran for about five seconds lately.
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
"""Looks for more items while a batch is gathered."""
_SHORTEST_S, _LONGEST_S = 0.02, 1.0
_AUTO_S = 5.0
"""How long a batch of the right size runs: what Spark needs for any batch is a small part of that, and what waits
behind it does not wait for long."""
_STEP = 2.0
"""The size grows and shrinks by this factor at most, as the time of one batch says little."""
_MOST_NEW = 32
"""New batches that are taken in this way without a success: in an outage of hours each is one more that is open."""


class OtherItems:
    """Takes the batches of one station; while it is `wanted`, every other one is new. For one thread at a time.

    Batches that failed are due again before new ones are taken, and no item dies of an error that all have. So a run of
    bad items as long as a batch would hold up all items behind it, for ever: while a station stops because all batches
    fail, some items from behind show whether its function works.

    Invariant: these are a bounded number, so an outage does not get the whole queue out of line.
    """

    def __init__(self) -> None:
        self.wanted = False
        """Whether all batches fail, by an error that other items may not have."""
        self.is_single = False
        """Whether the batch that was taken last is of one item on purpose: it is not filled up."""
        self._is_turn = False
        self._taken = 0

    def forget(self) -> None:
        """A batch succeeded."""
        self.wanted, self._is_turn, self._taken = False, False, 0

    def take(self, batches: Batches, n: int, *, lease_s: float) -> BatchLease | None:
        """The next batch, as `Batches.take`. A new one has a single item, which is seldom a bad one among good ones,
        then `n`, which get it past a run of bad ones, in turns."""
        self.is_single, self._is_turn = False, self.wanted and not self._is_turn
        if self._is_turn and self._taken < _MOST_NEW:
            is_single = self._taken % 2 == 0
            lease = batches.take_new(1 if is_single else n, lease_s=lease_s)
            if lease is not None:
                self._taken, self.is_single = self._taken + 1, is_single
                return lease
        return batches.take(n, lease_s=lease_s)


class BatchSizes:
    """The size of the next batch. Safe in several threads."""

    def __init__(self, station: SparkStation) -> None:
        self._is_auto = station.batch == AUTO
        self.wanted = SMALLEST_AUTO if isinstance(station.batch, str) else station.batch
        """Items of a full batch."""
        self._lock = threading.Lock()

    def saw(self, items: int, run_s: float) -> None:
        """Notes how long a batch ran. Smaller ones than wanted say nothing: the queue was empty."""
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
        """Whether it waits for more items of a batch."""
        self._station = station
        self._batches = batches
        self._above = above
        self._sizes = sizes
        self._ends_early = ends_early
        self._pause = threading.Event()

    def fill(self, lease: BatchLease) -> None:
        """Adds items to a new batch until it should begin. Raises BatchLost when another driver may have it by then."""
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
        except ServerError:  # the attempt meets it, too, and hands the batch back
            return
        finally:
            self.is_busy = False

    def interrupt(self) -> None:
        """Ends the pause of a lane that waits for items: it asks `ends_early` again."""
        self._pause.set()

    @property
    def _enough(self) -> int:
        """Items with which a batch begins once nothing more is on its way."""
        return max(self._sizes.wanted // 10, 1) if self._station.min_rows is None else self._station.min_rows

    def _is_dry(self) -> bool:
        """Whether nothing in the queues before this one can arrive while it waits."""
        if not self._above:
            return False  # programs push into it, and nobody knows when
        soon_ms = unix_ms() + self._station.max_wait * 1000
        calls = [call for keys in self._above for call in coming(keys, until_ms=soon_ms)]
        return not any(self._batches.broker.run_many(calls))
