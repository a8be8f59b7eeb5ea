"""Looks into every outbox for ends of tasks that nobody told: a worker was killed between a report and the relay."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.relay import relay
from jobrunner.clock import monotonic

_LOOKS = 10


class Outboxes:
    """The chore of the leader: the outboxes of all hash tags, every `every_s`. One look is one round trip.

    A turn takes a bounded number of looks: other chores, and leadership itself, must not wait for a large backlog.
    """

    def __init__(self, broker: Broker, keys: Keys, every_s: float, tags: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._every_s = every_s
        self._tags = tags
        self._looked_at = float("-inf")

    def step(self) -> float:
        """Tells what is left, when a look is due; returns the seconds to the next."""
        pause = self._looked_at + self._every_s - monotonic()
        if pause > 0:
            return pause
        self._looked_at = monotonic()
        if relay(self._broker, self._keys, tags=self._tags(), looks=_LOOKS):
            self._looked_at = float("-inf")
            return 0.0
        return self._every_s
