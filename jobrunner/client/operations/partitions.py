"""Settings of a queue that may have shards: `configure` writes them to each, and makes or takes out shards.

Invariant: no task is lost, whatever the order in which clients learn of a change. New shards get their settings and
enter the registry before the queue itself says that they are there; shards that are taken out are empty then, and
workers go on serving them, for a producer that has not heard of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jobrunner.broker.calls import queues, slices
from jobrunner.broker.calls.shards import SHARD_FIELD, ShardCounts, shard_counts, written_counts
from jobrunner.broker.calls.slices import ShardSlices
from jobrunner.client.operations import queue as one
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation
from jobrunner.client.operations.slices import Divided, Limits, begin_division, divide, found_wrong, limits_of
from jobrunner.client.settings_hash import read_settings, stored_settings, write_settings
from jobrunner.errors import InvalidOption, UsageError
from jobrunner.queue_settings import QueueSettings

_NOT_SPREAD = {
    "max_size": "each partition would need a part of it, and a producer is refused while others have room",
    "dead_letter_queue": "a dead task is forwarded in one step, which is possible within one slot only",
}
"""Settings that cannot be combined with partitions, and why."""
_TRIES = 20
"""How often a division of the limits is begun again because another program began one, too."""


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
    settings = read_settings(_merged(stored, written))
    check_fits(ref.name, settings)
    if before.served == 1 and settings.partitions == 1:
        yield from one.configure(ref, options, by=by)
        return
    for _ in range(_TRIES):
        generation = yield from begin_division(ref)
        if (yield from _configured(ref, written, generation, is_count_given="partitions" in options)):
            yield from one.configure(ref, options, by=by)
            ref.routes.forget(ref.name)
            return
    raise UsageError(
        f"queue {ref.name!r} was configured by others {_TRIES} times meanwhile; let one program configure it at a time"
    )


def _configured(
    ref: QueueRef, written: Mapping[str, Any], generation: int, *, is_count_given: bool
) -> Operation[bool]:  # fmt: skip
    """Returns False when another division of the limits was begun meanwhile. Raises InvalidOption."""
    stored, before = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    old, settings = read_settings(stored), read_settings(_merged(stored, written))
    after = before
    if settings.partitions != before.spread or is_count_given:
        after = yield from _changed(ref, before, settings.partitions)
    own: dict[str, Any] = {name: value for name, value in written.items() if name != "partitions"}
    new: dict[str, Any] = {**stored_settings(stored), "paused": stored.get("paused", b""), **own, "partitions": ""}

    def fields_of(number: int) -> dict[str, Any]:
        if number == 0:
            return {**own, **written_counts(after), SHARD_FIELD: 0}
        return {**new, SHARD_FIELD: number} if number >= before.served else own

    limits = limits_of(settings)
    is_same = (limits, settings.rate) == (limits_of(old), old.rate)
    if is_same and written_counts(after) == written_counts(before):
        if own:
            yield [queues.configure(shard.keys, own) for shard in ref.first_shards(before.served)[1:]]
        return True
    ended = yield from divide(
        ref, generation, after.served, limits_of(old), limits, fields_of, may_exceed=False
    )  # fmt: skip
    if ended is Divided.REFUSED:
        yield from _taken_back(ref, before, limits_of(old), {name: stored.get(name, b"") for name in own})
        raise InvalidOption(
            f"max_inflight={settings.max_inflight} on queue {ref.name!r}: more leases are held than that; pause the "
            "queue, configure it when they have ended, and resume it; nothing was changed"
        )
    return ended is Divided.DONE


def _taken_back(
    ref: QueueRef, before: ShardCounts, limits: Limits, had: Mapping[str, bytes]
) -> Operation[None]:  # fmt: skip
    """Gives the shards the settings that they had, and slices of the limits before."""
    for _ in range(_TRIES if before.served > 1 else 0):
        generation = yield from begin_division(ref)
        ended = yield from divide(
            ref, generation, before.served, limits, limits, lambda _: had, may_exceed=True
        )  # fmt: skip
        if ended is Divided.DONE:
            return


def align(ref: QueueRef) -> Operation[None]:
    """Gives every shard the settings that the queue itself has, whoever wrote them: a worker declares those of the
    queue alone. Leases above a limit that is new stay, as in any queue. Raises InvalidOption for settings that a queue
    with partitions cannot have."""
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    check_fits(ref.name, read_settings(stored))
    for _ in range(_TRIES if counts.served > 1 else 0):
        generation = yield from begin_division(ref)
        if (yield from _aligned(ref, generation)):
            return


def _aligned(ref: QueueRef, generation: int) -> Operation[bool]:
    stored, counts = yield [queues.settings(ref.keys), shard_counts(ref.keys)]
    there = ref.first_shards(counts.served)
    wanted, limits = _common(stored), limits_of(read_settings(stored))
    seen: list[ShardSlices] = yield [slices.read(shard.keys) for shard in there]
    found: list[dict[str, bytes]] = yield [queues.settings(shard.keys) for shard in there]
    changed: list[dict[str, bytes]] = [{}]
    for had in map(_common, found[1:]):
        new = {name: wanted.get(name, b"") for name in had.keys() | wanted.keys()}
        changed.append({name: value for name, value in new.items() if value != had.get(name, b"")})
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


def _common(stored: Mapping[str, bytes]) -> dict[str, bytes]:
    """The settings that all shards of a queue have."""
    return {name: value for name, value in stored_settings(stored).items() if name != "partitions"}


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
