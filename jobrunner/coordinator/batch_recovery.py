"""Finishes decided batches whose driver is gone, so that their decision does not wait for a driver to come back."""

import math

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches

_SLICES = 80


class BatchRecovery:
    """A maintenance task of the leader: rolls decided batches forward, in the queues in which its scan found any.

    A turn takes a bounded number of slices: other tasks, and leadership itself, must not wait for a large batch. Open
    batches are left to their drivers.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._left: list[str] = []

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
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
