"""The parts of `max_size` that the shards of a queue have. A shard is full when its part is full.

Invariant: the sum of the parts never exceeds `max_size`, also while `max_size` or the number of partitions changes. So
a change lowers parts first, then writes the settings or counts, and raises parts last. A program that dies in between
leaves parts that are too small; the next start of a worker, or the next change, raises them.
"""

from collections.abc import Sequence

from jobrunner.broker.call import Call, command, whole
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import SIZE_FIELD, ShardCounts, shard_counts
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation
from jobrunner.client.settings_hash import read_settings

Part = int | None


def lower_sizes(ref: QueueRef, counts: ShardCounts, max_size: int | None) -> Operation[None]:
    """Lowers parts to their future values for these counts and this bound, before either is written."""
    if not max_size:
        return
    every, wanted = ref.first_shards(counts.served), counts.parts(max_size)
    there: Sequence[Part] = yield [_part(shard.keys) for shard in every]
    yield [
        queues.configure(shard.keys, {SIZE_FIELD: new})
        for shard, old, new in zip(every, there, wanted, strict=True)
        if new is not None and (old is None or new < old)
    ]


def settle_sizes(ref: QueueRef) -> Operation[None]:
    """Sets the parts to the values for the present settings and counts, lowered parts first."""
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    max_size = read_settings(stored).max_size
    if counts.served == 1:
        return
    yield from lower_sizes(ref, counts, max_size)
    every, wanted = ref.first_shards(counts.served), counts.parts(max_size)
    there: Sequence[Part] = yield [_part(shard.keys) for shard in every]
    yield [
        queues.configure(shard.keys, {SIZE_FIELD: "" if new is None else new})
        for shard, old, new in zip(every, there, wanted, strict=True)
        if new != old
    ]


def _part(keys: QueueKeys) -> Call[Part]:
    return command("HGET", keys.settings, SIZE_FIELD, read=lambda raw: None if raw is None else whole(raw))
