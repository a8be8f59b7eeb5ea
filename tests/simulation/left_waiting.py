"""Judges what a reserve leaves in its queue: it hands out fewer tasks than it was asked for only when no other can
begin, and says when to ask again, so an idle worker does not sleep while one waits."""

from collections.abc import Callable
from typing import Any, Protocol

from tests.simulation.by_hand import Bucket
from tests.simulation.seen import Seen, Violation

_SLACK_MS = 2.0
"""A task becomes due in whole ms, behind those that were scheduled for the same one."""
_SHORTEST_WAIT_MS = 11.0
"""Tokens of a rate that flow faster than one in this time are waited for together."""
_NEVER = float("inf")


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    now: Callable[[], float]
    tasks: dict[bytes, Seen]
    most_inflight: dict[bytes, int]
    most_of_key: dict[bytes, int]
    buckets: dict[bytes, Bucket]
    key_buckets: dict[tuple[bytes, bytes], Bucket]
    paused: dict[bytes, float]
    shared_limits: set[bytes]
    epochs: dict[bytes, tuple[bytes, float]]
    """Batches: how many of their members are under a lease is not known here."""


def check(observer: _Observer, queue: bytes, taken: list[bytes], reply: list[Any], now: float) -> None:
    """Takes in the reply to a reserve that got less than it asked for. Raises Violation."""
    if reply[1] == reply[0]:  # a bound on the call ended it
        return
    most, next_event, soonest, waits_for = int(reply[4]), float(reply[1] or _NEVER), _NEVER, b""
    of_queue = _lifts_of_queue(observer, queue, now)
    if of_queue == _NEVER:
        return
    for task_id, seen in observer.tasks.items():
        if seen.queue != queue or task_id in taken or not seen.can_begin(most) or seen.has_expired(now):
            continue
        due, lifts = max(seen.not_before, seen.ends) + _SLACK_MS, max(of_queue, _lifts_of_key(observer, seen, now))
        if due <= now and lifts <= now:
            raise Violation(f"{task_id.decode()} was left in {queue.decode()}, though it could begin")
        at = max(due, lifts + _SHORTEST_WAIT_MS if lifts > now else 0.0, now)
        if at < soonest:
            soonest, waits_for = at, task_id
    if next_event > soonest:
        raise Violation(
            f"{waits_for.decode()} can begin in {soonest - now:.0f} ms in {queue.decode()}, and its worker was to ask "
            f"again in {next_event - now:.0f} ms"
        )


def _lifts_of_key(observer: _Observer, seen: Seen, now: float) -> float:
    """When the limits of its partition allow a task to begin; never when a lease has to end first."""
    if not seen.key:
        return 0.0
    if most := observer.most_of_key.get(seen.queue):
        of_key = [one for one in observer.tasks.values() if one.key == seen.key and one.queue == seen.queue]
        if observer.epochs or sum(one.ends > now for one in of_key) >= most:
            return _NEVER
    bucket = observer.key_buckets.get((seen.queue, seen.key))
    return bucket.next_at(now) if bucket else 0.0


def _lifts_of_queue(observer: _Observer, queue: bytes, now: float) -> float:
    """The same for those of its queue."""
    if queue.partition(b"@")[0] in observer.shared_limits:  # a shard has a slice, which others may need more
        return _NEVER
    at = observer.paused.get(queue, 0.0)
    if most := observer.most_inflight.get(queue):
        held = sum(one.ends > now for one in observer.tasks.values() if one.queue == queue)
        if observer.epochs or held >= most:
            return _NEVER
    if bucket := observer.buckets.get(queue):
        at = max(at, bucket.next_at(now))
    return at
