"""Finds pauses and limits that hold all waiting tasks of a test, describes them, and computes when they lift."""

from collections.abc import Iterable
from dataclasses import dataclass

from jobrunner.broker.call import command
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import QueueKeys
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.settings_hash import read_settings
from jobrunner.queue_settings import QueueSettings

_NEVER_MS = 2.0**46
"""Lift times from this value on mean never: a partition at its limit of leases, see lua/lib/waiting_set.lua."""
_BANDS = (b"-1", b"0", b"1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A queue whose waiting tasks cannot be handed out now. `lifts_ms`: when the first of them can be, in Unix ms; None
    when passing time does not lift the hold."""

    queue: str
    waiting: int
    why: str
    lifts_ms: float | None = None

    def __str__(self) -> str:
        return f"queue {self.queue!r} has {self.waiting} waiting, held by {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The queues of a worker at one instant. `moves`: whether a task runs, or can be handed out now."""

    moves: bool
    holds: tuple[Hold, ...]


def find_holds(client: Client, names: Iterable[str]) -> Held:
    """Reads pauses and limits of the queues that have tasks. Raises ServerError."""
    keys = [keys_of(client).queue(name) for name in names]
    counted = broker_of(client).run_many([queues.counts(one) for one in keys])
    moves, holds = any(found.pending for found in counted), []
    for queue, found in zip(keys, counted, strict=True):
        if not found.waiting:
            continue
        hold = Hold(queue=queue.name, waiting=found.waiting, why="a pause") if found.paused else None
        hold = hold or _hold_of(client, queue, found.waiting)
        if hold is None:
            moves = True
        else:
            holds.append(hold)
    if holds and not moves:  # a worker may have taken tasks, and their tokens, in between
        again = broker_of(client).run_many([queues.counts(one) for one in keys])
        moves = [(one.waiting, one.pending) for one in again] != [(one.waiting, one.pending) for one in counted]
    return Held(moves=moves, holds=tuple(holds))


def left_over(client: Client, names: Iterable[str]) -> str:
    """Describes the open tasks of the queues, and the pauses and limits that hold them. Raises ServerError."""
    names = list(names)
    counted = broker_of(client).run_many([queues.counts(keys_of(client).queue(name)) for name in names])
    texts = [str(hold) for hold in find_holds(client, names).holds]
    for name, found in zip(names, counted, strict=True):
        having = {"pending": found.pending, "waiting": found.waiting, "scheduled": found.scheduled}
        if any(having.values()):
            texts.append(f"queue {name!r}: {', '.join(f'{count} {state}' for state, count in having.items() if count)}")
    return "; ".join(texts) or "the queues are empty"


def _hold_of(client: Client, queue: QueueKeys, waiting: int) -> Hold | None:
    broker = broker_of(client)
    settings = read_settings(broker.run(queues.settings(queue)))
    probed = broker.run(queues.probe(queue))
    if not probed.has_tasks and settings.rate is not None:
        refilled_ms, lifts_ms = probed.now_ms + settings.rate.seconds * 1000, probed.next_event_ms
        if lifts_ms is not None and lifts_ms > refilled_ms:
            lifts_ms = None  # lifted by another event: a shard without a share of the rate has no refill
        return Hold(queue=queue.name, waiting=waiting, why=f"rate={settings.rate}", lifts_ms=lifts_ms)
    by_partition = _limits_of_partitions(settings)
    if not by_partition:
        return None
    prefix = queue.waiting.removesuffix(b"waiting")
    may_go_on = [prefix + b"unsure", *(prefix + b"rotation:" + band for band in _BANDS)]
    first = command("ZRANGE", prefix + b"blocked", 0, 0, "WITHSCORES", read=lambda reply: reply)
    *exist, blocked = broker.run_many([*(command("EXISTS", key, read=int) for key in may_go_on), first])
    if any(exist) or not blocked or float(blocked[1]) <= probed.now_ms:
        return None
    lifts_ms = float(blocked[1])
    return Hold(
        queue=queue.name, waiting=waiting, why=by_partition, lifts_ms=None if lifts_ms >= _NEVER_MS else lifts_ms
    )


def _limits_of_partitions(settings: QueueSettings) -> str:
    limits = {
        "rate_per_partition": settings.rate_per_partition,
        "max_inflight_per_partition": settings.max_inflight_per_partition,
    }
    return ", ".join(f"{name}={limit}" for name, limit in limits.items() if limit)
