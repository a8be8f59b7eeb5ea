"""Notes once a minute how every queue stands: its depth, and its totals, whose growth tells what no worker counted."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import figures
from jobrunner.broker.calls.queues import QueueCounts, counts
from jobrunner.broker.keys import Keys

_AT_ONCE = 100


class Sample:
    """The chore of the leader: a sample in every minute of the server's clock, two round trips for 100 queues."""

    def __init__(self, broker: Broker, keys: Keys, queues: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._queues = queues
        self._minute = -1

    def step(self, now_ms: float) -> float:
        """Takes the sample of this minute, if that was not done; returns the seconds to the next."""
        minute = int(now_ms // figures.MINUTE_MS)
        if minute != self._minute:
            names = sorted(self._queues())
            for first in range(0, len(names), _AT_ONCE):
                self._take(names[first : first + _AT_ONCE], now_ms)
            self._minute = minute
        return ((minute + 1) * figures.MINUTE_MS - now_ms) / 1000

    def _take(self, names: list[str], now_ms: float) -> None:
        found = self._broker.run_each([counts(self._keys.queue(name)) for name in names])
        readable = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, QueueCounts)}
        self._broker.run(figures.sample(self._keys, now_ms, readable))
