"""Writes the events that no other process can write: workers that fell silent, and tasks that died on any queue.

A task dies in a script of its queue, which cannot write the common stream (on a cluster they are on different servers).
So the script leaves a record beside the queue, whatever becomes of the task, and an exact count; the leader writes the
events of both.
"""

import math
from collections.abc import Mapping
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command, fields, texts, whole
from jobrunner.broker.calls import events
from jobrunner.broker.calls.leader import ScanReply, together
from jobrunner.broker.keys import Keys, QueueKeys

_NAMED = 100
"""Deaths of a queue that one scan reports one by one; more are counted, as the stream of events has a limit."""
_LONGEST_LIST = 1000


class DeathEvents:
    """A task of the leader. The server keeps a cursor of the reported deaths, and the next leader goes on from there: a
    death is reported at least once, and twice only when a leader dies in between. Only a leader writes the cursor, so
    it is read when leadership begins."""

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._found = ScanReply()
        self._told: dict[str, int] | None = None

    def forget(self) -> None:
        """Called when leadership begins: earlier results may be stale."""
        self._found, self._told = ScanReply(), None

    def take(self, found: ScanReply) -> None:
        """Takes in the result of a scan."""
        self._found = together((self._found, found))

    def step(self) -> float:
        """Tells of what the last look found, once; returns infinity."""
        found, self._found = self._found, ScanReply()
        if found.silent:
            self._tell_lost(found.silent)
        if found.dead:
            self._tell_dead(found.dead)
        return math.inf

    def _tell_lost(self, silent: list[str]) -> None:
        # A worker that took itself off the list since the scan is not lost.
        removed = self._broker.run_many([command("ZREM", self._keys.workers, one, read=int) for one in silent])
        lost = [worker for worker, was_there in zip(silent, removed, strict=True) if was_there]
        if lost:
            self._broker.run_many([events.note(self._keys, "worker_lost", worker=worker) for worker in lost])

    def _tell_dead(self, dead: Mapping[str, int]) -> None:
        if self._told is None:
            self._told = self._broker.run(command("HGETALL", self._keys.events_cursor, read=_counts))
        for name, total in dead.items():
            if total != self._told.get(name, 0):
                self._told[name] = self._tell_of(self._keys.queue(name), total, total - self._told.get(name, 0))

    def _tell_of(self, queue: QueueKeys, total: int, grown: int) -> int:
        """Writes events of deaths; returns how many deaths of the queue are reported then."""
        died = self._broker.run(command("LRANGE", queue.deaths, 0, _LONGEST_LIST - 1, read=texts))
        named, count = died[:_NAMED], max(grown, len(died))
        calls: list[Call[Any]] = [self._death(queue, word) for word in named]
        if count > len(named):
            calls.append(events.note(self._keys, "tasks_died", queue=queue.name, count=count - len(named)))
        # Words may be of deaths behind the total; a total that fell back (an older backup) is where to go on from.
        early = max(0, len(died) - grown) if grown > 0 else 0
        told = total + early
        note = command("HSET", self._keys.events_cursor, queue.name, told, read=int)
        self._broker.run_many([*calls, command("LTRIM", queue.deaths, len(died), -1, read=bool), note])
        return told

    def _death(self, queue: QueueKeys, word: str) -> Call[None]:
        task, type_, attempts, fate, error = (word.split("\t", 4) + [""] * 4)[:5]
        return events.note(
            self._keys, "task_died", queue=queue.name, task=task, job=type_, error=error, attempts=attempts, fate=fate
        )


def _counts(reply: list[bytes]) -> dict[str, int]:
    return {name: whole(count) for name, count in fields(reply).items()}
