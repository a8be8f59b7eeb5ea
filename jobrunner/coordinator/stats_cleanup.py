"""Deletes the central records of queues that are gone: their stats, and the cursors of their events."""

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.scan import Interval
from jobrunner.coordinator.scan_budget import ScanBudget

_EVERY_S = 3600.0
_AT_ONCE = 500
_OWN = ("", "-", "#sampled")
"""Fields in the place of a queue's name that name no queue."""


class StatsCleanup:
    """A maintenance task of the leader, once an hour: goes through hashes that are keyed by queue, slice by slice.

    A queue that is used again in that moment loses its counts until then, as its deletion meant.
    """

    def __init__(self, broker: Broker, keys: Keys, thrift: ScanBudget) -> None:
        self._broker = broker
        self._keys = keys
        self._thrift = thrift
        self._rounds = Interval(_EVERY_S)
        self._left: list[bytes] = []
        self._cursor = 0

    def step(self) -> float:
        """One slice, when it is time; returns the seconds to the next."""
        if not self._left:
            if pause := self._rounds.begin():
                return pause
            self._left = [self._keys.events_cursor, self._keys.stats_sampled, self._keys.stats_total]
        if not self._thrift.pause:
            with self._thrift.spending():
                self._trim_some(self._left[-1])
        return self._thrift.pause

    def _trim_some(self, key: bytes) -> None:
        scan = command("HSCAN", key, self._cursor, "COUNT", _AT_ONCE, read=lambda reply: reply)
        try:
            cursor, found = self._broker.run(scan)
            self._cursor = int(cursor)
        except BaseException:
            self._next()  # a damaged key must not keep the others from being trimmed
            raise
        of_queue: dict[str, list[bytes]] = {}
        for field in found[::2]:
            name = field.decode("utf-8", "replace").partition(" ")[0]
            if name not in _OWN:
                of_queue.setdefault(name, []).append(field)
        if of_queue:
            known = self._broker.run(queues.are_registered(self._keys, list(of_queue)))
            doomed = [one for name, is_known in zip(of_queue, known, strict=True) if not is_known
                      for one in of_queue[name]]  # fmt: skip
            if doomed:
                self._broker.run(command("HDEL", key, *doomed, read=int))
        if not self._cursor:
            self._next()

    def _next(self) -> None:
        self._left.pop()
        self._cursor = 0
