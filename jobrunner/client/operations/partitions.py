"""Settings of a queue that may have shards: `configure` writes them to each, and makes or takes out shards.

Invariant: no task is lost, whatever the order in which clients learn of a change. New shards get their settings and
enter the registry before the queue itself says that they are there; shards that are taken out are empty then, and
workers go on serving them, for a producer that has not heard of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jobrunner.broker.call import command, whole
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.shards import SHARD_FIELD, ShardCounts, shard_counts, written_counts
from jobrunner.broker.shards import shard_names
from jobrunner.client.operations import queue as one
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.settings_hash import read_settings, stored_settings, write_settings
from jobrunner.errors import InvalidOption
from jobrunner.queue_settings import QueueSettings

_NOT_SPREAD = {
    "max_size": "each partition would need a part of it, and a producer is refused while others have room",
    "dead_letter_queue": "a dead task is forwarded in one step, which is possible within one slot only",
}
"""Settings that cannot be combined with partitions, and why."""


def check_fits(queue: str, settings: QueueSettings) -> None:
    """Raises InvalidOption for settings that a queue with partitions cannot have."""
    if settings.partitions == 1:
        return
    if "/" in queue:
        raise InvalidOption(
            f"partitions={settings.partitions}: queue {queue!r} belongs to a pipeline, whose queues share one slot so "
            "that items move in one step; give partitions to a queue of its own"
        )
    for name, why in _NOT_SPREAD.items():
        if value := getattr(settings, name):
            raise InvalidOption(
                f"{name}={value!r} with partitions={settings.partitions} on queue {queue!r}: {why}; leave out one of "
                "the two (None takes a setting away)"
            )


def _limits(settings: QueueSettings) -> tuple[int, int]:
    """The limits of the whole queue that its shards have slices of; 0: none."""
    return settings.max_inflight, 0 if settings.rate is None else settings.rate.max_tokens


def _slices(queue: str, settings: QueueSettings, shards: int) -> list[tuple[int, int]]:
    """The slice of each shard of these limits; together they are the limits. Raises InvalidOption for a limit of which
    a shard would have nothing."""
    limits = _limits(settings)
    if shards == 1:
        return [(0, 0)]
    for name, limit in zip(("max_inflight", "rate"), limits, strict=True):
        if 0 < limit < shards:
            raise InvalidOption(
                f"{name}={limit} on queue {queue!r} with {shards} shards: each has a slice of the limit, so give at "
                f"least {shards}, or let the queue have fewer partitions"
            )
    return [tuple(limit // shards + (number < limit % shards) for limit in limits) for number in range(shards)]  # type: ignore[misc]


def _slice_fields(slices: tuple[int, int]) -> dict[str, Any]:
    return {"slice_inflight": slices[0] or "", "slice_tokens": slices[1] or ""}


def configure(ref: QueueRef, options: Mapping[str, Any], *, by: str = "") -> Operation[None]:
    """Changes the settings named, by hand. Raises UnknownOption, InvalidOption, InvalidName, and changes nothing
    then."""
    written = write_settings(options, ref.name)
    if ref.routes is None:
        if "partitions" in options:
            raise InvalidOption(f"queue {ref.name!r} is a shard: configure the queue that it is of")
        yield from one.configure(ref, options, by=by)
        return
    stored, before = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    raw = {name: str(value).encode() for name, value in written.items()}
    merged = {name: value for name, value in {**stored, **raw}.items() if value != b""}
    settings = read_settings(merged)
    check_fits(ref.name, settings)
    if before.served == 1 and settings.partitions == 1:
        yield from one.configure(ref, options, by=by)
        return
    after = before
    if settings.partitions != before.spread or "partitions" in options:
        after = yield from _changed(ref, before, settings.partitions)
    slices = _slices(ref.name, settings, after.served)
    yield from _cut(ref, _slices(ref.name, read_settings(stored), before.served), slices)
    own = [name for name in written if name != "partitions"]
    for number, name in enumerate(after.names(ref.name)[1:], 1):
        is_new = number >= before.served
        fields: dict[str, Any] = {field: written[field] for field in own}
        if is_new:
            fields = {**stored_settings(stored), "paused": stored.get("paused", b""), **fields}
            fields |= {"partitions": "", SHARD_FIELD: number, **_slice_fields(slices[number])}
            yield from _empty_bucket(ref.shard(name), settings)
        if fields:
            yield [*queues.register(ref.all_keys, [name]), queues.configure(ref.shard(name).keys, fields)]
    yield [queues.configure(ref.keys, {**written_counts(after), SHARD_FIELD: 0})]
    yield from one.configure(ref, options, by=by)
    ref.routes.forget(ref.name)


def align(ref: QueueRef) -> Operation[None]:
    """Gives every shard the settings that the queue itself has, whoever wrote them: a worker declares those of the
    queue alone. Leases above a limit that is new stay, as in any queue. Raises InvalidOption for settings that a queue
    with partitions cannot have."""
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    settings = read_settings(stored)
    check_fits(ref.name, settings)
    there = [ref.shard(name) for name in counts.names(ref.name)]
    if len(there) == 1:
        return
    found: list[dict[str, bytes]] = yield [queues.settings(shard.keys) for shard in there]
    slices = _slices(ref.name, settings, len(there))
    yield from _cut(ref, [(whole(one.get("slice_inflight")), whole(one.get("slice_tokens"))) for one in found], slices,
                    may_exceed=True)  # fmt: skip
    wanted = {name: value for name, value in stored_settings(stored).items() if name != "partitions"}
    for shard, had in list(zip(there, found, strict=True))[1:]:
        own = {name: value for name, value in stored_settings(had).items() if name != "partitions"}
        changed = {name: wanted.get(name, b"") for name in own.keys() | wanted.keys()}
        if changed := {name: value for name, value in changed.items() if value != own.get(name, b"")}:
            yield [queues.configure(shard.keys, changed)]


def _cut(
    ref: QueueRef, old: list[tuple[int, int]], new: list[tuple[int, int]], *, may_exceed: bool = False
) -> Operation[None]:
    """Gives the shards that are there already their slices. Raises InvalidOption when leases are held that would exceed
    the limit together with those that others may hand out then; the slices are as before then.

    Invariant: the slices of `max_inflight` that are in force, or the leases of a shard where these are more, are never
    above the limit together. So shards that get less have it before others get more.
    """
    there = [ref.shard(name) for name in shard_names(ref.name, len(old))]
    if old == new:
        return
    lowest = [
        (min(one[0] or two[0], two[0]) if two[0] else 0, two[1]) for one, two in zip(old, new, strict=False)
    ]  # fmt: skip
    yield [queues.configure(shard.keys, _slice_fields(one)) for shard, one in zip(there, lowest, strict=True)]
    is_lower = len(old) == len(new) and all(one[0] and two[0] <= one[0] for one, two in zip(old, new, strict=True))
    if new[0][0] and not is_lower and not may_exceed:
        counted: list[queues.QueueCounts] = yield [queues.counts(shard.keys) for shard in there]
        held = sum(counts.pending for counts in counted)
        if any(counts.pending > one[0] for counts, one in zip(counted, new, strict=False)):
            yield [queues.configure(shard.keys, _slice_fields(one)) for shard, one in zip(there, old, strict=True)]
            raise InvalidOption(
                f"queue {ref.name!r}: {held} leases are held, more than its shards may have of max_inflight when it is "
                "divided anew; pause the queue, configure it when they have ended, and resume it; nothing was changed"
            )
    yield [queues.configure(shard.keys, _slice_fields(one)) for shard, one in zip(there, new, strict=False)]


def _empty_bucket(shard: QueueRef, settings: QueueSettings) -> Operation[None]:
    """A new shard begins without tokens: those of this interval may have been used by the others."""
    if settings.rate is not None:
        now_ms = yield from ask(server_time())
        interval_us = settings.rate.seconds * 1_000_000
        fields = ("level", 0, "at", round(now_ms * 1000), "interval", interval_us)
        yield [command("HSET", shard.keys.bucket, *fields, read=int)]


def _changed(ref: QueueRef, before: ShardCounts, wanted: int) -> Operation[ShardCounts]:
    """Returns the counts for so many partitions. Raises InvalidOption for fewer while tasks are in those that go."""
    names = before.names(ref.name)
    found: Sequence[queues.QueueCounts] = yield [queues.counts(ref.shard(name).keys) for name in names]
    for name, counts in list(zip(names, found, strict=True))[wanted:]:
        if counts.open or counts.dead or counts.done:
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
        spread=wanted, served=max(before.served, wanted), keyed=wanted if is_idle else before.keyed
    )  # fmt: skip
