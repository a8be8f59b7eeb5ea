"""Items that wait behind batches that all fail: while a station stops, some of them show whether its function works.

Batches that failed are due again before new ones are taken, and no item dies of an error that all have. So a run of bad
items as long as a batch would hold up all items behind it, for ever.
"""

from jobrunner.client.batches import Batches, BatchLease

_MOST = 32
"""New batches that are taken in this way without a success: in an outage of hours each is one more that is open."""


class OtherItems:
    """Takes the batches of one station; while it is `wanted`, every other one is new. For one thread at a time.

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
        if self._is_turn and self._taken < _MOST:
            is_single = self._taken % 2 == 0
            lease = batches.take_new(1 if is_single else n, lease_s=lease_s)
            if lease is not None:
                self._taken, self.is_single = self._taken + 1, is_single
                return lease
        return batches.take(n, lease_s=lease_s)
