"""Writes the events that nobody else could: workers that fell silent, and tasks that died, wherever that was.

A task dies in a script of its queue, which cannot reach the stream of all (on a cluster they are on different servers).
So it leaves word beside the queue, whatever becomes of the task, and a count that is exact; the leader tells of both.
"""

from collections.abc import Callable, Collection
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import coordination, events
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.coordinator.interval import Interval

_AT_ONCE = 100
_NAMED = 100
"""Deaths of a queue that are told one by one at a look; more are counted, so that they leave room for other events."""
_LONGEST_LIST = 1000


class Watch:
    """The chore of the leader, every `every_s`. What it told is noted on the server, and the next leader goes on from
    there: a death is told at least once, and twice only when a leader dies in between."""

    def __init__(self, broker: Broker, keys: Keys, every_s: float, queues: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._queues = queues

    def step(self) -> float:
        """Looks, when that is due; returns the seconds to the next look."""
        if pause := self._looks.begin():
            return pause
        self._tell_lost()
        self._tell_dead()
        return self._looks.every_s

    def _tell_lost(self) -> None:
        ids = self._broker.run(coordination.worker_ids(self._keys))
        said = self._broker.run_many([coordination.worker_description(self._keys, one) for one in ids]) if ids else []
        silent = [worker for worker, fields in zip(ids, said, strict=True) if not fields]
        if not silent:
            return
        # One that took itself off the list between the two looks is not lost.
        removed = self._broker.run_many([command("ZREM", self._keys.workers, one, read=int) for one in silent])
        lost = [worker for worker, was_there in zip(silent, removed, strict=True) if was_there]
        if lost:
            self._broker.run_many([events.note(self._keys, "worker_lost", worker=worker) for worker in lost])

    def _tell_dead(self) -> None:
        told = self._broker.run(command("HGETALL", self._keys.events_told, read=_counts))
        names = sorted(self._queues())
        for first in range(0, len(names), _AT_ONCE):
            some = [self._keys.queue(name) for name in names[first : first + _AT_ONCE]]
            totals = self._broker.run_many([command("HGET", queue.counters, "dead", read=_whole) for queue in some])
            for queue, total in zip(some, totals, strict=True):
                if total != told.get(queue.name, 0):
                    self._tell_of(queue, total, total - told.get(queue.name, 0))

    def _tell_of(self, queue: QueueKeys, total: int, grown: int) -> None:
        died = self._broker.run(command("LRANGE", queue.died, 0, _LONGEST_LIST - 1, read=_texts))
        named, count = died[:_NAMED], max(grown, len(died))
        calls: list[Call[Any]] = [self._death(queue, word) for word in named]
        if count > len(named):
            calls.append(events.note(self._keys, "tasks_died", queue=queue.name, count=count - len(named)))
        # Words may be of deaths behind the total; a total that fell back (an older backup) is where to go on from.
        early = max(0, len(died) - grown) if grown > 0 else 0
        told = command("HSET", self._keys.events_told, queue.name, total + early, read=int)
        self._broker.run_many([*calls, command("LTRIM", queue.died, len(died), -1, read=bool), told])

    def _death(self, queue: QueueKeys, word: str) -> Call[None]:
        task, type_, attempts, fate, error = (word.split("\t", 4) + [""] * 4)[:5]
        return events.note(
            self._keys, "task_died", queue=queue.name, task=task, job=type_, error=error, attempts=attempts, fate=fate
        )


def _counts(reply: list[bytes]) -> dict[str, int]:
    return {name.decode("utf-8", "replace"): _whole(count) for name, count in zip(reply[::2], reply[1::2], strict=True)}


def _whole(reply: bytes | None) -> int:
    return int(reply) if reply and reply.isdigit() else 0


def _texts(reply: list[bytes]) -> list[str]:
    return [raw.decode("utf-8", "replace") for raw in reply]
