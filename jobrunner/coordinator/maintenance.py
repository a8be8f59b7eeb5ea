"""Maintains every queue, also those that no worker serves: due tasks, ended leases, expired dead tasks."""

from collections.abc import Callable, Collection
from heapq import heapify, heappop, heappush

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError

_AT_ONCE = 100


class QueueMaintenance:
    """A maintenance task of the leader: maintains each queue when it is due, as the leader's scan or the maintenance
    before predicted. Instants are the server's, by `now_ms`.

    The queues that its own worker serves are left out: each of its reserves maintains them.
    """

    def __init__(
        self, broker: Broker, keys: Keys, every_s: float, served: Collection[str], now_ms: Callable[[], float]
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._every_s = every_s
        self._served = frozenset(served)
        self._now_ms = now_ms
        self._due: dict[str, float] = {}
        self._line: list[tuple[float, str]] = []
        """A heap; an entry that differs from `_due` is stale."""

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan. Queues that were due already keep their place in the heap."""
        now_ms = self._now_ms()
        for name, at_ms in found.due.items():
            known = self._due.get(name)
            if name not in self._served and (known is None or (known > now_ms and known != at_ms)):
                self._expect(name, max(at_ms, now_ms))

    def step(self) -> float:
        """Maintains the queues that are due; returns the seconds to the next."""
        now_ms = self._now_ms()
        due = self._take_due(now_ms)
        for queue, reply in zip(due, self._upkeep(due), strict=True):
            if isinstance(reply, JobrunnerError):
                self._expect(queue, now_ms + self._every_s * 1000)
            elif reply.next_event_ms is not None:
                # Behind those that are due already: a queue that is always due must not starve them.
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
