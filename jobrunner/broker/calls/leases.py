"""Calls about tasks in a worker's hands: reserve, commit, fail, release, extend, move, pop.

A report is a tuple that begins with the task's id and the lease's token; a call takes a batch of them and replies one
word for each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from jobrunner.attempt import Attempt, read_attempt
from jobrunner.broker.call import Call, Verb, Word
from jobrunner.broker.keys import QueueKeys


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a reserve answered. `next_event_ms` is when the queue next needs a look; None when nothing is foreseen."""

    now_ms: float
    next_event_ms: float | None
    attempts: list[Attempt]


def _texts(reply: list[bytes]) -> list[str]:
    return [word.decode() for word in reply]


_reserve = Verb("reserve", lambda reply: reply, repeatable=False)
_pop = Verb("pop", lambda reply: reply, repeatable=False)
_commit = Verb("commit", _texts)
_fail = Verb("fail", _texts)
_release = Verb("release", _texts)
_extend = Verb("extend", _texts)
_progress = Verb("progress", lambda reply: reply.decode())
_move = Verb("move", lambda reply: reply.decode())


def _reservation(queue: str, token: str, reply: list[Any]) -> Reservation:
    leases = [read_attempt(queue, f"{token}.{n}", raw) for n, raw in enumerate(reply[2:], 1)]
    return Reservation(float(reply[0]), float(reply[1]) if reply[1] else None, leases)


def reserve(keys: QueueKeys, count: int, *, token: str, keepalive_ms: int | None = None) -> Call[Reservation]:
    """Up to `count` tasks, first in line. `token` must be new for each call; leases get token.1, token.2, ..."""
    call = _reserve.on(
        keys, tasks=keys.tasks, count=count, token=token, keepalive_ms="" if keepalive_ms is None else keepalive_ms
    )
    return Call(
        read=partial(_reservation, keys.name, token),
        words=call.words,
        script=call.script,
        keys=call.keys,
        repeatable=False,
    )


def pop(keys: QueueKeys, count: int) -> Call[list[list[Any]]]:
    """Up to `count` tasks, at most once. Reply: lists of id, type, payload, headers (bytes)."""
    return _pop.on(keys, tasks=keys.tasks, count=count)


def commit(keys: QueueKeys, reports: Iterable[tuple[str, str, int, str, bytes]]) -> Call[list[str]]:
    """Reports: id, token, keep_ms, outcome ('succeeded' or 'cancelled'), result."""
    return _commit.on(
        keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name, finished=keys.finished
    )


def fail(keys: QueueKeys, reports: Iterable[tuple[str, str, int, str, str]]) -> Call[list[str]]:
    """Reports: id, token, delay_ms, 'retry' or 'dead', error."""
    return _fail.on(
        keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name, finished=keys.finished
    )


def release(keys: QueueKeys, reports: Iterable[tuple[str, str, int | str]]) -> Call[list[str]]:
    """Reports: id, token, delay_ms ('' = back to its place)."""
    return _release.on(keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name)


def extend(keys: QueueKeys, reports: Iterable[tuple[str, str, float]]) -> Call[list[str]]:
    """Reports: id, token, keepalive_ms. Reply: the new lease end (Unix ms; '!' in front: asked to stop), or why not."""
    return _extend.on(keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name)


def progress(keys: QueueKeys, task_id: str, token: str, note: bytes) -> Call[str]:
    """Notes how far a running task has come. Reply: 'ok', 'stop' (asked to stop), or why it was refused."""
    return _progress.on(keys, tasks=keys.tasks, queue=keys.name, id=task_id, token=token, progress=note)


def move(
    keys: QueueKeys,
    to: QueueKeys,
    *,
    task_id: str,
    token: str,
    fields: Sequence[Word] = (),
    priority: int | None = None,
    delay_ms: float = 0,
    max_hops: int = 0,
) -> Call[str]:
    """Into another queue of the same tag. `fields` are set in the same step: field, value, ..."""
    entering = (to.waiting, to.scheduled, to.counters, to.arrival, to.wake)
    leaving = (keys.waiting, keys.scheduled, keys.pending, keys.dead, keys.settings, keys.counters, keys.wake)
    return _move.with_keys(
        leaving + entering,
        rest=fields,
        tasks=keys.tasks,
        queue=keys.name,
        to_queue=to.name,
        id=task_id,
        token=token,
        priority="" if priority is None else priority,
        delay_ms=delay_ms,
        max_hops=max_hops,
    )
