"""Passes ends of tasks on to their flows where a worker was killed between a report and the relay."""

import math

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.flow_relay import relay

_LOOKS = 10


class FlowRecovery:
    """A maintenance task of the leader: empties the outboxes in which its scan found anything, of all hash tags.

    A turn reads them a bounded number of times: other tasks, and leadership itself, must not wait for a large backlog.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._posted: frozenset[str] = frozenset()

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
        self._posted = self._posted.union(found.posted)

    def step(self) -> float:
        """Relays what is there; returns 0.0 when there is more, else infinity."""
        posted, self._posted = self._posted, frozenset()
        if posted:
            self._posted = relay(self._broker, self._keys, tags=posted, looks=_LOOKS)
        return 0.0 if self._posted else math.inf
