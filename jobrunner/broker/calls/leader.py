"""Calls of the coordinator and of heartbeats: leadership, periodic jobs, workers, job metadata."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand, command, fields, in_slices, text, texts, whole
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.resp import Arg


class Leadership(msgspec.Struct, frozen=True):
    """The state of the leader's lock. `epoch`: the fencing number when the caller leads, else 0; `ends_in_ms`: the time
    to live of the lock."""

    now_ms: float
    epoch: int
    ends_in_ms: int
    version: int
    """The number of changes of the published periodic jobs."""


class HeartbeatReply(msgspec.Struct, frozen=True):
    """What the server tells a worker with each heartbeat."""

    commands: dict[str, bytes]
    redacted: list[str] | None
    """The names of parameters to hide; None for a user who may not read them."""
    server_ms: float | None
    """The server's clock, Unix ms; None where a clock was given to it."""


def _heartbeat_reply(reply: list[Any]) -> HeartbeatReply:
    commands, redacted, now = reply
    return HeartbeatReply(
        fields(commands), None if redacted is None else texts(redacted), None if now is None else float(now)
    )


def _leadership(reply: list[Any]) -> Leadership:
    return Leadership(float(reply[0]), *reply[1:])


_take_leadership = ScriptCommand("take_leadership", _leadership)
_announce = ScriptCommand("worker_announce", _heartbeat_reply)
_DIGEST = 16
"""Digits of the digest that distinguish the definitions of one job."""
_define = ScriptCommand("periodic_define", int)
_set_added = ScriptCommand("periodic_set", text)
_fire = ScriptCommand("periodic_fire", text)
_anchor = ScriptCommand("periodic_anchor", text)


def take_leadership(keys: Keys, worker_id: str, *, ttl_ms: int, resign: bool = False) -> Call[Leadership]:
    """Takes, renews or gives up leadership."""
    return _take_leadership.with_keys(
        (keys.leader, keys.epoch, keys.periodics_version),
        worker=worker_id,
        ttl_ms=ttl_ms,
        resign="1" if resign else "",
    )


def fire(
    keys: QueueKeys,
    name: str,
    *,
    expected: str,
    tick_ms: int,
    due_ms: float,
    epoch: int,
    task_id: str,
    priority: int,
    overlap: str,
    schedule: str,
    together_ms: int,
    fields: Sequence[Arg],
) -> Call[str]:
    """Fires a tick of a periodic job. Reply: 'fired', 'skipped', 'disabled', 'missed' or 'fenced' (see
    lua/periodic_fire.lua)."""
    picked = (keys.waiting, keys.scheduled, keys.pending, keys.counters, keys.arrival, keys.wake)
    return _fire.with_keys(
        (*picked, keys.periodic(name)),
        rest=fields,
        tasks=keys.tasks,
        expected=expected,
        tick=tick_ms,
        epoch=epoch,
        id=task_id,
        priority=priority,
        due=repr(due_ms),
        overlap=overlap,
        schedule=schedule,
        together=together_ms,
    )


def anchor(
    keys: QueueKeys, name: str, *, expected: str, to_ms: int, ahead_ms: int | None, epoch: int, schedule: str
) -> Call[str]:
    """Moves the last tick, and its task too when it moves backwards. With `ahead_ms`, only a tick further ahead of the
    clock than that is moved. Reply: 'anchored', 'missed' or 'fenced'."""
    return _anchor.with_keys(
        (keys.scheduled, keys.wake, keys.periodic(name)), tasks=keys.tasks, expected=expected, to=to_ms,
        ahead_ms="" if ahead_ms is None else ahead_ms, epoch=epoch, schedule=schedule,
    )  # fmt: skip


def periodic_state(keys: QueueKeys, name: str) -> Call[dict[str, bytes]]:
    """The state of a periodic job: last, schedule, task, together, fired, skipped."""
    return command("HGETALL", keys.periodic(name), read=fields)


def set_periodic_state(keys: QueueKeys, name: str, state: Mapping[str, bytes]) -> Call[int]:
    """Sets fields of the state of a periodic job."""
    return command("HSET", keys.periodic(name), *(word for pair in state.items() for word in pair), read=int)


def delete_periodic_state(keys: QueueKeys, name: str) -> Call[int]:
    """Deletes the state of a periodic job."""
    return command("DEL", keys.periodic(name), read=int)


def keep_periodic_state(keys: QueueKeys, name: str) -> Call[int]:
    """Cancels the expiry of the state of a periodic job that workers know again."""
    return command("PERSIST", keys.periodic(name), read=int)


def end_periodic_state(keys: QueueKeys, name: str, in_ms: int) -> Call[int]:
    """Lets the state of a periodic job expire, as no worker knows the job any more."""
    return command("PEXPIRE", keys.periodic(name), in_ms, read=int)


def define_periodics(keys: Keys, definitions: Mapping[str, bytes], *, ttl_ms: int = 0) -> Call[int]:
    """Publishes definitions of periodic jobs, so that a leader without the job's code fires it too. Definitions count
    as published for `ttl_ms`, and for 30 seconds at least."""
    words: list[Arg] = []
    for name, definition in definitions.items():
        words += (name, definition, hashlib.sha256(definition).hexdigest()[:_DIGEST])
    picked = (keys.periodics, keys.periodics_seen, keys.periodics_version, keys.periodics_deployed)
    return _define.with_keys(picked, rest=words, ttl_ms=ttl_ms)


def forget_periodic(keys: Keys, name: str) -> list[Call[int]]:
    """Removes the published definition of a periodic job."""
    return [
        command("HDEL", keys.periodics, name, read=int),
        command("ZREM", keys.periodics_seen, name, read=int),
        command("HDEL", keys.periodics_deployed, name, read=int),
    ]


def periodic_queue(keys: Keys, name: str) -> Call[str | None]:
    """The queue with the state of a periodic job; None when no queue was noted yet."""
    return command("HGET", keys.periodics_queues, name, read=lambda reply: None if reply is None else text(reply))


def note_periodic_queue(keys: Keys, name: str, queue: str) -> Call[int]:
    """Notes the queue with the state of a periodic job."""
    return command("HSET", keys.periodics_queues, name, queue, read=int)


def drop_periodic_queue(keys: Keys, name: str) -> Call[int]:
    """Deletes the note of the queue with the state of a periodic job."""
    return command("HDEL", keys.periodics_queues, name, read=int)


def periodics(keys: Keys) -> Call[dict[str, bytes]]:
    """All published definitions of periodic jobs, by name."""
    return command("HGETALL", keys.periodics, read=fields)


def periodics_seen(keys: Keys) -> Call[dict[str, float]]:
    """When a worker last published each periodic job, Unix ms; a later time for a `ttl_ms` above 30 seconds."""
    return command(
        "ZRANGE", keys.periodics_seen, 0, -1, "WITHSCORES",
        read=lambda reply: {name: float(ms) for name, ms in fields(reply).items()},
    )  # fmt: skip


def added_periodics(keys: Keys) -> Call[dict[str, bytes]]:
    """The definitions of all periodic jobs that were added at run time, by name."""
    return command("HGETALL", keys.periodics_added, read=fields)


def added_periodic(keys: Keys, name: str) -> Call[bytes]:
    """The definition of a periodic job that was added at run time; empty without one."""
    return command("HGET", keys.periodics_added, name, read=lambda reply: b"" if reply is None else reply)


def set_added_periodic(keys: Keys, name: str, *, expected: bytes, definition: bytes) -> Call[str]:
    """Replaces the definition `expected` of a periodic job that was added at run time; empty: none. Reply: 'set', or
    'changed' when there is another one."""
    picked = (keys.periodics_added, keys.periodics_version)
    return _set_added.with_keys(picked, name=name, expected=expected, definition=definition)


def enable_periodic(keys: QueueKeys, name: str, *, enabled: bool) -> Call[int]:
    """Enables or disables the ticks of a periodic job. Ticks that passed meanwhile are not fired later."""
    if enabled:
        return command("HDEL", keys.periodic(name), "disabled", read=int)
    return command("HSET", keys.periodic(name), "disabled", 1, read=int)


def start_periodic(keys: QueueKeys, name: str, start_ms: int) -> Call[int]:
    """Notes the time after which ticks of a periodic job count, unless a time is noted."""
    return command("HSETNX", keys.periodic(name), "last", start_ms, read=int)


def adopt_schedule(keys: QueueKeys, name: str, schedule: str) -> Call[int]:
    """Notes the digest of the schedule of the last tick, unless a digest is noted."""
    return command("HSETNX", keys.periodic(name), "schedule", schedule, read=int)


def announce(keys: Keys, worker_id: str, description: Mapping[str, Arg], *, ttl_ms: int) -> Call[HeartbeatReply]:
    """Sends the heartbeat and the description of a worker."""
    words = [word for pair in description.items() for word in pair]
    picked = (keys.worker(worker_id), keys.workers, keys.commands(worker_id))
    return _announce.with_keys(picked, rest=words, id=worker_id, ttl_ms=ttl_ms)


def heartbeats(keys: Keys, most: int) -> Call[list[tuple[str, float]]]:
    """The last heartbeats of at most `most` workers, the latest first, Unix ms. The list also has, for a day, workers
    that ended without a stop, until a leader reports them as lost."""
    return command(
        "ZREVRANGE", keys.workers, 0, most - 1, "WITHSCORES",
        read=lambda reply: [(text(one), float(at)) for one, at in zip(reply[::2], reply[1::2], strict=True)],
    )  # fmt: skip


def retire(keys: Keys, worker_id: str) -> list[Call[Any]]:
    """Removes a worker from the list of workers, with its commands."""
    return [
        command("DEL", keys.worker(worker_id), keys.commands(worker_id), read=int),
        command("ZREM", keys.workers, worker_id, read=int),
    ]


def order(keys: Keys, worker_id: str, name: str, value: str, *, ttl_ms: int) -> list[Call[Any]]:
    """Sends a command to a worker: `quiet` 1 or 0, `stop` 1. The worker reads it with its next heartbeat."""
    place = keys.commands(worker_id)
    return [command("HSET", place, name, value, read=int), command("PEXPIRE", place, ttl_ms, read=int)]


def metadata_get(keys: Keys, job: str, field: str) -> Call[bytes | None]:
    """One field of a job's metadata."""
    return command("HGET", keys.job(job), field, read=lambda reply: reply)


def metadata_all(keys: Keys, job: str) -> Call[dict[str, bytes]]:
    """All of a job's metadata."""
    return command("HGETALL", keys.job(job), read=fields)


def metadata_set(keys: Keys, job: str, field: str, value: Arg) -> Call[int]:
    """Sets one field of a job's metadata."""
    return command("HSET", keys.job(job), field, value, read=int)


def metadata_increment(keys: Keys, job: str, field: str, by: int) -> Call[int]:
    """Adds to a field of a job's metadata atomically. Reply: the sum."""
    return command("HINCRBY", keys.job(job), field, by, read=int, repeatable=False)


MOST_AT_ONCE = 100
"""Queues per call, which blocks the server for about half a millisecond."""
_IN_WORK = 2


class ScanReply(msgspec.Struct, frozen=True, kw_only=True):
    """The queues and workers that need the leader. Queues that cannot be read are left out."""

    posted: list[str] = msgspec.field(default_factory=list)
    """Hash tags with ends of tasks in their outbox, in the order of the scanned queues."""
    finishing: list[str] = msgspec.field(default_factory=list)
    """Queues with batches that need no driver to finish, due or not."""
    dead: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of tasks of each queue that died since the queue was created."""
    silent: list[str] = msgspec.field(default_factory=list)
    """Ids of workers whose heartbeats stopped without a retirement."""
    totals: dict[str, int] = msgspec.field(default_factory=dict)
    """The sum of the totals of each queue, which changes whenever anything happens there."""
    changed: list[str] = msgspec.field(default_factory=list)
    """New queues, and queues whose totals changed since the scan before. The caller fills this in."""
    due: dict[str, float] = msgspec.field(default_factory=dict)
    """When queues next need maintenance, Unix ms; a queue without foreseen maintenance is absent."""
    holding: list[str] = msgspec.field(default_factory=list)
    """Queues that hold any task or batch."""
    in_work: list[str] = msgspec.field(default_factory=list)
    """Queues with tasks or batches in progress, a part of `holding`."""
    unmarked: list[str] = msgspec.field(default_factory=list)
    """Queues that hold nothing and do not count as unused yet."""
    unused: list[str] = msgspec.field(default_factory=list)
    """Queues that were unused for `unused_ms`, and may be forgotten."""


_leader_scan: ScriptCommand[Any] = ScriptCommand("leader_scan", lambda reply: reply)


def leader_scan(
    keys: Keys, queues: Sequence[str], *, with_workers: bool = True, unused_ms: int = 0
) -> list[Call[ScanReply]]:
    """Calls that together scan all queues; the first call also scans the workers."""
    slices = list(in_slices(queues, MOST_AT_ONCE))
    if with_workers:
        slices = slices or [()]
    workers = (keys.workers,) if with_workers else ()
    return [_at(keys, some, () if n else workers, unused_ms) for n, some in enumerate(slices)]


def _at(keys: Keys, queues: Sequence[str], workers: tuple[bytes, ...], unused_ms: int) -> Call[ScanReply]:
    def read(reply: list[Any]) -> ScanReply:
        found = ScanReply()
        for ids in reply[: len(workers)]:
            found.silent.extend(texts(ids) if isinstance(ids, list) else ())
        for name, one in zip(queues, reply[len(workers) :], strict=True):
            if isinstance(one, int):
                found.totals[name], found.dead[name] = one, 0
            elif isinstance(one, list):
                _take(found, name, one)
        return found

    call = _leader_scan.for_each((*workers, *map(keys.counters, queues)), unused_ms=unused_ms)
    return replace(call, read=read)


def _take(found: ScanReply, name: str, said: list[Any]) -> None:
    posted, finishing, dead, total, due, holds, unused = said
    tag = name.partition("/")[0]
    if posted and tag not in found.posted[-1:]:
        found.posted.append(tag)
    if finishing:
        found.finishing.append(name)
    if dead is not None:
        found.dead[name], found.totals[name] = whole(dead), total
    if due:
        found.due[name] = float(due)
    if holds:
        found.holding.append(name)
    if holds == _IN_WORK:
        found.in_work.append(name)
    if unused:
        (found.unused if unused == b"unused" else found.unmarked).append(name)


def together(parts: Collection[ScanReply]) -> ScanReply:
    """Merges the replies of several calls."""
    return ScanReply(
        posted=list(dict.fromkeys(tag for part in parts for tag in part.posted)),
        finishing=[name for part in parts for name in part.finishing],
        dead={name: total for part in parts for name, total in part.dead.items()},
        silent=[worker for part in parts for worker in part.silent],
        totals={name: total for part in parts for name, total in part.totals.items()},
        due={name: at for part in parts for name, at in part.due.items()},
        holding=[name for part in parts for name in part.holding],
        in_work=[name for part in parts for name in part.in_work],
        unmarked=[name for part in parts for name in part.unmarked],
        unused=[name for part in parts for name in part.unused],
    )
