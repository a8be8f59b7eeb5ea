"""Calls about flows: joins, what arrives at them, and the outboxes in between (see join.py)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from jobrunner.broker.call import Call, Verb, Word, command
from jobrunner.broker.calls.tasks import due_word, sealed, task_fields
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.replies import text
from jobrunner.join import Ended, Join


@dataclass(frozen=True, slots=True)
class Tally:
    """How many members of a join there are and how they ended so far."""

    total: int
    succeeded: int
    dead: int
    cancelled: int



_prepare = Verb("prepare", bool)
_arrive = Verb("arrive", text)
_abandon = Verb("abandon", text)


def prepare(keys: QueueKeys, join: Join) -> Call[bool]:
    """A new join. Reply: False when it exists already, and is left as it is."""
    words: list[Word] = ["rule", join.rule, "total", join.total]
    if join.results:
        words += ("results", join.results)
    if join.onward:
        words += ("f:then", join.onward)
    if join.task is not None:
        words += _prepared(keys, join)
    return _prepare.with_keys((keys.join(join.id),), rest=words, ttl_ms=join.ttl_ms)


def _prepared(keys: QueueKeys, join: Join) -> list[Word]:
    task = join.task
    assert task is not None
    task = sealed(keys, task)
    fields: list[Word] = ["queue", keys.name, "payload", task.payload, *task_fields(task)]
    priority = "" if task.priority is None else task.priority
    words: list[Word] = ["id", task.id, "priority", priority, "due", due_word(task)]
    words += ("names", " ".join(map(str, fields[::2])))
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        words += (f"f:{name!s}", value)
    return words


def arrive(keys: QueueKeys, join_id: str, arrivals: Iterable[tuple[int, str, bytes]]) -> Call[str]:
    """Arrivals: member, outcome, result. Reply: 'noted', 'fired', 'posted' or 'gone' (see lua/arrive.lua)."""
    picked = (keys.waiting, keys.scheduled, keys.counters, keys.arrival, keys.wake, keys.outbox)
    return _arrive.with_keys((keys.join(join_id), *picked), rest=chain.from_iterable(arrivals), tasks=keys.tasks)


def abandon(keys: QueueKeys, join_id: str) -> Call[str]:
    """A join that has not fired never will. Reply: 'posted', 'noted', 'fired' or 'gone'."""
    return _abandon.with_keys((keys.join(join_id), keys.outbox), outcome="cancelled")


def outbox(keys: Keys, tag: str, *, count: int) -> Call[list[Ended]]:
    """Up to `count` entries of an outbox, any of them: one that cannot be told keeps no other from its turn."""

    def read(reply: list[bytes] | None) -> list[Ended]:
        words = reply or []  # fakeredis says nothing for an empty list
        pairs = zip(words[::2], words[1::2], strict=True)
        return [Ended(tag, *_split(field), result) for field, result in pairs]

    return command("HRANDFIELD", keys.outbox(tag), count, "WITHVALUES", read=read)


def forget(keys: Keys, tag: str, told: Sequence[Ended]) -> Call[int]:
    """Takes entries out of an outbox that were told."""
    return command("HDEL", keys.outbox(tag), *(f"{one.outcome}:".encode() + one.onward for one in told), read=int)


def tally(keys: QueueKeys, join_id: str) -> Call[Tally | None]:
    """The counts of a join; None when it is gone."""

    def read(reply: list[bytes | None]) -> Tally | None:
        return None if reply[0] is None else Tally(*(int(count or 0) for count in reply))

    return command("HMGET", keys.join(join_id), "total", "succeeded", "dead", "cancelled", read=read)


def members(keys: QueueKeys, join_id: str, numbers: Sequence[int]) -> Call[list[tuple[str, bytes] | None]]:
    """Outcome and result of members, None for those that have not ended."""

    def read(reply: list[bytes | None]) -> list[tuple[str, bytes] | None]:
        return [None if raw is None else _split(raw) for raw in reply]

    return command("HMGET", keys.join(join_id), *(f"m{number}" for number in numbers), read=read)


def received(keys: QueueKeys, task_id: str) -> Call[tuple[bytes, bytes] | None]:
    """Results and outcomes that a flow gave a task, JSON arrays, empty for none; None when the task is gone."""

    def read(reply: list[bytes | None]) -> tuple[bytes, bytes] | None:
        return None if reply[0] is None else (reply[1] or b"", reply[2] or b"")

    return command("HMGET", keys.task(task_id), "id", "results", "outcomes", read=read)


def _split(field: bytes) -> tuple[str, bytes]:
    outcome, _, onward = field.partition(b":")
    return outcome.decode("utf-8", "replace"), onward
