"""The operations on a queue with all its shards, shared by Queue and AsyncQueue.

The queue itself is its first shard, so each operation begins there, and reads the number of shards in its first round
trip (`with_shards`). For a queue without partitions this adds one command to the operation of operations/queue.py, and
no round trip.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from jobrunner.broker.call import Call, in_slices, whole
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.shards import CHANGED_FIELD, shard_counts
from jobrunner.broker.keys import check_id, tag_of_id
from jobrunner.broker.shards import in_partition_of, whole_queue
from jobrunner.client.item_record import ItemRecord
from jobrunner.client.operations import dead_and_history, delete_queue
from jobrunner.client.operations import queue as one
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, ask
from jobrunner.client.operations.routing import KNOWN_FOR_S
from jobrunner.errors import InvalidOption, JobrunnerError, QueueNotEmpty, TaskGone, UsageError
from jobrunner.formatting import describe
from jobrunner.retry import milliseconds
from jobrunner.settings import Duration

T = TypeVar("T")
PRODUCERS_LEARN_S = KNOWN_FOR_S + 5
"""How long until every producer knows a changed number of partitions, and its earlier calls have arrived."""
_LOOKED_FOR_AT_ONCE = 4000
"""The most pairs of an id and a shard in one round trip; a pair costs the server a microsecond or two."""


def with_shards(ref: QueueRef, steps: Operation[T]) -> Operation[tuple[T, list[QueueRef]]]:
    """Carries out an operation on the queue itself. Returns its value, and the other shards of the queue, which it
    reads in the first round trip of the operation."""
    if ref.routes is None:
        return (yield from steps), []
    try:
        step = next(steps)
        if isinstance(step, list):
            *answer, found = yield [*step, shard_counts(ref.keys)]
        else:
            (found,) = yield [shard_counts(ref.keys)]
            answer = yield step
        step = steps.send(answer)
        while True:
            try:
                answer = yield step
            except JobrunnerError as error:
                step = steps.throw(error)
            else:
                step = steps.send(answer)
    except StopIteration as end:
        return end.value, [ref.shard(name) for name in found.names(ref.name)[1:]]


def shards(ref: QueueRef) -> Operation[list[QueueRef]]:
    """Returns all shards of a queue; only the queue itself without partitions."""
    if ref.routes is None:
        return [ref]
    return [ref.shard(name) for name in (yield from ask(shard_counts(ref.keys))).names(ref.name)]


def of_each(ref: QueueRef, make: Callable[[QueueRef], Call[T]]) -> Operation[list[T]]:
    """Returns the value of a call for each shard; one round trip without partitions, else two."""
    first, others = yield from with_shards(ref, ask(make(ref)))
    return [first, *((yield [make(shard) for shard in others]) if others else ())]


def shard_of(ref: QueueRef, task_id: str) -> QueueRef:
    """The shard whose tag the task id has; the queue itself for an id of the user's own. Raises InvalidName."""
    tag = tag_of_id(check_id(task_id))
    is_own = tag is not None and whole_queue(tag) == ref.keys.tag and ref.routes is not None
    return ref.shard(in_partition_of(tag, ref.name)) if tag is not None and is_own else ref


def shard_with(ref: QueueRef, task_id: str) -> Operation[QueueRef]:
    """Returns the shard that has the task with an id of the user's own; the queue itself when no shard has it."""
    every = yield from shards(ref)
    if tag_of_id(task_id) is not None or len(every) == 1:
        return shard_of(ref, task_id)
    return (yield from _holders(every, [task_id]))[0] or ref


def _holders(every: Sequence[QueueRef], ids: Sequence[str]) -> Operation[list[QueueRef | None]]:
    """Returns for each of these ids of the user's own the shard that has the task, None when no shard has it."""
    holders: list[QueueRef | None] = []
    at_once = max(_LOOKED_FOR_AT_ONCE // len(every), 1)
    for some in in_slices(ids, at_once):
        found = yield [tasks.how_many_exist(shard.keys, [task_id]) for task_id in some for shard in every]
        for of_task in in_slices(found, len(every)):
            exist = zip(every, of_task, strict=True)
            holders.append(next((shard for shard, is_there in exist if is_there), None))
    return holders


def delete_task(ref: QueueRef, task_id: str, *, force: bool) -> Operation[bool]:
    """Returns whether the item existed. Raises NotReserved, UsageError."""
    is_there = yield from one.delete(shard_of(ref, task_id), task_id, force=force)
    if not is_there and (shard := (yield from shard_with(ref, task_id))) is not shard_of(ref, task_id):
        is_there = yield from one.delete(shard, task_id, force=force)
    return is_there


def run_now(ref: QueueRef, task_id: str) -> Operation[bool]:
    """Returns whether the item was scheduled and waits now. Raises TaskGone."""
    try:
        return (yield from one.run_now(shard_of(ref, task_id), task_id))
    except TaskGone:
        if (shard := (yield from shard_with(ref, task_id))) is shard_of(ref, task_id):
            raise
    return (yield from one.run_now(shard, task_id))


def replay(ref: QueueRef, task_id: str) -> Operation[str]:
    """Returns the id of the new item, which is in the same shard. Raises TaskGone, EncryptionError."""
    try:
        return (yield from dead_and_history.replay(shard_of(ref, task_id), task_id))
    except TaskGone:
        if (shard := (yield from shard_with(ref, task_id))) is shard_of(ref, task_id):
            raise
    return (yield from dead_and_history.replay(shard, task_id))


def counts(ref: QueueRef) -> Operation[dict[str, int]]:
    """Returns how many items are in each state."""
    found = yield from of_each(ref, lambda shard: queues.counts(shard.keys))
    return {state: sum(getattr(shard, state) for shard in found) for state in one.STATES}


def totals(ref: QueueRef) -> Operation[dict[str, int]]:
    """Returns the totals by name."""
    found = yield from of_each(ref, lambda shard: queues.counts(shard.keys))
    summed: Counter[str] = Counter()
    for shard in found:
        summed.update(shard.totals)
    return dict(summed)


def pause(ref: QueueRef, for_: Duration | None) -> Operation[None]:
    """Pauses every shard, for a while or until it is resumed."""
    length_ms = milliseconds(for_, "for_")
    _, others = yield from with_shards(ref, one.pause(ref, for_))
    paused = {"paused": 1 if length_ms is None else f"+{length_ms}"}
    if others:
        yield [queues.configure(shard.keys, paused) for shard in others]


def resume(ref: QueueRef) -> Operation[None]:
    """Ends a pause."""
    _, others = yield from with_shards(ref, one.resume(ref))
    if others:
        yield [queues.configure(shard.keys, {"paused": ""}) for shard in others]


def ids(ref: QueueRef, state: str, limit: int, start: int) -> Operation[list[str]]:
    """Returns ids by their position; a queue with partitions lists them shard by shard."""
    found, others = yield from with_shards(ref, one.ids(ref, state, limit, start))
    before = ref
    for shard in others:
        if len(found) >= limit:
            break
        start = 0 if found else max(start - getattr((yield from ask(queues.counts(before.keys))), state), 0)
        found += yield from one.ids(shard, state, limit - len(found), start)
        before = shard
    return found


def list_tasks(ref: QueueRef, state: str, limit: int, after: str | None) -> Operation[list[ItemRecord]]:
    """Returns one page of records, shard by shard; an empty page only at the end."""
    first = ref if after is None else shard_of(ref, after)
    if after is not None and tag_of_id(after) is None:
        first = yield from shard_with(ref, after)
    if first is ref:
        (found, is_more), others = yield from with_shards(ref, one.list_tasks(ref, state, limit, after))
    else:
        found, is_more = yield from one.list_tasks(first, state, limit, after)
        every = yield from shards(ref)
        others = every[every.index(first) + 1 :]
    for shard in others:
        if is_more or len(found) >= limit:  # the next page goes on in the shard of the last task
            break
        records, is_more = yield from one.list_tasks(shard, state, limit - len(found), None)
        found += records
    return found


def requeue_dead(ref: QueueRef, chosen: Iterable[str] | None, rate: float | None, payload: Any) -> Operation[int]:
    """Returns how many items were put back. `rate` is for the whole queue. Raises InvalidOption."""
    step_ms = dead_and_history.step_of(rate)
    if chosen is None:
        if payload is not msgspec.UNSET:  # else the payload of each dead item would be lost
            raise InvalidOption(f"payload={describe(payload)} without ids: give the ids of the items that it is for")
        found, others = yield from with_shards(ref, ask(queues.counts(ref.keys)))
        more: list[queues.QueueCounts] = (yield [queues.counts(shard.keys) for shard in others]) if others else []
        dead = [found.dead, *(one.dead for one in more)]
        parts: list[_Part] = [(shard, None, count) for shard, count in zip([ref, *others], dead, strict=True) if count]
        return (yield from _requeue_parts(parts or [(ref, None, 0)], step_ms, payload))
    if isinstance(chosen, (str, bytes)) or not isinstance(chosen, Iterable):
        raise InvalidOption(f"ids={describe(chosen)}: give a list of ids")
    of_shard: dict[QueueRef, list[str]] = {}
    for task_id in chosen:
        of_shard.setdefault(shard_of(ref, task_id), []).append(task_id)
    own = [task_id for task_id in of_shard.get(ref, ()) if tag_of_id(task_id) is None]
    if own and len(every := (yield from shards(ref))) > 1:
        of_shard[ref] = [task_id for task_id in of_shard[ref] if tag_of_id(task_id) is not None]
        for task_id, shard in zip(own, (yield from _holders(every, own)), strict=True):
            of_shard.setdefault(shard or ref, []).append(task_id)
    parts = [(shard, some, len(some)) for shard, some in of_shard.items()]
    return (yield from _requeue_parts(parts, step_ms, payload))


_Part = tuple[QueueRef, list[str] | None, int]
"""A shard, the ids of dead tasks in it (None for all), and their number."""


def _requeue_parts(parts: list[_Part], step_ms: float, payload: Any) -> Operation[int]:
    """Puts dead tasks of all shards back in turns: a shard with more tasks has shorter steps, so that together they
    come back at one rate, from the first to the last."""
    total = sum(count for _, _, count in parts)
    done = 0
    for place, (shard, some, count) in enumerate(parts):
        done += yield from dead_and_history.requeue_dead(
            shard, some, payload, start_ms=place * step_ms, step_ms=step_ms * total / max(count, 1)
        )
    return done


def history(ref: QueueRef, limit: int) -> Operation[list[ItemRecord]]:
    """Returns records, the latest finished item first."""
    found, others = yield from with_shards(ref, dead_and_history.history(ref, limit))
    if not others:
        return found
    for shard in others:
        found += yield from dead_and_history.history(shard, limit)
    return sorted(found, key=_finished_at, reverse=True)[:limit]


def _finished_at(record: ItemRecord) -> float:
    return 0.0 if record.when is None else record.when.timestamp()


def purge(ref: QueueRef, state: str, progress: Callable[[int], None] | None = None) -> Operation[int]:
    """Returns how many items were deleted."""
    total, others = yield from with_shards(ref, one.purge(ref, state, progress))
    for shard in others:
        before = total

        def report(of_shard: int, before: int = before) -> None:
            if progress is not None:
                progress(before + of_shard)

        total += yield from one.purge(shard, state, report)
    return total


def delete(ref: QueueRef, *, force: bool) -> Operation[bool]:
    """Returns whether the queue existed. Raises QueueNotEmpty, without `force` before anything is deleted, and
    UsageError for a queue whose producers may still use its other shards: tasks sent after the deletion would be in a
    shard that no worker serves."""
    if ref.routes is None:
        return (yield from delete_queue.delete_queue(ref, force=force))
    found = yield from ask(shard_counts(ref.keys))
    every = [ref.shard(name) for name in found.names(ref.name)]
    if len(every) == 1:
        return (yield from delete_queue.delete_queue(ref, force=force))
    if found.partitions > 1:
        raise UsageError(
            f"queue {ref.name!r} has {found.partitions} partitions, and its producers may send to each for another "
            "minute: set it back with configure(partitions=1), and delete it a minute later; nothing was deleted"
        )
    stored, now_ms = yield [queues.settings(ref.keys), server_time()]
    if (left_s := whole(stored.get(CHANGED_FIELD)) / 1000 + PRODUCERS_LEARN_S - now_ms / 1000) > 0:
        raise UsageError(
            f"queue {ref.name!r} had other partitions a minute ago, and its producers may still send to them: "
            f"delete it {math.ceil(left_s)} s later; nothing was deleted"
        )
    if not force:
        held = {state: count for state, count in (yield from counts(ref)).items() if count}
        if held:
            said = ", ".join(f"{count} {state}" for state, count in held.items())
            raise QueueNotEmpty(
                f"queue {ref.name!r} holds {said}: let it be worked off, purge it, or delete it with force=True "
                "(--force)"
            )
    there = False
    for shard in reversed(every):  # the queue itself last: it has the number of shards
        there |= yield from delete_queue.delete_queue(shard, force=force)
    return there
