"""Calls about whole queues: counts, configure, maintenance, purge, and the registry of all queues."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand, command, fields, text, texts
from jobrunner.broker.calls.server import FORMAT, refuse_other_format
from jobrunner.broker.keys import Keys, QueueKeys, is_queue
from jobrunner.broker.resp import Arg

NAMES_AT_ONCE = 1000
"""Queue names per read, which blocks the server for about a third of a millisecond."""
_WHOLE = re.compile(rb"-?[0-9]{1,18}")
STATES = ("waiting", "scheduled", "pending", "dead", "done")
"""The states of tasks in counts and lists: each is the name of a sorted set, and of a field of QueueCounts."""


class QueueCounts(msgspec.Struct, frozen=True):
    """The number of tasks in each state, whether the queue is paused, and its totals since it was created."""

    waiting: int
    scheduled: int
    pending: int
    dead: int
    done: int
    paused: bool
    totals: dict[str, int]

    @property
    def open(self) -> int:
        """The number of unfinished tasks: waiting, scheduled or pending."""
        return self.waiting + self.scheduled + self.pending


def together(first: QueueCounts, other: QueueCounts) -> QueueCounts:
    """The sums of the counts of two shards of a queue. `paused` is that of `first`: the queue itself, which sorts
    before its other shards."""
    totals = Counter(first.totals)
    totals.update(other.totals)
    states = {state: getattr(first, state) + getattr(other, state) for state in STATES}
    return QueueCounts(**states, paused=first.paused, totals=dict(totals))


class _Declared(msgspec.Struct):
    queue: str


def declared(keys: Keys, pipeline: str) -> Call[list[str]]:
    """Full names of the queues of a published pipeline; none when it was not published, or is damaged."""
    return command("HGET", keys.pipelines, pipeline, read=_declared, may_fail=True)


def _declared(raw: bytes | None) -> list[str]:
    try:
        return [] if raw is None else [one.queue for one in msgspec.json.decode(raw, type=list[_Declared])]
    except msgspec.MsgspecError:
        return []


def is_registered(keys: Keys, name: str) -> Call[bool]:
    """Whether a queue was ever used."""
    return command("SISMEMBER", keys.queues, name, read=bool, may_fail=True)


class UpkeepReply(msgspec.Struct, frozen=True):
    """The result of a maintenance call: the number of moved tasks, and when the queue next needs maintenance (None: not
    foreseen)."""

    now_ms: float
    next_event_ms: float | None
    moved: int


class Probe(msgspec.Struct, frozen=True):
    """Whether a reserve may get a task from a queue now, else when to probe again (None: nothing is foreseen)."""

    now_ms: float
    next_event_ms: float | None
    keepalive_ms: float
    has_tasks: bool


def _counts(reply: list[Any]) -> QueueCounts:
    waiting, scheduled, pending, dead, done, paused, *totals = reply
    return QueueCounts(waiting, scheduled, pending, dead, done, bool(paused), read_totals(totals))


def read_totals(words: Sequence[bytes]) -> dict[str, int]:
    """Totals by name, without damaged totals, which are not integers."""
    pairs = zip(words[::2], words[1::2], strict=True)
    return {text(name): int(total) for name, total in pairs if _WHOLE.fullmatch(total)}


def _upkeep_done(reply: list[Any]) -> UpkeepReply:
    return UpkeepReply(float(reply[0]), float(reply[1]) if reply[1] else None, reply[2])


def _probed(reply: list[Any]) -> Probe:
    return Probe(float(reply[0]), float(reply[1]) if reply[1] else None, float(reply[2]), reply[3] == 1)


_ARCHIVED_SLICE = 500
_DIGEST = 16
_LONGEST_LEASE_MS = 3 * 86_400_000
"""A lease with more time left is of a batch member: these last 3.5 to 7 days (MEMBER_LEASE_MS in lua/lib/batch.lua)."""
_count = ScriptCommand("queue_counts", _counts)
_upkeep = ScriptCommand("maintain", _upkeep_done)
_probe = ScriptCommand("probe", _probed)
_configure = ScriptCommand("configure", lambda _: None)
_declare = ScriptCommand("queue_declare", texts)
_purge = ScriptCommand("purge", int)
_await_capacity = ScriptCommand("await_capacity", int)
_delete_queue: ScriptCommand[list[Any]] = ScriptCommand("delete_queue", lambda reply: reply)
_forget: ScriptCommand[list[str]] = ScriptCommand("queue_forget", texts)
_register: ScriptCommand[Any] = ScriptCommand("register", lambda reply: reply)


def counts(keys: QueueKeys) -> Call[QueueCounts]:
    """The number of tasks in each state, and the totals of the queue."""
    return _count.on(keys, tasks=keys.tasks)


def held_by_batches(keys: QueueKeys, *, now_ms: float) -> Call[int]:
    """The number of pending items in batches: leases of members last for days, because the batch has the short lease.
    `now_ms` is the time on the clock of the leases."""
    return command("ZCOUNT", keys.pending, now_ms + _LONGEST_LEASE_MS, "+inf", read=int)


def upkeep(keys: QueueKeys) -> Call[UpkeepReply]:
    """Promotes, recovers and trims one bounded slice of tasks."""
    return _upkeep.on(keys, tasks=keys.tasks)


def probe(keys: QueueKeys) -> Call[Probe]:
    """Runs maintenance, and reads whether a reserve could get a task."""
    return _probe.on(keys, tasks=keys.tasks)


def configure(
    keys: QueueKeys, fields: Mapping[str, Arg], *, by: str = "", changed: Iterable[str] = ()
) -> Call[None]:  # fmt: skip
    """Sets fields of the settings hash; an empty value removes a field. `by`: the author of the change, or '';
    `changed`: the fields that an earlier step of the same change has written."""
    rest = [word for pair in fields.items() for word in pair]
    return _configure.on(keys, rest=rest, by=by, changed=" ".join(changed))


def declare(keys: QueueKeys, fields: Mapping[str, Arg], *, place: str, ttl_ms: int) -> Call[list[str]]:
    """Publishes declared settings for `ttl_ms`; 0: those of a program that is no worker. Reply: the fields that
    changed."""
    words = [word for name in sorted(fields) for word in (name, fields[name])]
    digest = hashlib.sha256(repr(words).encode()).hexdigest()[:_DIGEST]
    return _declare.on(keys, rest=words, ttl_ms=ttl_ms, digest=digest, place=place)


def origins(keys: QueueKeys) -> Call[dict[str, bytes]]:
    """The origins of the settings: a hash that lua/queue_declare.lua describes; {} for a damaged hash."""
    return command("HGETALL", keys.declared, read=lambda reply: fields(reply or []), may_fail=True)


def wake(keys: QueueKeys) -> Call[int]:
    """Passes a wake-up on to another idle worker."""
    return command("ZADD", keys.wake, 0, "1", read=int)


def purge(keys: QueueKeys, state: str, *, count: int = 1000) -> Call[int]:
    """Deletes up to `count` tasks that are waiting, scheduled, dead or done. Reply: the number of deleted tasks."""
    return _purge_slice(keys, state, count, "", "history_purged" if state == "done" else "purged")


def delete_archived(keys: QueueKeys, state: str, *, before_ms: float) -> Call[int]:
    """Deletes a slice of the tasks that were dead or done before `before_ms`. Reply: their number; 0 at the end."""
    counter = "history_archived" if state == "done" else "trimmed"
    return _purge_slice(keys, state, _ARCHIVED_SLICE, before_ms, counter)


def _purge_slice(keys: QueueKeys, state: str, count: int, before: Arg, counter: str) -> Call[int]:
    picked = (getattr(keys, state), keys.counters, keys.outbox, keys.settings)
    return _purge.with_keys(picked, tasks=keys.tasks, count=count, before=before, counter=counter)


def settings(keys: QueueKeys) -> Call[dict[str, bytes]]:
    """The settings hash; settings that were not configured are absent."""
    return command("HGETALL", keys.settings, read=fields)


def ids(keys: QueueKeys, state: str, *, start: int, count: int) -> Call[list[str]]:
    """At most `count` ids of one state, lowest score first, from rank `start` on."""
    return command(
        "ZRANGE", getattr(keys, state), start, start + count - 1, read=texts
    )


def ids_from(keys: QueueKeys, state: str, *, score: str, skipped: int, count: int) -> Call[list[tuple[str, str]]]:
    """At most `count` ids of one state with their scores, lowest first, from `score` on, without the first `skipped`
    ids."""
    return command(
        "ZRANGEBYSCORE", getattr(keys, state), score, "+inf", "WITHSCORES", "LIMIT", skipped, count, read=_with_scores
    )


def _with_scores(reply: list[bytes]) -> list[tuple[str, str]]:
    return [(text(task_id), score.decode()) for task_id, score in zip(reply[::2], reply[1::2], strict=True)]


def coming(keys: QueueKeys, *, until_ms: float) -> list[Call[int]]:
    """The numbers of items of a queue that are waiting, pending, and scheduled to be due by `until_ms` (Unix ms)."""
    return [
        command("ZCARD", keys.waiting, read=int),
        command("ZCARD", keys.pending, read=int),
        command("ZCOUNT", keys.scheduled, "-inf", until_ms, read=int),
    ]


def newest(keys: QueueKeys, state: str, *, count: int) -> Call[list[str]]:
    """At most `count` ids of one state, highest score first."""
    return command("ZREVRANGE", getattr(keys, state), 0, count - 1, read=texts)


def score(keys: QueueKeys, state: str, task_id: str) -> Call[float | None]:
    """The score of a task in the set of `state`; None when the task is not in the set."""
    return command("ZSCORE", getattr(keys, state), task_id, read=lambda reply: None if reply is None else float(reply))


def await_capacity(keys: QueueKeys, *, lasts_ms: int) -> Call[int]:
    """Notes that a producer waits for capacity. Reply: the free capacity of the queue in tasks; -1: no limit."""
    return _await_capacity.on(keys, lasts_ms=lasts_ms)


def _note_format(keys: Keys | QueueKeys) -> Call[None]:
    """Writes the format number below a prefix without a number."""
    return command("SETNX", keys.format, FORMAT, read=lambda _: None)


def register(keys: Keys | QueueKeys, names: list[str]) -> list[Call[Any]]:
    """Adds queues to the registry, so that every coordinator maintains them, and notes the format of the keys.

    Sent before the first write on a queue.
    """
    return [_note_format(keys), command("SADD", keys.queues, *names, read=int)]


def register_if_room(keys: Keys | QueueKeys, names: list[str]) -> list[Call[Any]]:
    """`register` without errors, for calls that work on a full server: such a server refuses new members, and most
    queues are registered already."""
    return [replace(call, read=lambda _: None, may_fail=True) for call in register(keys, names)]


def register_queues(keys: Keys, names: Sequence[str]) -> Call[bool]:
    """Notes a missing format and adds missing queues to the registry, unless the server is full.

    Reading the reply raises NewerFormat or OlderFormat when another version wrote below the prefix. Reply: whether both
    were missing, as with an unused prefix.
    """

    def read(reply: list[Any] | None) -> bool:
        found, added = reply if reply and len(reply) > 1 else (None, None)
        if isinstance(found, list) and found:  # else an error, as for a user without the right to read
            refuse_other_format(keys, found[0])
        return found == [None] and isinstance(added, list) and added > [0]

    call = _register.for_each((keys.format, keys.queues), rest=names, number=FORMAT)
    return replace(call, read=read, may_fail=True)


def registered(keys: Keys, cursor: int) -> Call[tuple[int, list[str]]]:
    """A slice of the full names of all queues: (cursor of the next slice, 0 after the last; names).

    A queue may be in two slices. Damaged entries, which are no valid queue names, are left out.
    """

    def read(reply: list[Any]) -> tuple[int, list[str]]:
        return int(reply[0]), [name for raw in reply[1] if is_queue(name := text(raw))]

    return command("SSCAN", keys.queues, cursor, "COUNT", NAMES_AT_ONCE, read=read)


def are_registered(keys: Keys, names: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these queues was ever used."""
    return command("SMISMEMBER", keys.queues, *names, read=lambda reply: [found == 1 for found in reply])


def seem_registered(keys: Keys, names: Sequence[str]) -> Call[list[bool]]:
    """Whether each of these queues was ever used; False for a user without the right to read the registry."""
    call = are_registered(keys, names)
    return replace(call, read=lambda reply: call.read(reply or [0] * len(names)), may_fail=True)


def some_registered(keys: Keys) -> Call[list[str]]:
    """At most 1,000 names of used queues, at random."""
    return command(
        "SRANDMEMBER", keys.queues, NAMES_AT_ONCE, read=lambda reply: list(filter(is_queue, map(text, reply)))
    )


def forget(keys: Keys, names: Sequence[str], *, unused_ms: int | None) -> Call[list[str]]:
    """Deletes the totals of queues that were unused for `unused_ms`; None only marks queues that are unused now.

    Reply: for each name 'forgotten', 'marked', 'early' or 'used' (see lua/queue_forget.lua), or an error.
    """
    return _forget.for_each(tuple(map(keys.counters, names)), unused_ms="" if unused_ms is None else unused_ms)


def delete(keys: QueueKeys, *, force: bool, states: Sequence[bytes]) -> Call[list[Any]]:
    """Deletes an empty queue, or with `force` a slice of its tasks; `states`: keys of its periodic jobs.

    Reply: a status word, and numbers (see lua/delete_queue.lua).
    """

    def read(reply: list[Any]) -> list[Any]:
        return [text(reply[0]), *reply[1:]]

    return _delete_queue.on(keys, rest=states, read=read, tasks=keys.tasks, force="1" if force else "", count=500)


def leaving(keys: Keys, names: Iterable[str], now_ms: float) -> Call[int]:
    """Notes queues that are about to leave the registry, so that the leader finishes the removal if the caller dies."""
    return command("ZADD", keys.queues_leaving, *[word for name in names for word in (round(now_ms), name)], read=int)


def left(keys: Keys, names: Sequence[str]) -> list[Call[Any]]:
    """Removes queues from the registry. Replies after the first: whether each queue exists nevertheless."""
    return [command("SREM", keys.queues, *names, read=int), *[exists(keys.queue(name)) for name in names]]


def exists(keys: QueueKeys) -> Call[int]:
    """Whether anything was written on a queue: the number of its keys, of those that a first task creates."""
    return command("EXISTS", keys.counters, keys.arrival, keys.waiting, keys.scheduled, keys.settings, read=int)


def still_leaving(keys: Keys, before_ms: float, *, count: int) -> Call[list[str]]:
    """Up to `count` queues that were noted as leaving the registry by `before_ms`."""
    return command("ZRANGEBYSCORE", keys.queues_leaving, "-inf", round(before_ms), "LIMIT", 0, count, read=texts)


def not_leaving(keys: Keys, names: Sequence[str]) -> Call[int]:
    """Deletes the notes of queues that are about to leave the registry."""
    return command("ZREM", keys.queues_leaving, *names, read=int)
