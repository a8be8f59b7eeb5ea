"""Calls about flows: joins, arrivals at them, and the outboxes in between (see join.py)."""

from collections.abc import Iterable, Sequence
from itertools import chain
from zlib import crc32

import msgspec
from msgspec import structs

from jobrunner.broker.call import SLICE_BYTES, Call, ScriptCommand, command, text, texts
from jobrunner.broker.calls.new_tasks import due_word, task_fields
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.resp import Arg
from jobrunner.join import Ended, Join


class JoinCounts(msgspec.Struct, frozen=True):
    """The number of members of a join, and of those that have ended, by outcome."""

    total: int
    succeeded: int
    dead: int
    cancelled: int


_RECENT = 1000
_TRIMS_EVERY = 32
_prepare = ScriptCommand("join_prepare", bool)
_join_arrive = ScriptCommand("join_arrive", text)
_collect = ScriptCommand("join_collect", text)
_join_arrive_part = ScriptCommand("join_arrive_part", text)
_passed = ScriptCommand("join_pass_on", text)
_outbox: ScriptCommand[tuple[list[Ended], bool]] = ScriptCommand("outbox_read", tuple)
_abandon = ScriptCommand("join_abandon", text)


def prepare(keys: QueueKeys, join: Join) -> Call[bool]:
    """Creates a join with its task. Reply: False when the join exists already, which changes nothing."""
    words: list[Arg] = ["rule", join.rule, "total", join.total, *join.shown]
    if join.results:
        words += ("results", join.results)
    if join.onward:
        words += ("f:then", join.onward)
    if join.task is not None:
        words += _prepared(keys, join)
    return _prepare.with_keys((keys.join(join.id),), rest=words, ttl_ms=join.ttl_ms)


def _prepared(keys: QueueKeys, join: Join) -> list[Arg]:
    task = join.task
    assert task is not None
    fields: list[Arg] = ["queue", keys.name, "payload", task.payload, *task_fields(task)]
    if join.flow:
        fields += ("flow", join.flow)
    priority = "" if task.priority is None else task.priority
    words: list[Arg] = ["id", task.id, "priority", priority, "due", due_word(task)]
    words += ("names", " ".join(map(str, fields[::2])))
    for name, value in zip(fields[::2], fields[1::2], strict=True):
        words += (f"f:{name!s}", value)
    return words


def join_arrive(keys: QueueKeys, join_id: str, arrivals: Iterable[tuple[int, str, bytes]]) -> Call[str]:
    """Notes ends of members of a join; `arrivals`: (member, outcome, result). Reply: 'noted', 'fired', 'posted', 'more'
    or 'gone' (see lua/join_arrive.lua)."""
    picked = (keys.waiting, keys.scheduled, keys.counters, keys.arrival, keys.wake, keys.outbox)
    return _join_arrive.with_keys((keys.join(join_id), *picked), rest=chain.from_iterable(arrivals), tasks=keys.tasks)


def collect(keys: QueueKeys, join_id: str) -> Call[str]:
    """Collects a slice of the results of a large join's members. Reply: 'more' while members are left, else how the
    join continued: 'fired', 'posted', 'pass', 'dead', 'noted' or 'gone' (see lua/join_collect.lua)."""
    sets = (keys.waiting, keys.scheduled, keys.dead, keys.settings, keys.counters, keys.arrival, keys.wake)
    picked = (*keys.join_and_collected(join_id), *sets, keys.waiters, keys.outbox)
    return _collect.with_keys(picked, tasks=keys.tasks, finished=keys.finished)


def join_arrive_part(keys: QueueKeys, join_id: str, member: int, piece: int, result: bytes) -> Call[str]:
    """Stores a piece of a large result, whose arrival `in_pieces` makes later. Reply: 'taken', 'noted' when the join
    needs no piece of the result, or 'gone'."""
    return _join_arrive_part.with_keys((keys.join(join_id),), member=member, piece=piece, result=result)


def in_pieces(pieces: int, size: int) -> bytes:
    """The arrival of a result whose pieces are stored. No JSON begins with "@"."""
    return b"@%d:%d" % (pieces, size)


def collected(keys: QueueKeys, join_id: str) -> Call[int]:
    """The number of parts of the collected results that a large group passes on."""
    return command("HGET", keys.join_and_collected(join_id)[1], "parts", read=lambda raw: int(raw or 0))


def collected_part(keys: QueueKeys, join_id: str, part: int) -> Call[bytes | None]:
    """A part of the collected results; None when they are gone."""
    return command("HGET", keys.join_and_collected(join_id)[1], f"r{part}", read=_as_it_is)


def onward(keys: QueueKeys, join_id: str) -> Call[bytes]:
    """The joins to which a join passes results on (see join.py)."""
    return command("HGET", keys.join(join_id), "f:then", read=lambda raw: raw or b"")


def passed(keys: QueueKeys, join_id: str) -> Call[str]:
    """Notes that all joins behind a large group have its results. Reply: 'passed', 'noted' or 'gone'."""
    return _passed.with_keys(keys.join_and_collected(join_id))


def abandon(keys: QueueKeys, join_id: str) -> Call[str]:
    """Marks a join that has not fired as never firing. Reply: 'posted', 'noted', 'fired' or 'gone'."""
    return _abandon.with_keys((*keys.join_and_collected(join_id), keys.outbox), outcome="cancelled")


def outbox(keys: Keys, tag: str, *, count: int) -> Call[tuple[list[Ended], bool]]:
    """Up to `count` entries of an outbox in random order, with up to a MiB of results; whether there may be more."""

    def read(reply: list[bytes]) -> tuple[list[Ended], bool]:
        more, *words = reply
        pairs = zip(words[::2], words[1::2], strict=True)
        return [Ended(tag, *_split(field), result) for field, result in pairs], more == b"1"

    return structs.replace(_outbox.with_keys((keys.outbox(tag),), count=count, bytes=SLICE_BYTES), read=read)


def has_ends(keys: Keys, tag: str) -> Call[bool]:
    """Whether an outbox has entries."""
    return command("EXISTS", keys.outbox(tag), read=bool)


def forget(keys: Keys, tag: str, told: Sequence[Ended]) -> Call[int]:
    """Removes delivered entries from an outbox."""
    return command("HDEL", keys.outbox(tag), *(f"{one.outcome}:".encode() + one.onward for one in told), read=int)


def describe(keys: QueueKeys, flow_id: str, fields: Sequence[Arg]) -> Call[int]:
    """Sets fields of a prepared tally; `fields`: field, value, ... (see join.py)."""
    return command("HSET", keys.join(flow_id), *fields, read=int)


def note_flow(keys: Keys, flow_id: str, sent_ms: float) -> list[Call[int]]:
    """Adds a flow to the list of recent flows; one flow in 32, by its id, trims the list to the last thousand.

    The list therefore exceeds a thousand by some dozens, and by 500 with a probability of 1 to eight million.
    """
    noted = command("ZADD", keys.flows, sent_ms, flow_id, read=int)
    if crc32(flow_id.encode()) % _TRIMS_EVERY:
        return [noted]
    return [noted, command("ZREMRANGEBYRANK", keys.flows, 0, -_RECENT - 1, read=int)]


def recent_flows(keys: Keys, first: int, count: int) -> Call[list[str]]:
    """Ids of recent flows, the last sent first. The tallies of some may have expired."""
    return command("ZREVRANGE", keys.flows, first, first + count - 1, read=texts)


def described(keys: QueueKeys, flow_id: str, names: Sequence[str]) -> Call[list[bytes | None]]:
    """The stored values of fields of a tally."""
    return command("HMGET", keys.join(flow_id), *names, read=list)


def tally(keys: QueueKeys, join_id: str) -> Call[JoinCounts | None]:
    """The counts of a join; None when it is gone."""

    def read(reply: list[bytes | None]) -> JoinCounts | None:
        return None if reply[0] is None else JoinCounts(*(int(count or 0) for count in reply))

    return command("HMGET", keys.join(join_id), "total", "succeeded", "dead", "cancelled", read=read)


def members(keys: QueueKeys, join_id: str, numbers: Sequence[int]) -> Call[list[tuple[str, bytes] | None]]:
    """Outcome and result of members; None for a member that has not ended."""

    def read(reply: list[bytes | None]) -> list[tuple[str, bytes] | None]:
        return [None if raw is None else _split(raw) for raw in reply]

    return command("HMGET", keys.join(join_id), *(f"m{number}" for number in numbers), read=read)


def received(keys: QueueKeys, task_id: str) -> Call[tuple[bytes, bytes, int] | None]:
    """(results, outcomes, parts) that a flow passed to a task: JSON arrays, empty for none, and the number of parts
    that have them instead, 0 for undivided arrays. None when the task is gone."""

    def read(reply: list[bytes | None]) -> tuple[bytes, bytes, int] | None:
        return None if reply[0] is None else (reply[1] or b"", reply[2] or b"", int(reply[3] or 0))

    return command("HMGET", keys.task(task_id), "id", "results", "outcomes", "parts", read=read)


def received_part(keys: QueueKeys, task_id: str, part: int) -> Call[tuple[bytes, bytes] | None]:
    """A part of results and outcomes; the parts, concatenated, are the arrays. None when the task is gone."""

    def read(reply: list[bytes | None]) -> tuple[bytes, bytes] | None:
        return None if reply[0] is None or reply[1] is None else (reply[0], reply[1])

    return command("HMGET", keys.task(task_id), f"r{part}", f"o{part}", read=read)


def _as_it_is(raw: bytes | None) -> bytes | None:
    return raw


def _split(field: bytes) -> tuple[str, bytes]:
    outcome, _, onward = field.partition(b":")
    return outcome.decode("utf-8", "replace"), onward
