"""Finishes what killed workers and drivers left, also in queues without a worker.

1. Items of no open batch go back in line (see client/batch_recovery.py).
2. Ends of tasks are passed on to their flows, where a worker was killed between a report and the relay.
3. Decided batches whose driver is gone are rolled forward: their decision does not wait for a driver to come back.
"""

import math
from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.batch_recovery import MemberLists, reclaim_items, roll_forward
from jobrunner.client.batches import Batches
from jobrunner.client.operations.flow_relay import relay
from jobrunner.coordinator.put_aside import ErrorsPutAside
from jobrunner.coordinator.scan import Interval
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger

_EVERY_S = 60.0
_S_OF_A_QUEUE = 0.003
"""Every queue adds that much to the interval, so that 100 000 queues cost no more than a few do."""
_LISTS_EVERY_S = 3600.0
_QUEUES_AT_ONCE = 100
_SCANS_AT_ONCE = 5
_SCAN_PAUSE_S = 0.02
"""Between turns of a search of the whole server: it may have millions of keys, and others wait for it."""
_LOOKS = 10
_SLICES = 80
_log = SafeLogger("jobrunner.coordinator")


class OrphanedItems:
    """A maintenance task of the leader for the queues of pipelines, and for those in which a scan found decided
    batches. At its first turn and then every minute it walks the leases of each queue; at its first turn and then every
    hour it searches the server for lists of members that no batch uses.

    A turn takes a bounded number of steps. A queue that fails does not keep the others from it.
    """

    def __init__(self, broker: Broker, keys: Keys, queues: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._queues = queues
        self._others: set[str] = set()
        self._rounds = Interval(_EVERY_S)
        self._searches = Interval(_LISTS_EVERY_S)
        self._served: list[str] = []
        self._left: list[str] = []
        self._lists: MemberLists | None = None

    def take(self, found: ScanReply) -> None:
        """Remembers the queues outside of pipelines that batches are taken of."""
        self._others.update(found.finishing)

    def step(self) -> float:
        """One turn; returns the seconds to the next. Raises what the server refused first."""
        if not self._left and not self._rounds.begin():
            self._served = sorted(name for name in self._queues() if "/" in name or name in self._others)
            self._rounds.every_s = _EVERY_S + _S_OF_A_QUEUE * len(self._served)
            self._left = self._served
        if self._left:
            self._look()
            return 0.0
        return min(self._rounds.left, self._search(self._served)) if self._served else self._rounds.left

    def _look(self) -> None:
        names, self._left = self._left[:_QUEUES_AT_ONCE], self._left[_QUEUES_AT_ONCE:]
        queues = [self._keys.queue(name) for name in names]
        replies = self._broker.run_each([leases.reclaim(one, count=1) for one in queues])
        refused = None
        for queue, reply in zip(queues, replies, strict=True):
            try:
                if isinstance(reply, JobrunnerError):
                    raise reply
                items = reply.items + (reclaim_items(self._broker, queue) if reply.after else 0)
            except JobrunnerError as error:
                refused = refused or error
                continue
            if items:
                _log.warning("items of no open batch put back in line", queue=queue.name, items=items)
        if refused is not None:
            raise refused

    def _search(self, served: Collection[str]) -> float:
        """A few steps of the search for lists of members; returns the seconds to the next."""
        if self._lists is None:
            if pause := self._searches.begin():
                return pause
            self._lists = MemberLists(self._broker, self._keys, sorted({*served, *self._queues()}))
        lists, self._lists = self._lists, None  # one that raises is not gone on with
        if any(not lists.step() for _ in range(_SCANS_AT_ONCE)):
            if lists.items:
                _log.warning("items of no open batch put back in line", items=lists.items)
            return self._searches.left
        self._lists = lists
        return _SCAN_PAUSE_S


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


class BatchRecovery:
    """A maintenance task of the leader: rolls decided batches forward, in the queues in which its scan found any.

    A turn takes a bounded number of slices: other tasks, and leadership itself, must not wait for a large batch. Open
    batches are left to their drivers. A queue that fails does not keep the others from it.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._left: list[str] = []

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
        self._left = list(dict.fromkeys((*self._left, *found.finishing)))

    def step(self) -> float:
        """Rolls forward what is left; returns 0.0 when there is more, else infinity. Raises what the server refused
        first, after the others; the next scan finds that queue again."""
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
