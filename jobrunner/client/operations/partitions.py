"""Settings of a queue that may have shards: `configure` writes them to each shard, and adds or removes shards. Shards
of a pipeline's queue are added for the whole pipeline (partition_counts.py).

Invariant: no task is lost, whatever the order in which clients learn of a change. New shards get their settings and
enter the registry before the counts of the queue include them; removed shards are empty at that time, and workers go on
serving them, for producers that do not know of the change yet.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jobrunner.broker.calls import events, queues, slices
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.shards import (
    CHANGED_FIELD,
    SHARD_FIELD,
    ShardCounts,
    making_shards,
    shard_counts,
    written_counts,
)
from jobrunner.broker.calls.slices import ShardSlices
from jobrunner.broker.shards import shard_name
from jobrunner.client.operations import queue as one
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation
from jobrunner.client.operations.partition_counts import (
    TRIES,
    changed_by_others,
    changed_counts,
    check_fits,
    of_shard,
    partition_pipeline,
)
from jobrunner.client.operations.shard_sizes import lower_sizes, settle_sizes
from jobrunner.client.operations.slices import Divided, Limits, begin_division, divide, found_wrong, limits_of
from jobrunner.client.settings_hash import read_settings, stored_settings, write_settings
from jobrunner.errors import InvalidOption
from jobrunner.queue_settings import QueueSettings


def configure(ref: QueueRef, options: Mapping[str, Any], *, by: str = "") -> Operation[None]:
    """Changes the named settings, as a change by hand. Raises UnknownOption, InvalidOption, InvalidName, without any
    change."""
    written = write_settings(options, ref.name)
    if ref.routes is None:
        if "partitions" in options:
            raise InvalidOption(f"queue {ref.name!r} is a shard: configure the queue that it is of")
        yield from one.configure(ref, options, by=by)
        return
    stored, before = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    settings = read_settings(_merged(stored, written))
    if "/" in ref.name:
        partitions = settings.partitions if "partitions" in options else before.partitions
        check_fits(ref.name, settings, partitions)
        if "partitions" in options and (partitions > 1 or before.served > 1):
            yield from partition_pipeline(ref, partitions, settings)
            who = by or events.who()
            yield [events.note(ref.all_keys, "queue_configured", queue=ref.name, by=who, set_partitions=partitions)]
            (before,) = yield [shard_counts(ref.keys)]
        options = {name: value for name, value in options.items() if name != "partitions"}
        if not options:
            return
        written = write_settings(options, ref.name)
        settings = replace(settings, partitions=before.partitions)
    check_fits(ref.name, settings, settings.partitions)
    if before.served == 1 and settings.partitions == 1:
        yield from one.configure(ref, options, by=by)
        return
    if options.get("dead_letter_queue"):
        yield from _make_shards_for_the_dead(ref, settings, before)
    for _ in range(TRIES):
        generation = yield from begin_division(ref)
        if (yield from _configured(ref, written, generation, is_count_given="partitions" in options)):
            changed = [name for name, value in written.items() if str(value).encode() != stored.get(name, b"")]
            yield from one.configure(ref, options, by=by, changed=changed)  # not read again: the division wrote them
            yield from settle_sizes(ref)
            ref.routes.forget(ref.name)
            return
    raise changed_by_others(ref.name)


def settings_of(ref: QueueRef) -> Operation[QueueSettings]:
    """Returns the settings in force; `partitions` of a pipeline's queue is the pipeline's."""
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    return replace(read_settings(stored), partitions=counts.partitions)


def _configured(
    ref: QueueRef, written: Mapping[str, Any], generation: int, *, is_count_given: bool
) -> Operation[bool]:  # fmt: skip
    """Writes settings and divides the limits anew. Returns False when another division was begun meanwhile. Raises
    InvalidOption."""
    stored, before, now_ms = yield [queues.settings(ref.keys), shard_counts(ref.keys), server_time()]
    old, settings = read_settings(stored), read_settings(_merged(stored, written))
    after = before
    is_pipeline = "/" in ref.name
    if not is_pipeline and (settings.partitions != before.partitions or is_count_given):
        after = yield from changed_counts([ref], before, settings.partitions)
    yield from lower_sizes(ref, after, settings.max_size)
    own: dict[str, Any] = {name: value for name, value in written.items() if name != "partitions"}
    new: dict[str, Any] = {**stored_settings(stored), "paused": stored.get("paused", b""), **own, "partitions": ""}

    counted = {} if is_pipeline else written_counts(after)
    if after.partitions != before.partitions:
        counted[CHANGED_FIELD] = round(now_ms)

    def fields_of(number: int) -> dict[str, Any]:
        if number == 0:
            return {**own, **counted, SHARD_FIELD: 0}
        written_here = {**new, SHARD_FIELD: number} if number >= before.served or is_pipeline else own
        return of_shard(written_here, shard_name(ref.name, number))

    limits = limits_of(settings)
    is_same = (limits, settings.rate) == (limits_of(old), old.rate)
    if is_same and written_counts(after) == written_counts(before):
        if own:
            others = ref.first_shards(before.served)[1:]
            yield [queues.configure(shard.keys, of_shard(own, shard.name)) for shard in others]
        return True
    ended = yield from divide(
        ref, generation, after.served, limits_of(old), limits, fields_of, may_exceed=False
    )  # fmt: skip
    if ended is Divided.REFUSED:
        yield from _taken_back(ref, before, limits_of(old), {name: stored.get(name, b"") for name in own})
        yield from settle_sizes(ref)
        raise InvalidOption(
            f"max_inflight={settings.max_inflight} on queue {ref.name!r}: more leases are held than that; pause the "
            "queue, configure it when they have ended, and resume it; nothing was changed"
        )
    return ended is Divided.DONE


def _taken_back(
    ref: QueueRef, before: ShardCounts, limits: Limits, had: Mapping[str, bytes]
) -> Operation[None]:  # fmt: skip
    """Restores the previous settings of the shards, and slices of the previous limits."""
    for _ in range(TRIES if before.served > 1 else 0):
        generation = yield from begin_division(ref)
        ended = yield from divide(
            ref, generation, before.served, limits, limits,
            lambda number: of_shard(had, shard_name(ref.name, number)), may_exceed=True,
        )  # fmt: skip
        if ended is Divided.DONE:
            return


def align(ref: QueueRef) -> Operation[None]:
    """Gives every shard of a queue the queue's own settings: a worker that declares settings writes only the queue's
    own. Leases above a new limit stay, as in any queue. Raises InvalidOption for settings that a queue with partitions
    cannot have, after all shards have them: bounds hold, though some shards have no part."""
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    if counts.served > 1:
        yield from settle_sizes(ref)
    if "/" in ref.name and counts.served > 1:
        yield making_shards(ref.all_keys, counts.names(ref.name))
        yield from _make_shards_for_the_dead(ref, read_settings(stored), counts)
    for _ in range(TRIES if counts.served > 1 else 0):
        generation = yield from begin_division(ref)
        if (yield from _aligned(ref, generation)):
            break
    check_fits(ref.name, read_settings(stored), counts.partitions)


def _make_shards_for_the_dead(ref: QueueRef, settings: QueueSettings, counts: ShardCounts) -> Operation[None]:
    """Registers a shard of the dead letter queue for each shard, as dead tasks stay in their partition. A death
    registers no shard, and perhaps no worker serves them: then only that queue's own counts would include their
    tasks."""
    if settings.dead_letter_queue is not None:
        yield making_shards(ref.all_keys, counts.names(settings.dead_letter_queue))


def _aligned(ref: QueueRef, generation: int) -> Operation[bool]:
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    there = ref.first_shards(counts.served)
    wanted, limits = _common(stored), limits_of(read_settings(stored))
    seen: list[ShardSlices] = yield [slices.read(shard.keys) for shard in there]
    found: list[dict[str, bytes]] = yield [queues.settings(shard.keys) for shard in there]
    changed: list[dict[str, bytes]] = [{}]
    for shard, had in zip(there[1:], map(_common, found[1:]), strict=True):
        wanted_here = of_shard(wanted, shard.name)
        new = {name: wanted_here.get(name, b"") for name in had.keys() | wanted_here.keys()}
        changed.append({name: value for name, value in new.items() if _raw(value) != had.get(name, b"")})
    if found_wrong(seen, limits) is None:
        if calls := [queues.configure(shard.keys, new) for shard, new in zip(there, changed, strict=True) if new]:
            yield list(calls)
        return True
    before = sum(one.inflight or 0 for one in seen) or None, sum(one.tokens or 0 for one in seen) or None
    ended = yield from divide(
        ref, generation, len(there), before, limits, changed.__getitem__, may_exceed=True
    )  # fmt: skip
    return ended is Divided.DONE


def _merged(stored: Mapping[str, bytes], written: Mapping[str, Any]) -> dict[str, bytes]:
    raw = {name: str(value).encode() for name, value in written.items()}
    return {name: value for name, value in {**stored, **raw}.items() if value != b""}


def _raw(value: bytes | str) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _common(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """The settings that all shards of a queue have."""
    return {name: value for name, value in stored_settings(stored).items() if name != "partitions"}
