"""Parts of `max_size` that the shards of a queue have. A shard is full when its part is.

Invariant: the parts are never more than `max_size` together, also while it or the number of partitions changes. So a
change lowers parts first, then writes the settings or counts, and raises parts last. A program that dies between leaves
parts that are too small; a worker that starts, and the next change, bring them up.
"""

from collections.abc import Sequence

from jobrunner.broker.call import Call, command, whole
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import SIZE_FIELD, ShardCounts, backlog, scheduled, shard_counts
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation
from jobrunner.client.settings_hash import read_settings
from jobrunner.errors import QueueFull
from jobrunner.task import Task

Part = int | None


def lower_sizes(ref: QueueRef, counts: ShardCounts, max_size: int | None) -> Operation[None]:
    """Lowers parts to what they will be with so many shards and this bound, before either is written."""
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
    """Brings the parts to what the settings and counts say now, lower ones first."""
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


def missing_room(ref: QueueRef, parts: Sequence[tuple[QueueKeys, Sequence[Task]]]) -> Operation[int]:
    """Returns how many items a shard has no room for, before any is added: those for the other shards would be there
    already, and be added once more by who tries again. Items with ids of their own may be there, and need none."""
    if ref.routes is None or not ref.routes.routers[ref.name].counts.max_size:
        return 0
    every = [keys for keys, _ in parts]
    counts, *held = yield [shard_counts(ref.keys), *map(backlog, every), *map(scheduled, every)]
    bounds = dict(zip(counts.names(ref.name), counts.parts(counts.max_size), strict=True))
    for (keys, part), waiting, later in zip(parts, held, held[len(parts) :], strict=False):
        more, most = sum(not task.sending for task in part), bounds.get(keys.name)
        if more and most is not None and waiting + later + more > most:
            return more
    return 0


def part_full(ref: QueueRef, count: int, outcome: str, wanted: int) -> QueueFull:
    """The error for items that a shard has no room for. The next items wait for a look at the room of all."""
    if ref.routes is not None and ref.name in ref.routes.routers:
        ref.routes.routers[ref.name].measure_again()
    return QueueFull(
        f"queue {ref.name!r} has no room for {count} more: the part of max_size of one of its partitions is reached, "
        f"and {outcome}; try again later, with ids of your own, or raise max_size",
        wanted=wanted,
    )


def _part(keys: QueueKeys) -> Call[Part]:
    return command("HGET", keys.settings, SIZE_FIELD, read=lambda raw: None if raw is None else whole(raw))
