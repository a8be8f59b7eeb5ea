"""Looks into every outbox for ends of tasks that nobody told: a worker was killed between a report and the relay."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.relay import relay
from jobrunner.coordinator.interval import Interval

_LOOKS = 10


class Outboxes:
    """The chore of the leader: the outboxes of all hash tags, every `every_s`. One look is one round trip.

    A turn takes a bounded number of looks: other chores, and leadership itself, must not wait for a large backlog.
    """

    def __init__(self, broker: Broker, keys: Keys, every_s: float, tags: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._tags = tags

    def step(self) -> float:
        """Tells what is left, when a look is due; returns the seconds to the next."""
        if pause := self._looks.begin():
            return pause
        if relay(self._broker, self._keys, tags=self._tags(), looks=_LOOKS):
            self._looks.end()
            return 0.0
        return self._looks.every_s
