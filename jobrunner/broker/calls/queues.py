"""Calls about whole queues: counts, configure, upkeep, purge, and the registry of all queues."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from jobrunner.broker.call import Call, Verb, Word, command
from jobrunner.broker.calls.formats import FORMAT, note, refuse_newer
from jobrunner.broker.keys import Keys, QueueKeys, is_queue
from jobrunner.broker.replies import fields, text, texts

_WHOLE = re.compile(rb"-?[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class QueueCounts:
    """How many tasks are in each state now, whether the queue is paused, and its totals since it exists."""

    waiting: int
    scheduled: int
    pending: int
    dead: int
    done: int
    paused: bool
    totals: dict[str, int]


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What one turn of upkeep did, and when the queue next needs one (None: nothing is foreseen)."""

    now_ms: float
    next_event_ms: float | None
    moved: int


def _counts(reply: list[Any]) -> QueueCounts:
    waiting, scheduled, pending, dead, done, paused, *totals = reply
    return QueueCounts(waiting, scheduled, pending, dead, done, bool(paused), read_totals(totals))


def read_totals(words: Sequence[bytes]) -> dict[str, int]:
    """Totals by name. What is no whole number is damage and left out."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {text(name): int(total) for name, total in pairs if _WHOLE.fullmatch(total)}


def _upkeep_done(reply: list[Any]) -> Upkeep:
    return Upkeep(float(reply[0]), float(reply[1]) if reply[1] else None, reply[2])


_count = Verb("counts", _counts)
_upkeep = Verb("upkeep", _upkeep_done)
_configure = Verb("configure", lambda _: None)
_purge = Verb("purge", int)
_want = Verb("want", int)
_enlist: Verb[Any] = Verb("enlist", lambda reply: reply, divisible=True)


def counts(keys: QueueKeys) -> Call[QueueCounts]:
    """How many tasks are in each state."""
    return _count.on(keys, tasks=keys.tasks)


def upkeep(keys: QueueKeys) -> Call[Upkeep]:
    """One bounded slice of promotion, recovery and trimming."""
    return _upkeep.on(keys, tasks=keys.tasks)


def configure(keys: QueueKeys, fields: Mapping[str, Word]) -> Call[None]:
    """Sets fields of the settings hash; an empty value removes one."""
    return _configure.on(keys, rest=[word for pair in fields.items() for word in pair])


def wake(keys: QueueKeys) -> Call[int]:
    """Hands a wake-up on to another idle worker."""
    return command("ZADD", keys.wake, 0, "1", read=int)


def purge(keys: QueueKeys, state: str, *, count: int = 1000) -> Call[int]:
    """Deletes up to `count` tasks that are waiting, scheduled, dead or done. Reply: how many."""
    counter = "history_purged" if state == "done" else "purged"
    picked = (getattr(keys, state), keys.counters, keys.outbox, keys.settings)
    return _purge.with_keys(picked, tasks=keys.tasks, count=count, counter=counter)


def settings(keys: QueueKeys) -> Call[dict[str, bytes]]:
    """The settings hash: what was configured, nothing for defaults."""
    return command("HGETALL", keys.settings, read=fields)


def ids(keys: QueueKeys, state: str, *, start: int, count: int) -> Call[list[str]]:
    """Ids of one state by rank, first in line first, at most `count`."""
    return command(
        "ZRANGE", getattr(keys, state), start, start + count - 1, read=texts
    )


def newest(keys: QueueKeys, state: str, *, count: int) -> Call[list[str]]:
    """Ids of one state, the highest score first, at most `count`."""
    return command("ZREVRANGE", getattr(keys, state), 0, count - 1, read=texts)


def score(keys: QueueKeys, state: str, task_id: str) -> Call[float | None]:
    """The score of a task in the set of that state; None when it is not there."""
    return command("ZSCORE", getattr(keys, state), task_id, read=lambda reply: None if reply is None else float(reply))


def want(keys: QueueKeys, *, lasts_ms: int) -> Call[int]:
    """Notes that somebody waits for room. Reply: how many more tasks the queue may hold now; -1: no limit."""
    return _want.on(keys, lasts_ms=lasts_ms)


def register(keys: Keys | QueueKeys, names: list[str]) -> list[Call[Any]]:
    """Adds queues to the registry, so that every coordinator looks after them, and notes the format of what is written.

    Goes before what is first written on a queue.
    """
    return [note(keys), command("SADD", keys.queues, *names, read=int)]


def register_if_room(keys: Keys | QueueKeys, names: list[str]) -> list[Call[Any]]:
    """The same where it may be left out: a server that is full takes no new member, and most are there already."""
    return [replace(call, read=lambda _: None, may_fail=True) for call in register(keys, names)]


def enlist(keys: Keys, names: Sequence[str]) -> Call[None]:
    """Notes the format and adds queues to the registry where that is missing, unless the server takes no more.

    Its reply is read as NewerFormat when a newer version wrote here.
    """

    def read(reply: list[Any] | None) -> None:
        found = reply[0] if reply else None
        if isinstance(found, list) and found:  # else what went wrong: a user who may not look is not told
            refuse_newer(keys, found[0])

    call = _enlist.with_keys((keys.format, keys.queues), rest=names, number=FORMAT)
    return replace(call, read=read, may_fail=True)


def registered(keys: Keys) -> Call[list[str]]:
    """Full names of all queues ever used, sorted. What can be no name of a queue is damage and left out."""
    return command("SMEMBERS", keys.queues, read=lambda reply: sorted(filter(is_queue, map(text, reply))))


