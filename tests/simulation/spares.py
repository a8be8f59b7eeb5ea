"""Judges what goes away without a report of a worker: tasks that are purged, queues that are deleted or forgotten, and
entries of the history."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from jobrunner.broker.keys import QueueKeys
from tests.simulation.seen import Seen, Violation, queue_of_key
from tests.simulation.workers import KEYS

_ENDED = ("succeeded", "dropped", "cancelled", "removed")
_SLACK_MS = 1.0


@dataclass(slots=True)
class SeenHistory:
    """The entries that came to the history of a queue, and what it keeps."""

    age_ms: float
    most: int
    ends: dict[bytes, float] = field(default_factory=dict)
    """When each task ended, Unix ms."""


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    tasks: dict[bytes, Seen]
    histories: dict[bytes, SeenHistory]


def note_end(observer: _Observer, queue: bytes, task_id: bytes) -> None:
    """Takes in that a task of a queue ended by the hand of its holder."""
    if history := observer.histories.get(queue):
        history.ends[task_id] = observer.now()


def check_replay(observer: _Observer, made: Seen, headers: bytes) -> None:
    """Takes in a task that has another one done again. Raises Violation."""
    original = msgspec.json.decode(headers)["replayed_from"]
    seen = observer.tasks[original.encode()]
    if seen.outcome not in _ENDED:
        raise Violation(f"{original} was replayed, and has not ended")
    if (made.payload, made.priority, made.key) != (seen.payload, seen.priority, seen.key):
        raise Violation(f"{original} was replayed with {made.payload!r}, and it had {seen.payload!r}")


def purge(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if keys[0].endswith(b":done"):
        return
    gone = _vanish(observer, queue_of_key(keys[0]), args[0])
    if len(gone) != reply:
        raise Violation(f"{reply} tasks were purged, and {len(gone)} are gone")
    for task_id in gone:
        if observer.tasks[task_id].ends > observer.now():
            raise Violation(f"{task_id.decode()} was purged while its lease holds")


def delete_queue(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    queue = queue_of_key(keys[0])
    if reply[0] == b"more":
        _vanish(observer, queue, args[0])
    elif reply[0] == b"deleted":
        _leaves(observer, queue, "deleted")


def queue_forget(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for key, word in zip(keys, reply, strict=True):
        if word == b"forgotten":
            _leaves(observer, queue_of_key(key), "forgotten")


def _leaves(observer: _Observer, queue: bytes, how: str) -> None:
    """Its totals begin anew."""
    for task_id, seen in observer.tasks.items():
        if seen.queue == queue:
            if seen.outcome not in _ENDED:
                raise Violation(f"{queue.decode()} was {how} while {task_id.decode()} had not ended")
            seen.is_of_old_queue = True


def _vanish(observer: _Observer, queue: bytes, tasks: bytes) -> list[bytes]:
    """Notes the end of the tasks that are gone. Returns them."""
    own = [task_id for task_id, seen in observer.tasks.items() if seen.queue == queue and seen.outcome not in _ENDED]
    gone = [task_id for task_id in own if not observer.ask("EXISTS", tasks + task_id)]
    for task_id in gone:
        observer.tasks[task_id].outcome = "removed"
    return gone


def problems(observer: _Observer, queues: Iterable[QueueKeys]) -> Iterator[str]:
    """Yields what is wrong with the registry of queues, and with history, at the end of a run."""
    for keys in queues:
        if observer.ask("EXISTS", keys.counters) > observer.ask("SISMEMBER", KEYS.queues, keys.name):
            yield f"{keys.name} was written on, and is not in the registry of queues"
        if history := observer.histories.get(keys.name.encode()):
            yield from _of_history(observer, keys, history)


def _of_history(observer: _Observer, keys: QueueKeys, history: SeenHistory) -> Iterator[str]:
    now = observer.now()
    words = observer.ask("ZRANGE", keys.done, 0, -1, "WITHSCORES")
    entries = dict(zip(words[::2], map(float, words[1::2]), strict=True))
    for task_id, ended in entries.items():
        known = history.ends.get(task_id)
        if known is None or abs(known - ended) > _SLACK_MS:
            yield f"{task_id.decode()} is in the history with an end at {ended:.0f}, and ended at {known}"
        if ended + history.age_ms > now and not observer.ask("EXISTS", keys.tasks + task_id):
            yield f"{task_id.decode()} is in the history without its hash"
    noted, trimmed = observer.ask("HMGET", keys.settings, "history_noted", "history_trimmed")
    until = float((trimmed if entries else noted) or 0)
    for task_id, ended in history.ends.items():
        if task_id not in entries and ended > until + _SLACK_MS:
            yield f"{task_id.decode()} ended at {ended:.0f} and is not in the history, which is trimmed to {until:.0f}"
