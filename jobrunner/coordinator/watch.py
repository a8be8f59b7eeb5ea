"""Writes the events that nobody else could: workers that fell silent, and tasks that died, wherever that was."""

from collections.abc import Callable, Collection
from typing import Any

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import coordination, events
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.coordinator.interval import Interval

_AT_ONCE = 100
_NAMED = 20
"""Dead tasks of a queue that are named one by one at a look; more are counted."""
_SETTLED_MS = 100.0
_LONGEST_LOOK_BACK_MS = 3_600_000.0


class Watch:
    """The chore of the leader, every `every_s`. It notes on the server up to when it looked; the next leader goes on
    from there: a death is told at least once, and twice only when a leader dies in between."""

    def __init__(self, broker: Broker, keys: Keys, every_s: float, queues: Callable[[], Collection[str]]) -> None:
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._queues = queues

    def step(self, now_ms: float) -> float:
        """Looks, when that is due; returns the seconds to the next look."""
        if pause := self._looks.begin():
            return pause
        self._tell_lost()
        self._tell_dead(now_ms - _SETTLED_MS)
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

    def _tell_dead(self, up_to_ms: float) -> None:
        last = self._broker.run(command("GET", self._keys.events_watched, read=lambda raw: float(raw or 0)))
        since_ms = max(last, up_to_ms - _LONGEST_LOOK_BACK_MS) if last else up_to_ms
        names = sorted(self._queues())
        calls: list[Call[Any]] = []
        for first in range(0, len(names), _AT_ONCE):
            some = [self._keys.queue(name) for name in names[first : first + _AT_ONCE]]
            for queue, (total, ids) in zip(some, self._died(some, since_ms, up_to_ms), strict=True):
                calls += self._told(queue, total, ids)
        self._broker.run_many([*calls, command("SET", self._keys.events_watched, repr(up_to_ms), read=bool)])

    def _died(self, queues: list[QueueKeys], since_ms: float, up_to_ms: float) -> list[tuple[int, list[str]]]:
        window = (f"({since_ms!r}", repr(up_to_ms))
        totals = self._broker.run_many([command("ZCOUNT", queue.dead, *window, read=int) for queue in queues])
        found = self._broker.run_many(
            [
                command("ZRANGEBYSCORE", queue.dead, *window, "LIMIT", 0, _NAMED if total else 0, read=_texts)
                for queue, total in zip(queues, totals, strict=True)
            ]
        ) if any(totals) else [[] for _ in queues]  # fmt: skip
        return list(zip(totals, found, strict=True))

    def _told(self, queue: QueueKeys, total: int, ids: list[str]) -> list[Call[Any]]:
        if not ids:
            return []
        asked = [command("HMGET", queue.task(one), "type", "error", "retry_count", read=_texts) for one in ids]
        calls: list[Call[Any]] = []
        for one, found in zip(ids, self._broker.run_each(asked), strict=True):
            type_, error, attempts = found if isinstance(found, list) else ("", "", "")
            calls.append(
                events.note(self._keys, "task_died", queue=queue.name, task=one, job=type_,
                            error=error.partition("\n")[0], attempts=attempts)
            )  # fmt: skip
        if total > len(ids):
            calls.append(events.note(self._keys, "tasks_died", queue=queue.name, count=total - len(ids)))
        return calls


def _texts(reply: list[bytes | None]) -> list[str]:
    return ["" if raw is None else raw.decode("utf-8", "replace") for raw in reply]
