"""Records the depth and the totals of queues once a minute. The growth of totals shows what no worker counted."""

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.calls.queues import QueueCounts, counts
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.scan_budget import ScanBudget

_AT_ONCE = 100
_OF_A_TURN = 1000


class StatsSampler:
    """A maintenance task of the leader: one sample in every minute of the server's clock, two round trips for 100
    queues.

    It samples queues in which a scan found tasks or changed totals; all others have not changed.
    """

    def __init__(self, broker: Broker, keys: Keys, thrift: ScanBudget | None = None) -> None:
        self._broker = broker
        self._keys = keys
        self._thrift = thrift or ScanBudget()
        self._found: set[str] = set()
        self._left: list[str] = []
        self._minute = -1

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
        self._found.update(found.holding, found.changed)

    def step(self, now_ms: float) -> float:
        """Takes the sample of this minute, if that was not done; returns the seconds to the next."""
        minute = int(now_ms // stats_calls.MINUTE_MS)
        if minute != self._minute:
            self._left = sorted(self._found.union(self._left))
            self._found = set()
            self._minute = minute
            self._take_some(now_ms)
        elif self._left and not self._thrift.pause:
            with self._thrift.spending():
                self._take_some(now_ms)
        until_next = ((minute + 1) * stats_calls.MINUTE_MS - now_ms) / 1000
        return min(self._thrift.pause, until_next) if self._left else until_next

    def _take_some(self, now_ms: float) -> None:
        names, self._left = self._left[:_OF_A_TURN], self._left[_OF_A_TURN:]
        for first in range(0, max(len(names), 1), _AT_ONCE):  # an empty sample shows that a leader was there
            some = names[first : first + _AT_ONCE]
            found = self._broker.run_each([counts(self._keys.queue(name)) for name in some]) if some else []
            readable = {name: one for name, one in zip(some, found, strict=True) if isinstance(one, QueueCounts)}
            self._broker.run(stats_calls.sample(self._keys, now_ms, readable))
