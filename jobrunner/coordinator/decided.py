"""Carries on with batches that were decided and whose driver is gone: what was decided waits for nobody."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.batches import are_closing
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches
from jobrunner.coordinator.interval import Interval

_SLICES = 80
_AT_ONCE = 100


class Decided:
    """The chore of the leader: the decided batches of all queues, every `every_s`. One look is one round trip.

    A turn takes a bounded number of slices: other chores, and leadership itself, must not wait for a large batch. Open
    batches are for their drivers and left alone.
    """

    def __init__(self, broker: Broker, keys: Keys, every_s: float, queues: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._queues = queues
        self._left: list[str] = []

    def step(self) -> float:
        """Rolls forward what is left, when a look is due; returns the seconds to the next."""
        if not self._left:
            if pause := self._looks.begin():
                return pause
            self._left = self._look()
        slices = _SLICES
        while self._left and slices > 0:
            done = Batches(self._broker, self._keys.queue(self._left[0])).roll_forward(slices=slices)
            if done < slices:
                self._left.pop(0)
            slices -= max(done, 1)
        return 0.0 if self._left else self._looks.every_s

    def _look(self) -> list[str]:
        names, found = sorted(self._queues()), []
        for first in range(0, len(names), _AT_ONCE):
            some = names[first : first + _AT_ONCE]
            replies = self._broker.run_many([are_closing(self._keys.queue(name)) for name in some])
            found += [name for name, has_some in zip(some, replies, strict=True) if has_some]
        return found
