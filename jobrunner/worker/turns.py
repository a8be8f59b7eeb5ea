"""Which queue is asked next: weighted turns among the queues that may have work."""

import math
from collections.abc import Mapping

from jobrunner.broker.keys import split_queue
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption

_LONGEST_S = 3600.0


class Turns:
    """Smooth weighted round robin (the algorithm of nginx's upstreams), skipping queues known to be empty.

    A queue that came back short sleeps until a wake-up, its next event, or the poll interval, whichever is first.
    """

    def __init__(self, weights: Mapping[str, int], poll_s: float) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0)
        self._asleep_until = dict.fromkeys(weights, 0.0)
        self._blocked: set[str] = set()
        self.poll_s = poll_s

    @property
    def queues(self) -> list[str]:
        """All queues, in the order given."""
        return list(self._weights)

    @property
    def open(self) -> list[str]:
        """The queues that may have a turn."""
        return [queue for queue in self._weights if queue not in self._blocked]

    def next(self) -> str | None:
        """The queue whose turn it is, or None when all are known to be empty."""
        now = monotonic()
        ready = [queue for queue, until in self._asleep_until.items() if until <= now]
        if len(ready) <= 1:
            return ready[0] if ready else None
        for queue in ready:
            self._credit[queue] += self._weights[queue]
        chosen = max(ready, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[queue] for queue in ready)
        return chosen

    def sleep(self, queue: str, next_event_s: float | None, keepalive_s: float) -> None:
        """This queue has nothing now; it may have something in `next_event_s`.

        It is looked at once in each `keepalive_s`: so every lease others take is foretold before it ends.
        """
        if queue in self._blocked:
            return
        pause = min(self.poll_s, keepalive_s)
        if next_event_s is not None:
            pause = min(pause, max(next_event_s, 0.0))
        self._asleep_until[queue] = monotonic() + pause

    def wake(self, queue: str) -> None:
        """This queue may have work."""
        if queue in self._asleep_until and queue not in self._blocked:
            self._asleep_until[queue] = 0.0

    def wake_all(self) -> None:
        """Every queue may have work."""
        for queue in self._asleep_until:
            self.wake(queue)

    def block(self, queue: str) -> None:
        """This queue has no turn, whatever it may have, until it is unblocked."""
        if queue in self._asleep_until:
            self._blocked.add(queue)
            self._asleep_until[queue] = math.inf

    def unblock(self, queue: str) -> None:
        """This queue may have work."""
        self._blocked.discard(queue)
        self.wake(queue)

    def until_next(self) -> float:
        """Seconds until a queue is due for a look; 0 when one is."""
        soonest = min(self._asleep_until.values(), default=math.inf)
        return min(max(soonest - monotonic(), 0.0), _LONGEST_S)


def read_weights(given: list[str]) -> dict[str, int]:
    """Queues by weight from `NAME` or `NAME:WEIGHT` words. A name may hold colons; only a number counts as weight.

    Raises InvalidName, InvalidOption.
    """
    weights: dict[str, int] = {}
    for word in given:
        name, colon, weight = word.rpartition(":")
        if not colon or not weight.isdigit():
            name, weight = word, "1"
        split_queue(name)
        if not 1 <= int(weight) <= 1000:
            raise InvalidOption(f"queue {word!r}: give a weight from 1 to 1000")
        weights[name] = int(weight)
    return weights
