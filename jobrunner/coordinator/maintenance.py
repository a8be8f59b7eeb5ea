"""Maintains every queue, also queues that no worker serves: due tasks, ended leases, expired dead tasks.

Queues that were unused for long are forgotten, unless they are used again meanwhile. The leader also checks that the
server evicts no keys.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.calls.server import eviction_policy, evicts
from jobrunner.broker.calls.stats import list_workers
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.delete_queue import LEAVING_MS, leave, return_if_used
from jobrunner.client.operations.operation import run_operation
from jobrunner.coordinator.scan import Interval, ScanBudget
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger

_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class OwnQueues:
    """The queues that the leader's own worker serves. Each of its reserves maintains its queue, so the leader skips the
    queues that the worker reserves from."""

    names: frozenset[str] = frozenset()
    reserved: Callable[[], Collection[str]] = frozenset
    """The queues that the worker reserves from now, by itself."""


class QueueMaintenance:
    """A maintenance task of the leader: maintains each queue at the instant predicted by the leader's scan or by the
    last maintenance. Instants are the server's, by `now_ms`."""

    def __init__(
        self, broker: Broker, keys: Keys, every_s: float, own: OwnQueues, now_ms: Callable[[], float]
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._every_s = every_s
        self._own = own
        self._now_ms = now_ms
        self._due: dict[str, float] = {}
        self._line: list[tuple[float, str]] = []
        """A heap; an entry that differs from `_due` is stale."""

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan. Queues that were due already keep their place in the heap."""
        now_ms = self._now_ms()
        left_out = self._own.reserved()
        for name, at_ms in found.due.items():
            known = self._due.get(name)
            if name not in left_out and (known is None or (known > now_ms and known != at_ms)):
                self._expect(name, max(at_ms, now_ms))

    def step(self) -> float:
        """Maintains the queues that are due; returns the seconds to the next."""
        now_ms = self._now_ms()
        due = self._take_due(now_ms)
        for queue, reply in zip(due, self._upkeep(due), strict=True):
            if isinstance(reply, JobrunnerError):
                self._expect(queue, now_ms + self._every_s * 1000)
            elif reply.next_event_ms is not None:
                # After the queues that are due already: a queue that is always due must not starve them.
                self._expect(queue, max(reply.next_event_ms, now_ms))
        while self._line and self._is_stale(self._line[0]):
            heappop(self._line)
        if len(self._line) > 2 * len(self._due) + _AT_ONCE:
            self._line = [(at_ms, name) for name, at_ms in self._due.items()]
            heapify(self._line)
        pause = (self._line[0][0] - self._now_ms()) / 1000 if self._line else self._every_s
        return min(max(pause, 0.0), self._every_s)

    def _take_due(self, now_ms: float) -> list[str]:
        due: list[str] = []
        while self._line and len(due) < _AT_ONCE and self._line[0][0] <= now_ms + 1:
            entry = heappop(self._line)
            if not self._is_stale(entry):
                del self._due[entry[1]]
                due.append(entry[1])
        return due

    def _expect(self, name: str, at_ms: float) -> None:
        self._due[name] = at_ms
        heappush(self._line, (at_ms, name))

    def _is_stale(self, entry: tuple[float, str]) -> bool:
        return self._due.get(entry[1]) != entry[0]

    def _upkeep(self, names: list[str]) -> list[queues.UpkeepReply | JobrunnerError]:
        if not names:
            return []
        return self._broker.run_each([queues.upkeep(self._keys.queue(name)) for name in names])


_EVICTION_CHECK_S = 60.0
_log = SafeLogger("jobrunner.coordinator")


class EvictionCheck:
    """A maintenance task of the leader: logs an error when the server's settings let it evict keys.

    Workers refuse to start with such a server, but its settings may change while they run, and a failover may replace
    the server.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._checks = Interval(_EVICTION_CHECK_S)
        self._known = ""

    def step(self) -> float:
        """Checks when that is due; returns the seconds to the next check."""
        if not (pause := self._checks.begin()):
            policy = self._broker.run(eviction_policy())
            if evicts(policy) and policy != self._known:
                hint = "set maxmemory-policy to noeviction, on the server and in its configuration"
                _log.error("the server may delete tasks to make room", maxmemory_policy=policy, hint=hint)
            self._known = policy
            pause = self._checks.every_s
        return pause


_QUEUES_AT_ONCE = 100
_RECOVER_EVERY_S = 15.0


class UnusedQueues:
    """A maintenance task of the leader: marks empty queues, and deletes the keys of queues that have been empty for
    long.

    Queues that a worker serves, or that a periodic job runs on (`needed`), are not forgotten. Queues whose deletion
    began a while ago with an unknown end are checked again.
    """

    def __init__(
        self, broker: Broker, keys: Keys, budget: ScanBudget, unused_ms: int, now_ms: Callable[[], float],
        needed: Callable[[], Collection[str]],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._budget = budget
        self._unused_ms = unused_ms
        self._now_ms = now_ms
        self._needed = needed
        self._unmarked: dict[str, None] = {}
        self._unused: dict[str, None] = {}
        self._recovers = Interval(_RECOVER_EVERY_S)

    def take(self, found: ScanReply) -> None:
        """Handles the result of a scan."""
        self._unmarked.update(dict.fromkeys(found.unmarked))
        self._unused.update(dict.fromkeys(found.unused))

    @property
    def is_busy(self) -> bool:
        """Whether there are queues to mark or to forget."""
        return bool(self._unmarked or self._unused)

    def step(self) -> float:
        """Marks or forgets some queues; returns the seconds to the next turn."""
        if not (pause := self._recovers.begin()):
            self._recover()
            pause = self._recovers.every_s
        if not (self._unmarked or self._unused):
            return pause
        if not self._budget.pause:
            with self._budget.spending():
                self._mark(_some(self._unmarked))
                self._forget(_some(self._unused))
        return min(self._budget.pause, pause)

    def _mark(self, names: list[str]) -> None:
        if names:
            self._broker.run(queues.forget(self._keys, names, unused_ms=None))

    def _forget(self, names: list[str]) -> None:
        if not names:
            return
        serving = {queue for _, said in self._broker.run(list_workers(self._keys)) for queue in _queues_of(said)}
        doomed = [name for name in names if name not in serving and name not in self._needed()]
        if doomed:
            forgetting = queues.forget(self._keys, doomed, unused_ms=self._unused_ms)
            run_operation(self._broker, leave(self._keys, doomed, forgetting, self._now_ms()))

    def _recover(self) -> None:
        asked = queues.still_leaving(self._keys, self._now_ms() - LEAVING_MS, count=_QUEUES_AT_ONCE)
        if names := self._broker.run(asked):
            run_operation(self._broker, return_if_used(self._keys, names))


def _queues_of(said: dict[str, bytes]) -> list[str]:
    return said.get("queues", b"").decode("utf-8", "replace").split(",")


def _some(names: dict[str, None]) -> list[str]:
    some = list(names)[:_QUEUES_AT_ONCE]
    for name in some:
        del names[name]
    return some
