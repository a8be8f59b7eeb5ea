"""Carries on with batches that were decided and whose driver is gone: what was decided waits for nobody."""

import math

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches

_SLICES = 80


class BatchRecovery:
    """The chore of the leader: the decided batches of the queues in which its look found any.

    A turn takes a bounded number of slices: other chores, and leadership itself, must not wait for a large batch. Open
    batches are for their drivers and left alone.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._left: list[str] = []

    def take(self, found: ScanReply) -> None:
        """Hears what a look found."""
        self._left = list(dict.fromkeys((*self._left, *found.finishing)))

    def step(self) -> float:
        """Rolls forward what is left; returns 0.0 when there is more, else infinity."""
        slices = _SLICES
        while self._left and slices > 0:
            done = Batches(self._broker, self._keys.queue(self._left[0])).roll_forward(slices=slices)
            if done < slices:
                self._left.pop(0)
            slices -= max(done, 1)
        return 0.0 if self._left else math.inf
