"""Tells the ends of tasks that nobody told: a worker was killed between a report and the relay."""

import math

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.flow_relay import relay

_LOOKS = 10


class FlowRecovery:
    """The chore of the leader: the outboxes in which its look found anything, of all hash tags.

    A turn takes a bounded number of looks into them: other chores, and leadership itself, must not wait for a large
    backlog.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._posted: frozenset[str] = frozenset()

    def take(self, found: ScanReply) -> None:
        """Hears what a look found."""
        self._posted = self._posted.union(found.posted)

    def step(self) -> float:
        """Tells what is there; returns 0.0 when there is more, else infinity."""
        posted, self._posted = self._posted, frozenset()
        if posted:
            self._posted = relay(self._broker, self._keys, tags=posted, looks=_LOOKS)
        return 0.0 if self._posted else math.inf
