"""Forgets queues that were unused for long, and sees to it that none is lost that is used again meanwhile."""

from collections.abc import Callable, Collection

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.bulk_counts import list_workers
from jobrunner.broker.calls.leader_scan import ScanReply
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.delete_queue import LEAVING_MS, leave, return_if_used
from jobrunner.client.operations.operation import run_operation
from jobrunner.coordinator.scan import Interval, ScanBudget

_AT_ONCE = 100
_RECOVER_EVERY_S = 15.0


class UnusedQueues:
    """A maintenance task of the leader: marks queues that hold nothing, and deletes the keys of those that have been
    empty for long.

    Queues that a worker serves, or that a periodic job runs on (`needed`), are not forgotten. Queues whose deletion
    began a while ago with an unknown end are checked again.
    """

    def __init__(
        self, broker: Broker, keys: Keys, thrift: ScanBudget, unused_ms: int, now_ms: Callable[[], float],
        needed: Callable[[], Collection[str]],
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._thrift = thrift
        self._unused_ms = unused_ms
        self._now_ms = now_ms
        self._needed = needed
        self._unmarked: dict[str, None] = {}
        self._unused: dict[str, None] = {}
        self._recovers = Interval(_RECOVER_EVERY_S)

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
        self._unmarked.update(dict.fromkeys(found.unmarked))
        self._unused.update(dict.fromkeys(found.unused))

    @property
    def is_busy(self) -> bool:
        """Whether there are queues to mark or to forget."""
        return bool(self._unmarked or self._unused)

    def step(self) -> float:
        """Some of what there is to do; returns the seconds to the next."""
        if not (pause := self._recovers.begin()):
            self._recover()
            pause = self._recovers.every_s
        if not (self._unmarked or self._unused):
            return pause
        if not self._thrift.pause:
            with self._thrift.spending():
                self._mark(_some(self._unmarked))
                self._forget(_some(self._unused))
        return min(self._thrift.pause, pause)

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
        asked = queues.still_leaving(self._keys, self._now_ms() - LEAVING_MS, count=_AT_ONCE)
        if names := self._broker.run(asked):
            run_operation(self._broker, return_if_used(self._keys, names))


def _queues_of(said: dict[str, bytes]) -> list[str]:
    return said.get("queues", b"").decode("utf-8", "replace").split(",")


def _some(names: dict[str, None]) -> list[str]:
    some = list(names)[:_AT_ONCE]
    for name in some:
        del names[name]
    return some
