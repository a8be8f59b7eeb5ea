"""Calls about the shards of a queue with `partitions`, or of a pipeline."""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand, command, whole
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.shards import MOST_SHARDS, shard_names, tag_of


class ShardCounts(msgspec.Struct, frozen=True):
    """How many shards a queue has. All are 1 for a queue without partitions."""

    partitions: int = 1
    """How many shards new tasks are spread over: the first shards."""
    served: int = 1
    """The most shards that there ever were: workers serve all of these, as a producer may learn late of a reduction."""
    keyed: int = 1
    """How many shards partition keys are spread over. The number changes only while no task waits, so that all tasks of
    a key are in one shard."""

    is_limited: bool = False
    """Whether its shards have slices of `max_inflight` or `rate`."""
    max_size: int = 0
    """The `max_size` that is divided among the shards; 0: no bound."""

    def names(self, queue: str) -> list[str]:
        """The names of all shards that may hold anything."""
        return shard_names(queue, self.served)

    def parts(self, max_size: int | None) -> list[int | None]:
        """The part of a bound that each shard has; None without a bound, 0 for shards that get no new tasks any
        more."""
        if not max_size:
            return [None] * self.served
        less, more = divmod(max_size, self.partitions)
        return [less + (number < more) if number < self.partitions else 0 for number in range(self.served)]


FIELDS = ("partitions", "shards", "key_shards")
"""The fields of `ShardCounts`, in the settings of the queue itself or in the hash of a pipeline."""
SIZE_FIELD = "slice_size"
"""The field in each shard's settings for its part of `max_size`."""
_SLICES = (SIZE_FIELD, "max_size", "slice_inflight", "slice_tokens")
SHARD_FIELD = "shard"
"""The field in each shard's settings for the shard's number; the first shard has it, too."""
CHANGED_FIELD = "partitions_at"
"""The field in the queue's own settings for the instant at which its number of partitions last changed, Unix ms."""
WITHOUT = ShardCounts()
UNKNOWN = ShardCounts()
"""The counts when they cannot be read: the node is away, or this user may not read settings."""


def shard_counts(keys: QueueKeys) -> Call[ShardCounts]:
    """How many shards a queue has; 1 for a user without access to its settings. All queues of a pipeline have the same
    number."""
    if keys.shard_counts is not keys.settings:
        return replace(_of_pipeline.on(keys, partitions="", shards="", key_shards="", known=""), may_fail=True)
    return command("HMGET", keys.settings, *FIELDS, *_SLICES, read=_read, may_fail=True)


def _read(reply: Sequence[bytes | None] | None) -> ShardCounts:
    if reply is None:
        return UNKNOWN
    if reply[1] is None:
        return WITHOUT
    partitions, served, keyed = (min(max(whole(raw), 1), MOST_SHARDS) for raw in reply[:3])
    max_size = whole(reply[4]) if served > 1 and reply[3] is not None else 0
    is_limited = served > 1 and any(raw is not None for raw in reply[5:])
    return ShardCounts(min(partitions, served), served, min(keyed, served), is_limited, max_size)


def set_pipeline_counts(keys: QueueKeys, known: ShardCounts, new: ShardCounts) -> Call[ShardCounts]:
    """Sets the numbers of shards of the pipeline that `keys` belongs to, unless another program changed them since they
    were read as `known`. Reply: the numbers afterwards."""
    return _of_pipeline.on(
        keys, partitions=new.partitions, shards=new.served, key_shards=new.keyed,
        known=f"{known.partitions} {known.served} {known.keyed}",
    )  # fmt: skip


def written_counts(counts: ShardCounts) -> dict[str, Any]:
    """The counts as fields of the queue's own settings."""
    partitions = counts.partitions if counts.partitions > 1 else ""
    return dict(zip(FIELDS, (partitions, counts.served, counts.keyed), strict=True))


def making_shards(keys: Keys, names: Sequence[str]) -> list[Call[Any]]:
    """Registers shards and stores their numbers, so that an empty shard is not forgotten."""
    numbers = [tag_of(name).partition("@")[2] or "0" for name in names]
    numbering = [
        queues.configure(keys.queue(name), {SHARD_FIELD: number}) for name, number in zip(names, numbers, strict=True)
    ]
    return [*queues.register(keys, list(names)), *numbering] if names else []


_of_pipeline = ScriptCommand("pipeline_shards", _read)


def backlog(keys: QueueKeys) -> Call[int]:
    """The number of tasks in a queue's waiting set."""
    return command("ZCARD", keys.waiting, read=int)


def scheduled(keys: QueueKeys) -> Call[int]:
    """The number of tasks in a queue's scheduled set; `max_size` bounds these, too."""
    return command("ZCARD", keys.scheduled, read=int)
