"""Rates of queues: growth of their totals per second over the last ten seconds of snapshots. Pure.

Totals only grow, so no task is counted twice or missed. A queue that was not there before is new: all that it counts
happened since. One whose totals are lower than they were was emptied and begins anew.
"""

from collections import deque
from collections.abc import Iterable, Mapping

CAME = ("enqueued", "moved_in")
ENDED = ("succeeded", "dropped", "cancelled", "dead", "orphaned")
LEFT = (*ENDED, "moved_out")
WENT_WRONG = ("failed", "recovered")
"""Attempts that failed, and leases that ended without a report."""
_WINDOW_S = 10.0

Totals = Mapping[str, Mapping[str, int]]
"""Counters by their names, by queue."""
_Look = tuple[float, Totals]


class Growth:
    """Remembers looks at totals and tells rates; none before the second look."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()

    def add(self, at_s: float, totals: Totals) -> None:
        """Takes one more look into account; `at_s` is of a monotonic clock."""
        self._looks.append((at_s, totals))
        while len(self._looks) > 2 and at_s - self._looks[1][0] >= _WINDOW_S:
            self._looks.popleft()

    @property
    def queues(self) -> list[str]:
        """Those of the last look."""
        return list(self._looks[-1][1]) if self._looks else []

    def per_s(self, queues: Iterable[str], counters: Iterable[str]) -> float | None:
        """How much these counters of these queues grew by a second, in the last ten seconds."""
        return None if len(self._looks) < 2 else _per_s(self._looks[0], self._looks[-1], queues, tuple(counters))

    def lately_per_s(self, queue: str, counters: Iterable[str]) -> float | None:
        """The same of one queue from the look before to the last one."""
        return None if len(self._looks) < 2 else _per_s(self._looks[-2], self._looks[-1], [queue], tuple(counters))


def _per_s(first: _Look, last: _Look, queues: Iterable[str], counters: tuple[str, ...]) -> float | None:
    (first_s, before), (last_s, now) = first, last
    if last_s <= first_s:
        return None
    grown = sum(
        max(now.get(queue, {}).get(name, 0) - before.get(queue, {}).get(name, 0), 0)
        for queue in queues
        for name in counters
    )
    return grown / (last_s - first_s)
