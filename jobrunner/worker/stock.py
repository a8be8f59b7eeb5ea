"""How much work to hold: what the slots can take, and a few tens of milliseconds more.

So short tasks are fetched in large batches, and behind long ones nothing waits in this worker that another could run.
"""

from jobrunner.clock import monotonic

_STUCK_S = 0.25


class Stock:
    """Adapts the depth of the backlog to the rate at which tasks finish."""

    def __init__(self, concurrency: int, prefetch_s: float, batch_max: int) -> None:
        self._concurrency = concurrency
        self._prefetch_s = prefetch_s
        self._batch_max = batch_max
        self._rate = 0.0
        self._counted = 0
        self._since = monotonic()
        self._moved_at = self._since
        self.in_hand = 0

    def took(self, count: int) -> None:
        """So many were reserved."""
        if self.in_hand == 0:
            self._since = self._moved_at = monotonic()
            self._counted = 0
        self.in_hand += count

    def gave(self, count: int) -> None:
        """So many ended. The rate is measured over at least 2 ms of busy time."""
        self.in_hand -= count
        self._counted += count
        now = monotonic()
        if count:
            self._moved_at = now
        elapsed = now - self._since
        if elapsed >= 0.002:
            weight = min(elapsed / 0.05, 1.0)
            self._rate += (self._counted / elapsed - self._rate) * weight
            self._since, self._counted = now, 0

    @property
    def depth(self) -> int:
        """How many to hold beyond those that run."""
        return int(self._rate * self._prefetch_s)

    def wanted(self, backlog: int) -> int:
        """How many to reserve now; 0 while the backlog is more than half full."""
        free = self._concurrency + self.depth - self.in_hand
        if free <= 0 or (backlog > 0 and backlog > self.depth // 2):
            return 0
        return min(free, self._batch_max)

    def has_room(self) -> bool:
        """Whether a new task would be begun at once or soon."""
        return self.in_hand < self._concurrency + self.depth

    def is_stuck(self, backlog: int) -> bool:
        """Whether tasks wait behind long ones that took all slots: others should have them."""
        return backlog > 0 and monotonic() - self._moved_at > _STUCK_S

    def forget_rate(self) -> None:
        """Starts small again, after the work turned out to be long."""
        self._rate = 0.0
