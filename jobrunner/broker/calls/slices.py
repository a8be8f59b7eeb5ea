"""Calls about the slices that the shards of a queue with `partitions` have of its limits (see lua/lib/slices.lua)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from jobrunner.broker.call import Call, ScriptCommand, command, text
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.resp import Arg

Limit = int | None
"""A number of leases or tokens; None: no limit."""


class Gift(msgspec.Struct, frozen=True):
    """A part of its slices that a shard gave away, as recorded by the giver until the receiver has it."""

    shard: str
    """The name of the receiving shard."""
    note: str
    """Number of the gift, leases, tokens, level of the bucket, and the interval of the bucket's tokens."""

    @property
    def leases(self) -> int:
        """The part of `max_inflight` in the gift."""
        return int(float(self.note.split()[1]))

    @property
    def tokens(self) -> int:
        """The part of the rate in the gift."""
        return int(float(self.note.split()[2]))


class ShardSlices(msgspec.Struct, frozen=True):
    """The slices of a shard, and the use and backlog that decide what it needs."""

    generation: int
    inflight: Limit
    tokens: Limit
    hold: Limit
    interval_us: int
    max_inflight: Limit
    max_tokens: Limit
    is_paused: bool
    waiting: int
    pending: int
    level: int
    """Whole tokens in the bucket."""
    enqueued: int
    """How many tasks were enqueued since the queue was created."""
    gifts: Sequence[Gift]

    @property
    def usable(self) -> int:
        """How many leases the shard may hold now."""
        slice_ = self.inflight or 0
        return slice_ if self.hold is None else min(self.hold, slice_)


class Begun(msgspec.Struct, frozen=True):
    """The result of beginning a division of the limits on a shard: its slices, or why it did not begin."""

    inflight: int = 0
    tokens: int = 0
    superseded_by: int | None = None
    """The number of a division that was begun later."""
    is_held_up: bool = False
    """Whether more leases are held than the limit leaves to this shard."""


def _begun(reply: list[bytes]) -> Begun:
    first, second = text(reply[0]), text(reply[1])
    if first == "superseded":
        return Begun(superseded_by=int(second))
    if first == "held":
        return Begun(is_held_up=True)
    return Begun(int(first or 0), int(second or 0))


def _number(raw: bytes) -> Limit:
    return int(raw) if raw.isdigit() else None


def _read_slices(reply: list[Any]) -> ShardSlices:
    generation, *fields = reply[:7]
    inflight, tokens, hold, interval, max_inflight, max_tokens = map(_number, fields)
    paused, waiting, pending, level, enqueued = reply[7:12]
    return ShardSlices(
        generation, inflight, tokens, hold, interval or 0, max_inflight or None, max_tokens or None, paused == 1,
        waiting, pending, level, enqueued, _gifts(reply[12:]),
    )  # fmt: skip


def _gifts(words: Sequence[bytes]) -> list[Gift]:
    return [Gift(text(shard), text(note)) for shard, note in zip(words[::2], words[1::2], strict=True)]


_enter = ScriptCommand("slice_enter", _begun)
_settle = ScriptCommand("slice_settle", _begun)
_read = ScriptCommand("slice_read", _read_slices)
_give = ScriptCommand("slice_give", _gifts)
_take = ScriptCommand("slice_take", text)
_forget = ScriptCommand("slice_forget", int)


def allocate_generation(keys: QueueKeys, *, above: int = 0) -> Call[int]:
    """The number of a new division of the limits. A repeated call skips a number, which does no harm."""
    return command("HINCRBY", keys.settings, "slice_allocated", max(above, 1), read=int)


def enter(
    keys: QueueKeys, generation: int, limits: tuple[Limit, Limit], before: tuple[Limit, Limit],
    fields: Mapping[str, Arg], *, may_exceed: bool,
) -> Call[Begun]:  # fmt: skip
    """Begins a division on a shard other than the first: its slices are reduced as the limits are."""
    return _enter.on(
        keys, rest=_words(fields), generation=generation, inflight=_arg(limits[0]), inflight_before=_arg(before[0]),
        tokens=_arg(limits[1]), tokens_before=_arg(before[1]), may_exceed="1" if may_exceed else "",
    )  # fmt: skip


def settle(
    keys: QueueKeys, generation: int, limits: tuple[Limit, Limit], others: tuple[int, int], fields: Mapping[str, Arg],
    *, may_exceed: bool,
) -> Call[Begun]:  # fmt: skip
    """Ends a division on the first shard, which gets the rest of the limits."""
    return _settle.on(
        keys, rest=_words(fields), generation=generation, inflight=_arg(limits[0]), inflight_others=others[0],
        tokens=_arg(limits[1]), tokens_others=others[1], may_exceed="1" if may_exceed else "",
    )  # fmt: skip


def read(keys: QueueKeys) -> Call[ShardSlices]:
    """The slices of a shard, with its use and its backlog."""
    return _read.on(keys)


def give(
    keys: QueueKeys, generation: int, gifts: Iterable[tuple[str, int, int]], *, hold: Limit
) -> Call[Sequence[Gift]]:
    """Gives parts of a shard's slices away as (shard, leases, tokens). Reply: the gifts under way to these shards."""
    words = [word for gift in gifts for word in gift]
    return _give.on(keys, rest=words, generation=generation, hold=_arg(hold))


def take(keys: QueueKeys, giver: str, generation: int, gift: Gift) -> Call[str]:
    """Adds a gift to a shard's slices. Reply: 'taken', 'had', 'late' or 'early'."""
    number, leases, tokens, level, interval = gift.note.split()
    return _take.on(
        keys, giver=giver, generation=generation, gift_number=number, leases=leases, tokens=tokens, level=level,
        interval=interval,
    )  # fmt: skip


def forget(keys: QueueKeys, gifts: Iterable[Gift]) -> Call[int]:
    """Removes the giver's records of gifts that have arrived."""
    return _forget.on(keys, rest=[word for gift in gifts for word in (gift.shard, gift.note)])


def claim(keys: QueueKeys, *, for_ms: int) -> Call[bool]:
    """Claims the next balancing of a queue's slices; False when another process claimed one in the last `for_ms`."""
    return command("SET", keys.balanced, "1", "NX", "PX", for_ms, read=lambda reply: reply is not None)


def _words(fields: Mapping[str, Arg]) -> list[Arg]:
    return [word for pair in fields.items() for word in pair]


def _arg(limit: Limit) -> Arg:
    return "" if limit is None else limit
