"""Finishes the work of killed workers and drivers, also in queues without a worker.

1. Ends of tasks are passed on to their flows, where a worker was killed between a report and the relay.
2. Decided batches whose driver is gone are rolled forward: they do not wait for a driver to come back.
"""

import math

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.operations.flow_relay import relay
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.errors import JobrunnerError

_LOOKS = 10
_SLICES = 80
_HELD_MS = 1_000
"""The lease of a batch that the leader rolls forward."""


class FlowRecovery:
    """A maintenance task of the leader: empties the outboxes, of all hash tags, in which its scan found entries.

    A turn reads them a bounded number of times: other tasks, and leadership itself, must not wait for a large backlog.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._posted: frozenset[str] = frozenset()

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan."""
        self._posted = self._posted.union(found.posted)

    def step(self) -> float:
        """Relays entries of the outboxes; returns 0.0 when there are more, else infinity."""
        posted, self._posted = self._posted, frozenset()
        if posted:
            self._posted = relay(self._broker, self._keys, tags=posted, looks=_LOOKS)
        return 0.0 if self._posted else math.inf


class BatchRecovery:
    """A maintenance task of the leader: rolls decided batches forward, in the queues in which its scan found any.

    A turn takes a bounded number of slices: other tasks, and leadership itself, must not wait for a large batch. Open
    batches are left to their drivers. An error of one queue does not stop the others.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._left: list[str] = []

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan."""
        self._left = list(dict.fromkeys((*self._left, *found.finishing)))

    def step(self) -> float:
        """Rolls batches forward; returns 0.0 when there are more, else infinity. Raises the first refusal of the
        server, after the other queues; the next scan finds the refused queue again."""
        slices, errors = _SLICES, ErrorsPutAside(self._broker)
        while self._left and slices > 0:
            name, done = self._left.pop(0), 0
            try:
                done = roll_forward(Batches(self._broker, self._keys.queue(name)), slices=slices)
            except JobrunnerError as error:
                errors.put(error)
            if done == slices:
                self._left.insert(0, name)
            slices -= max(done, 1)
        errors.raise_first()
        return 0.0 if self._left else math.inf


def roll_forward(batches: Batches, *, slices: int) -> int:
    """Rolls decided batches forward whose holder is gone, for up to `slices` slices. Returns how many slices it did.

    Open batches are left alone, except abandoned writes, which are removed.
    """
    used = 0
    while used < slices and (found := batches.claim(("finishing",), _HELD_MS)):
        lease = BatchLease(batches, found, _HELD_MS)
        if found.state == "open":
            lease.end("dissolved")
        while used < slices:
            used += 1
            step = lease.advance()
            if step.done or step.full:
                break
    return used
