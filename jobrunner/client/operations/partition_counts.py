"""The number of partitions of a queue, or of a pipeline: whether it may change, and the preparation of new shards.

Invariant: a shard is in the registry, and has its settings, before the counts include it. The counts of a pipeline are
in one hash, so all its queues have the same number of shards at any time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.shards import CHANGED_FIELD, SHARD_FIELD, ShardCounts, set_pipeline_counts, shard_counts
from jobrunner.broker.shards import in_partition_of, tag_of
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.operations.shard_sizes import lower_sizes, settle_sizes
from jobrunner.client.operations.slices import Divided, begin_division, divide, limits_of
from jobrunner.client.settings_hash import read_settings, stored_settings
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.queue_settings import QueueSettings

TRIES = 20
"""How often a division of the limits is begun again because another program began a division, too."""
_MOVED_IN_ONE_STEP = "dead_letter_queue"


def check_fits(queue: str, settings: QueueSettings, partitions: int) -> None:
    """Raises InvalidOption for settings that a queue with `partitions` partitions cannot have."""
    if partitions > 1 and settings.max_size and settings.max_size < partitions:
        raise InvalidOption(
            f"max_size={settings.max_size} with partitions={partitions} on queue {queue!r}: each partition has a part "
            "of it, so it must be at least their number; give a larger max_size, or fewer partitions"
        )


def of_shard(fields: Mapping[str, Any], shard: str) -> dict[str, Any]:
    """The settings of a queue as stored for one of its shards: dead tasks move on within their partition."""
    found = dict(fields)
    if to := found.get(_MOVED_IN_ONE_STEP):
        found[_MOVED_IN_ONE_STEP] = in_partition_of(shard, to if isinstance(to, str) else to.decode())
    return found


def changed_counts(refs: Sequence[QueueRef], before: ShardCounts, wanted: int) -> Operation[ShardCounts]:
    """Returns the counts for `wanted` partitions of these queues. Raises InvalidOption for a smaller number while the
    partitions to remove hold tasks."""
    names = [name for ref in refs for name in before.names(ref.name)]
    found: Sequence[queues.QueueCounts] = yield [queues.counts(refs[0].all_keys.queue(name)) for name in names]
    going = {name for ref in refs for name in before.names(ref.name)[wanted:]}
    for name, counts in zip(names, found, strict=True):
        if name in going and (counts.open or counts.dead or counts.done):
            raise InvalidOption(
                f"partitions={wanted}: shard {name!r} would go, and holds {counts.open} tasks that are not finished, "
                f"{counts.dead} dead and {counts.done} finished ones; let them be worked off, requeue or purge them "
                "first; nothing was changed"
            )
    is_idle = not any(counts.open for counts in found)
    if wanted < before.keyed and not is_idle:
        waiting = sum(counts.open for counts in found)
        raise InvalidOption(
            f"partitions={wanted}: keys are spread over {before.keyed} shards, and {waiting} tasks are not finished; a "
            "key that moved would lose its order and its limit: pause the producers, let the queue run empty, and "
            "configure it then; nothing was changed"
        )
    return ShardCounts(
        partitions=wanted, served=max(before.served, wanted), keyed=wanted if is_idle else before.keyed
    )  # fmt: skip


def partition_pipeline(ref: QueueRef, wanted: int, settings: QueueSettings) -> Operation[None]:
    """Gives all queues of a pipeline `wanted` partitions; `ref` is one of these queues, and gets `settings` afterwards.
    Raises InvalidOption, UsageError."""
    for _ in range(TRIES):
        before: ShardCounts = yield from ask(shard_counts(ref.keys))
        yield [*queues.register_if_room(ref.all_keys, [ref.name])]
        refs = [ref if name == ref.name else _of(ref, name) for name in (yield from _queues_of_pipeline(ref))]
        sizes: dict[QueueRef, int | None] = {}
        for one in refs:
            own = settings if one is ref else read_settings((yield from ask(queues.settings(one.keys))))
            check_fits(one.name, own, wanted)
            sizes[one] = own.max_size
        after = yield from changed_counts(refs, before, wanted)
        for one in refs:
            yield from lower_sizes(one, after, sizes[one])
        for one in refs if after.served > before.served else ():
            yield from _make_shards(one, before.served, after.served)
        (now_ms,) = yield [server_time()]
        changed = {CHANGED_FIELD: round(now_ms)} if after.partitions != before.partitions else {}
        noting = [queues.configure(one.keys, changed) for one in refs if changed]
        now: ShardCounts = (yield [*noting, set_pipeline_counts(ref.keys, before, after)])[-1]
        if (now.partitions, now.served, now.keyed) == (after.partitions, after.served, after.keyed):
            for one in refs:
                yield from settle_sizes(one)
            if ref.routes is not None:
                ref.routes.forget(ref.name)
            return
    raise changed_by_others(ref.name)


def changed_by_others(queue: str) -> UsageError:
    """The error for a change that changes by other programs prevented repeatedly."""
    return UsageError(
        f"queue {queue!r} was configured by others {TRIES} times meanwhile; let one program configure it at a time"
    )


def _of(ref: QueueRef, name: str) -> QueueRef:
    return QueueRef(ref.all_keys, None, name, ref.payload_limit, routes=ref.routes)


def _queues_of_pipeline(ref: QueueRef) -> Operation[list[str]]:
    """Returns the queues of the pipeline that were used or published."""
    found = {ref.name, *(yield from ask(queues.declared(ref.all_keys, ref.keys.tag)))}
    cursor = 0
    while True:
        cursor, names = yield from ask(queues.registered(ref.all_keys, cursor))
        found.update(name for name in names if "/" in name and tag_of(name) == ref.keys.tag)
        if not cursor:
            return sorted(found)


def _make_shards(ref: QueueRef, there: int, count: int) -> Operation[None]:
    """Gives the shards of a queue, from number `there` on, its settings, and divides its limits among all shards."""
    for _ in range(TRIES):
        generation = yield from begin_division(ref)
        stored = yield from ask(queues.settings(ref.keys))
        limits = limits_of(read_settings(stored))
        new = {**stored_settings(stored), "paused": stored.get("paused", b""), "partitions": ""}

        def fields_of(number: int, new: Mapping[str, Any] = new) -> dict[str, Any]:
            own = of_shard(new, ref.first_shards(number + 1)[-1].name) if number >= there else {}
            return {**own, SHARD_FIELD: number}

        if (yield from divide(ref, generation, count, limits, limits, fields_of, may_exceed=True)) is Divided.DONE:
            return
    raise changed_by_others(ref.name)
