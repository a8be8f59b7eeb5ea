"""Back-pressure of writes: a full queue refuses them at once, or after waiting for room until a timeout."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import backlog, scheduled, shard_counts
from jobrunner.broker.confirmed_writes import OF_SOME
from jobrunner.broker.confirmed_writes import written as none_refused
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.broker.shards import whole_queue
from jobrunner.client.operations.operation import Calls, Durable, Operation
from jobrunner.client.operations.routing import Routes
from jobrunner.clock import monotonic
from jobrunner.errors import OutcomeUnknown, QueueFull, ServerError, ServerRefused, ServerUnavailable
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import Task

_RECHECK_S = 0.5
_RESENT_S = 5.0
"""How long a batch waits before it is sent again without room for all its tasks: tasks that exist already need none."""
_NOTED_MS = 5000


def awaiting_room(routes: Routes, tasks: Sequence[Task], wait: Duration) -> Operation[float]:
    """Waits until a shard of each queue with partitions may have room for the tasks that may go to any shard. Returns
    the seconds of `wait` that are left.

    It runs before the tasks are placed. A placed task waits for its own shard, which may be full for long of scheduled
    tasks, or of tasks of a partition at its limit.
    """
    from jobrunner.client.operations.hints import CapacityHint  # here and below: most programs do not wait

    ends = monotonic() + seconds(wait, option="wait")
    for name in {task.queue for task in tasks if task.may_go_anywhere}:
        while (full := (yield from routes.full_shard(name))) is not None and (left := ends - monotonic()) > 0:
            yield [queues.await_capacity(full, lasts_ms=_NOTED_MS)]
            yield CapacityHint(full, min(left, _RECHECK_S))
            routes.measure_again([name])
    return max(ends - monotonic(), 0.0)


def write(
    before: Calls, calls: list[tuple[QueueKeys, Call[Any]]], wait: Duration, *, just_registered: bool = False
) -> Operation[list[Any]]:
    """Sends the calls `before` in a round trip of their own, then each call on its queue; returns the values of all.

    A server near its maxmemory may refuse one command and take the next: nothing is written after a refusal. A queue
    that is new is registered once more, unless it was `just_registered`.
    With `wait` a call to a full queue, which wrote nothing, is sent again as a whole when there may be room. All calls
    share that time, and a QueueFull of one call does not keep others from being tried. Raises QueueFull; OutcomeUnknown
    instead of ServerUnavailable after a part was written.
    """
    limit_s = seconds(wait, option="wait")
    values: list[Any] = (yield before) if before else []
    written: list[Any] = []
    if limit_s <= 0 or not calls:
        written = yield Durable([call for _, call in calls])
    else:
        written = yield from _all_when_there_is_room(calls, monotonic() + limit_s)
    if before:
        return values + written
    if not just_registered and any([getattr(reply, "is_first", False) for reply in written]):  # noqa: C419  a list costs one call less
        yield from registering_again([queue for queue, _ in calls], written)
    return written


def registering_again(queues_of_calls: Sequence[QueueKeys], replies: Sequence[Any]) -> Operation[None]:
    """Registers the queues whose replies have `is_first`: a queue that was deleted since this client registered it is
    no longer in the registry. Errors of the server are ignored, as the tasks were added before: most queues are
    registered, and a worker registers the queues that it serves."""
    new = [queue for queue, reply in zip(queues_of_calls, replies, strict=True) if getattr(reply, "is_first", False)]
    if not new:
        return
    with suppress(ServerError):
        yield queues.register_if_room(new[0], [queue.name for queue in new])


def _all_when_there_is_room(calls: list[tuple[QueueKeys, Call[Any]]], ends: float) -> Operation[list[Any]]:
    """Sends each call once, so that no call waits for another call's queue, then again the calls that full queues
    refused. Returns their values in order. Raises the first QueueFull when no call is left to try."""
    written: dict[int, Any] = {}
    wanted: dict[int, int] = {}
    refused: QueueFull | None = None
    try:
        for place, (_, call) in enumerate(calls):
            try:
                (written[place],) = yield Durable([call])
            except QueueFull as error:
                wanted[place] = error.wanted
        for place, more in wanted.items():
            try:
                written[place] = yield from _when_there_is_room(*calls[place], more, ends)
            except QueueFull as error:
                refused = refused or error
    except (ServerUnavailable, ServerRefused) as error:
        none_refused([*written.values(), error])  # raises the error, or OutcomeUnknown when other calls were written
    if refused is not None:
        raise refused
    return [written[place] for place in range(len(calls))]


def _when_there_is_room(queue: QueueKeys, call: Call[Any], wanted: int, ends: float) -> Operation[Any]:
    """Repeats a call that its full queue refused, until `ends`; returns its value."""
    looked_again = False
    while True:
        (room,) = yield [queues.await_capacity(queue, lasts_ms=_NOTED_MS)]
        if (room < 0 or room >= wanted) and not looked_again:  # room from before this producer was registered
            looked_again = True
        else:
            yield from _room_for(queue, wanted, ends)
            looked_again = False
        try:
            (value,) = yield Durable([call])
            return value
        except QueueFull as error:
            if monotonic() >= ends:
                raise
            wanted = error.wanted


def _room_for(queue: QueueKeys, wanted: int, ends: float) -> Operation[None]:
    """Waits until there may be room for `wanted` tasks, or for some seconds. Reading the free room costs the server
    less than a thousandth of refusing a large batch."""
    from jobrunner.client.operations.hints import CapacityHint

    room, sent_again = 0, monotonic() + _RESENT_S
    while 0 <= room < wanted and (left := min(ends, sent_again) - monotonic()) > 0:
        yield CapacityHint(queue, min(left, _RECHECK_S))
        if wanted == 1:
            return
        (room,) = yield [queues.await_capacity(queue, lasts_ms=_NOTED_MS)]


def write_parts(
    keys: Keys,
    routes: Routes | None,
    parts: Callable[[], Sequence[tuple[QueueKeys, Sequence[Task]]]],
    before: Calls,
    calls: list[tuple[QueueKeys, Call[Any]]],
    wait: Duration,
    *,
    just_registered: bool = False,
) -> Operation[list[Any]]:
    """As `write`; `parts` are the tasks of each call. Without `wait` nothing is added to a queue with partitions when
    one of its shards has no room for its part. Raises QueueFull."""
    bounded = routes.bounded({whole_queue(queue.name) for queue, _ in calls}) if routes is not None else []
    refused = None
    if bounded and not seconds(wait, option="wait"):
        refused = yield from _without_room(keys, bounded, parts())
    if refused is None:
        try:
            return (yield from write(before, calls, wait, just_registered=just_registered))
        except QueueFull as error:
            refused = error if len(calls) == 1 else _partly_full(error)
        except ServerUnavailable as error:
            if len(calls) == 1 or routes is None or not routes.on_several_nodes:
                raise
            raise OutcomeUnknown(f"{error}. {OF_SOME}") from error
    raise refused


def _without_room(
    keys: Keys, bounded: Iterable[str], parts: Sequence[tuple[QueueKeys, Sequence[Task]]]
) -> Operation[QueueFull | None]:
    """Returns the error for a queue with partitions and max_size of which a shard has no room, before any task is
    added. Otherwise the other shards would already have their tasks, and a retry would add these twice. Tasks that may
    exist already need no room."""
    for name in bounded:
        own = [(queue, part) for queue, part in parts if whole_queue(queue.name) == name]
        if len(own) < 2:
            continue
        every = [queue for queue, _ in own]
        counts, *held = yield [shard_counts(keys.queue(name)), *map(backlog, every), *map(scheduled, every)]
        bounds = dict(zip(counts.names(name), counts.parts(counts.max_size), strict=True))
        wanted: Counter[str] = Counter()
        for (queue, part), waiting, later in zip(own, held, held[len(own) :], strict=False):
            wanted[queue.name] += sum(not task.sending and task.lock is None for task in part)
            more, most = wanted[queue.name], bounds.get(queue.name)
            if more and most is not None and waiting + later + more > most:
                return _part_full(name, more, most)
    return None


def _part_full(queue: str, more: int, most: int) -> QueueFull:
    return QueueFull(
        f"queue {queue!r} has no room for these tasks: one of its partitions may hold {most} (its part of max_size), "
        f"and has none for {more} more; nothing was added; try again later, or raise max_size",
        wanted=more,
        queue=queue,
        max_size=most,
    )


def _partly_full(error: QueueFull) -> QueueFull:
    return QueueFull(f"{error}. {OF_SOME}", wanted=error.wanted, queue=error.queue, max_size=error.max_size)
