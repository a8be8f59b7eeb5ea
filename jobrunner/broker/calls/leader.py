"""Calls of the coordinator and of heartbeats: leadership, periodic jobs, workers, job metadata."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobrunner.broker.call import Arg, Call, ScriptCommand, command
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.replies import fields, text


@dataclass(frozen=True, slots=True)
class Leadership:
    """`epoch` is the fencing number when the caller leads, else 0; `ends_in_ms` is what the leader's lock has left."""

    now_ms: float
    epoch: int
    ends_in_ms: int
    version: int
    """Counts the changes of periodic jobs."""


def _leadership(reply: list[Any]) -> Leadership:
    return Leadership(float(reply[0]), *reply[1:])


_take_leadership = ScriptCommand("take_leadership", _leadership)
_announce = ScriptCommand("worker_announce", fields)
_DIGEST = 16
"""Digits of the digest that distinguish the definitions of one job."""
_define = ScriptCommand("periodic_define", int)
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
    fields: Sequence[Arg],
) -> Call[str]:
    """One tick of a periodic job. Reply: 'fired', 'skipped', 'disabled', 'missed', 'fenced' (lua/periodic_fire.lua)."""
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
    )


def anchor(keys: QueueKeys, name: str, *, expected: str, to_ms: int, ahead_ms: int, epoch: int) -> Call[str]:
    """Moves a last tick back that is further ahead of the clock. Reply: 'anchored', 'missed' or 'fenced'."""
    return _anchor.with_keys(
        (keys.periodic(name),), expected=expected, to=to_ms, ahead_ms=ahead_ms, epoch=epoch
    )  # fmt: skip


def periodic_state(keys: QueueKeys, name: str) -> Call[dict[str, bytes]]:
    """The state of a periodic job: last, task, fired, skipped."""
    return command("HGETALL", keys.periodic(name), read=fields)


def keep_periodic_state(keys: QueueKeys, name: str) -> Call[int]:
    """Keeps the state of a periodic job that is known again, which was to expire."""
    return command("PERSIST", keys.periodic(name), read=int)


def end_periodic_state(keys: QueueKeys, name: str, in_ms: int) -> Call[int]:
    """Lets the state of a periodic job expire that no worker knows any more."""
    return command("PEXPIRE", keys.periodic(name), in_ms, read=int)


def define_periodics(keys: Keys, definitions: Mapping[str, bytes]) -> Call[int]:
    """Publishes definitions, so that a leader that does not know the job fires it too."""
    words: list[Arg] = []
    for name, definition in definitions.items():
        words += (name, definition, hashlib.sha256(definition).hexdigest()[:_DIGEST])
    picked = (keys.periodics, keys.periodics_seen, keys.periodics_version, keys.periodics_deployed)
    return _define.with_keys(picked, rest=words)


def forget_periodic(keys: Keys, name: str) -> list[Call[int]]:
    """Removes a definition."""
    return [
        command("HDEL", keys.periodics, name, read=int),
        command("ZREM", keys.periodics_seen, name, read=int),
        command("HDEL", keys.periodics_deployed, name, read=int),
    ]


def periodics(keys: Keys) -> Call[dict[str, bytes]]:
    """All definitions by name."""
    return command("HGETALL", keys.periodics, read=fields)


def periodics_seen(keys: Keys) -> Call[dict[str, float]]:
    """When a worker last published each periodic job, Unix ms."""
    return command(
        "ZRANGE", keys.periodics_seen, 0, -1, "WITHSCORES",
        read=lambda reply: {name: float(ms) for name, ms in fields(reply).items()},
    )  # fmt: skip


def enable_periodic(keys: QueueKeys, name: str, *, enabled: bool) -> Call[int]:
    """Enables or disables the ticks of a periodic job. Ticks that passed while it was disabled are not made up for."""
    if enabled:
        return command("HDEL", keys.periodic(name), "disabled", read=int)
    return command("HSET", keys.periodic(name), "disabled", 1, read=int)


def start_periodic(keys: QueueKeys, name: str, start_ms: int) -> Call[int]:
    """Notes the time after which ticks of a periodic job count, unless there is one."""
    return command("HSETNX", keys.periodic(name), "last", start_ms, read=int)


def announce(keys: Keys, worker_id: str, description: Mapping[str, Arg], *, ttl_ms: int) -> Call[dict[str, bytes]]:
    """The heartbeat of a worker, with its description. Reply: commands for it."""
    words = [word for pair in description.items() for word in pair]
    picked = (keys.worker(worker_id), keys.workers, keys.commands(worker_id))
    return _announce.with_keys(picked, rest=words, id=worker_id, ttl_ms=ttl_ms)


def retire(keys: Keys, worker_id: str) -> list[Call[Any]]:
    """Takes a worker off the list."""
    return [
        command("DEL", keys.worker(worker_id), keys.commands(worker_id), read=int),
        command("ZREM", keys.workers, worker_id, read=int),
    ]


def order(keys: Keys, worker_id: str, name: str, value: str, *, ttl_ms: int) -> list[Call[Any]]:
    """A command for a worker: `quiet` 1 or 0, `stop` 1. The worker reads it with its next heartbeat."""
    place = keys.commands(worker_id)
    return [command("HSET", place, name, value, read=int), command("PEXPIRE", place, ttl_ms, read=int)]


def metadata_get(keys: Keys, job: str, field: str) -> Call[bytes | None]:
    """One field of a job's metadata."""
    return command("HGET", keys.job(job), field, read=lambda reply: reply)


def metadata_all(keys: Keys, job: str) -> Call[dict[str, bytes]]:
    """All of a job's metadata."""
    return command("HGETALL", keys.job(job), read=fields)


def metadata_set(keys: Keys, job: str, field: str, value: Arg) -> Call[int]:
    """Sets one field."""
    return command("HSET", keys.job(job), field, value, read=int)


def metadata_increment(keys: Keys, job: str, field: str, by: int) -> Call[int]:
    """Adds to a field in one step. Reply: the sum."""
    return command("HINCRBY", keys.job(job), field, by, read=int, repeatable=False)
