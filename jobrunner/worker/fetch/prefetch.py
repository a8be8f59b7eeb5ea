"""Decides how many tasks to hold: as many as the slots take, and work for a few tens of milliseconds more.

So short tasks are fetched in large batches, and behind long ones nothing waits in this worker that another could run.
"""

from jobrunner.clock import monotonic

_STUCK_S = 0.25
_MEASURED_S = 0.002
_TOGETHER = 4
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.02


class Prefetch:
    """Adapts the depth of the backlog to the rate at which tasks finish."""

    def __init__(self, concurrency: int, prefetch_s: float, batch_max: int) -> None:
        self._concurrency = concurrency
        self._prefetch_s = prefetch_s
        self._batch_max = batch_max
        self._rate = 0.0
        self._counted = 0
        self._busy_s = 0.0
        self._since = self._moved_at = monotonic()
        self.in_hand = 0

    def took(self, count: int) -> None:
        """So many were reserved."""
        self._moved_at = monotonic()
        if self.in_hand == 0:  # idle time tells nothing about the rate
            self._since = self._moved_at - self._busy_s
        self.in_hand += count

    def gave(self, finished: int, released: int = 0) -> None:
        """So many ended. The rate is measured over at least 2 ms of busy time."""
        if self.in_hand == 0:
            return
        self.in_hand -= finished + released
        self._counted += finished
        now = monotonic()
        if finished:
            self._moved_at = now
        self._busy_s = now - self._since
        if self._busy_s >= _MEASURED_S:
            weight = min(self._busy_s / 0.05, 1.0)
            self._rate += (self._counted / self._busy_s - self._rate) * weight
            self._since, self._counted, self._busy_s = now, 0, 0.0

    @property
    def depth(self) -> int:
        """How many to hold beyond those that run."""
        return int(self._rate * self._prefetch_s)

    @property
    def has_free_slots(self) -> bool:
        """Whether all that is in hand can run at once, and more could."""
        return self.in_hand < self._concurrency

    def wanted(self, backlog: int) -> int:
        """How many to reserve now; 0 while the backlog is more than half full, unless slots are free all the same."""
        free = self._concurrency + self.depth - self.in_hand
        if free <= 0 or (backlog > 0 and backlog > self.depth // 2 and not self.has_free_slots):
            return 0
        return min(free, self._batch_max)

    @property
    def pause_s(self) -> float:
        """How long what ended may wait, while there is more to do, so that some are reported together: a turn for each
        would take a processor from tasks that compute for some milliseconds."""
        if self._rate <= 0 or self.has_free_slots:
            return _SHORTEST_PAUSE_S
        return min(max(_TOGETHER / self._rate, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def ends_together(self, backlog: int, most: int) -> int:
        """How many ends wait for each other: `most`, but where turns are rare no more than leave a part of the
        backlog."""
        if self.pause_s <= _SHORTEST_PAUSE_S:
            return most
        return min(max(backlog - self.depth // 4, 1), most)

    def is_stuck(self, backlog: int) -> bool:
        """Whether tasks wait behind long ones that took all slots: others should have them."""
        return backlog > 0 and monotonic() - self._moved_at > _STUCK_S

    def forget_rate(self) -> None:
        """Starts small again, after the work turned out to be long."""
        self._rate = 0.0
