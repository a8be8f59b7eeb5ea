"""Looks after every queue, also those no worker serves: due tasks, ended leases, dead tasks past their time."""

from collections.abc import Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError

_LIST_EVERY_S = 15.0
_AT_ONCE = 100


class Sweep:
    """The chore of the leader: upkeep of each queue at its next event, or every `every_s` at the latest.

    The queues that its own worker serves are left out: each of its reserves does their upkeep.
    """

    def __init__(self, broker: Broker, keys: Keys, every_s: float, served: Collection[str]) -> None:
        self._broker = broker
        self._keys = keys
        self._every_s = every_s
        self._served = frozenset(served)
        self._due: dict[str, float] = {}
        self._listed_at = -_LIST_EVERY_S
        self.queues: frozenset[str] = frozenset()
        """The names of all queues, served or not."""

    def step(self) -> float:
        """Upkeep of the queues that are due; returns the seconds to the next."""
        if monotonic() - self._listed_at >= _LIST_EVERY_S:
            self._list()
        now = monotonic()
        # Longest due first: queues that are due again and again must not keep the others from their turn.
        due = sorted((queue for queue, at in self._due.items() if at <= now), key=self._due.__getitem__)[:_AT_ONCE]
        for queue, reply in zip(due, self._upkeep(due), strict=True):
            self._due[queue] = now + self._pause(reply)
        return max(min(self._due.values(), default=now + self._every_s) - monotonic(), 0.0)

    def _list(self) -> None:
        registered = self._broker.run(queues.registered(self._keys))
        self.queues = frozenset(registered)
        self._due = {queue: self._due.get(queue, 0.0) for queue in registered if queue not in self._served}
        self._listed_at = monotonic()

    def _upkeep(self, names: list[str]) -> list[queues.Upkeep | JobrunnerError]:
        if not names:
            return []
        return self._broker.run_each([queues.upkeep(self._keys.queue(name)) for name in names])

    def _pause(self, reply: queues.Upkeep | JobrunnerError) -> float:
        if isinstance(reply, JobrunnerError) or reply.next_event_ms is None:
            return self._every_s
        return min(max((reply.next_event_ms - reply.now_ms) / 1000, 0.0), self._every_s)
