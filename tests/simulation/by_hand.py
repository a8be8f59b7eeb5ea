"""Judges what is done by hand to tasks and queues, and the rate at which tasks are handed out."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from tests.simulation.letters import SeenLetters
from tests.simulation.seen import Seen, Violation, queue_of_key
from tests.simulation.spares import SeenHistory, note_end

_ALWAYS = float("inf")
_SLACK = 0.001
"""Of a token: the server counts in whole µs."""


@dataclass(slots=True)
class Bucket:
    """A rate as its documentation has it: full at first, `tokens` flow into it in `interval_ms`."""

    tokens: float
    interval_ms: float
    level: float
    at: float

    def take(self, count: int, now: float) -> bool:
        """Takes tokens, or puts them back; returns whether there were so many."""
        flowed = (now - self.at) * self.tokens / self.interval_ms
        self.level, self.at = min(self.tokens, self.level + flowed) - count, now
        self.level = min(self.level, self.tokens)
        return self.level >= -_SLACK

    def next_at(self, now: float) -> float:
        """When it has a whole token."""
        level = min(self.tokens, self.level + (now - self.at) * self.tokens / self.interval_ms)
        return now + max(0.0, 1 - _SLACK - level) * self.interval_ms / self.tokens


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    buckets: dict[bytes, Bucket]
    key_buckets: dict[tuple[bytes, bytes], Bucket]
    key_rates: dict[bytes, tuple[float, float]]
    paused: dict[bytes, float]
    tasks: dict[bytes, Seen]
    histories: dict[bytes, SeenHistory]

    letters: SeenLetters

    def seen(self, task_id: bytes) -> Seen: ...

    def arrives(self, seen: Seen, task_id: bytes, queue: bytes) -> None: ...


def check_flow(observer: _Observer, queue: bytes, count: int, now: float) -> None:
    """Takes in that so many tasks of a queue were handed out. Raises Violation."""
    if count and observer.paused.get(queue, 0.0) > now:
        raise Violation(f"{count} tasks of {queue.decode()} were handed out, which is paused")
    bucket = observer.buckets.get(queue)
    if bucket and not bucket.take(count, now):
        raise Violation(f"{count} tasks of {queue.decode()} were handed out, {-bucket.level:.3f} beyond its rate")


def check_key_flow(observer: _Observer, queue: bytes, keys: Iterable[bytes], now: float) -> None:
    """Takes in that tasks of these partitions of a queue were handed out. Raises Violation."""
    for key in filter(None, keys):
        bucket = _bucket_of_key(observer, queue, key, now)
        if not bucket.take(1, now):
            raise Violation(f"partition {key.decode()} of {queue.decode()} is {-bucket.level:.3f} beyond its rate")


def refund_key(observer: _Observer, queue: bytes, key: bytes, now: float) -> None:
    """Takes in that a task of this partition did not begin."""
    if key and queue in observer.key_rates:
        _bucket_of_key(observer, queue, key, now).take(-1, now)


def _bucket_of_key(observer: _Observer, queue: bytes, key: bytes, now: float) -> Bucket:
    tokens, interval_ms = observer.key_rates[queue]
    return observer.key_buckets.setdefault((queue, key), Bucket(tokens, interval_ms, tokens, now))


def configure(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply."""
    queue = queue_of_key(keys[0])
    if paused := dict(zip(args[2::2], args[3::2], strict=True)).get(b"paused"):
        observer.paused[queue] = observer.now() + float(paused) if paused[:1] == b"+" else _ALWAYS
    elif paused is not None:
        observer.paused.pop(queue, None)


def pop(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    queue, now = queue_of_key(keys[0]), observer.now()
    for task_id, *_ in reply or ():
        seen = observer.seen(task_id)
        if seen.ends > now or seen.outcome or seen.is_to_stop:
            raise Violation(f"{task_id.decode()} was popped, but it is {seen.outcome or 'leased or cancelled'}")
        observer.arrives(seen, task_id, queue)
        if seen.not_before > now:
            raise Violation(f"{task_id.decode()} was popped {seen.not_before - now:.1f} ms before it was due")
        observer.letters.check_in_time(task_id, seen, now)
        seen.outcome, seen.ends = "succeeded", 0.0
        note_end(observer, queue, task_id)
    check_flow(observer, queue, len(reply or ()), now)
    if queue in observer.key_rates:
        check_key_flow(observer, queue, (observer.tasks[task_id].key for task_id, *_ in reply or ()), now)


def requeue(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    now, delay = observer.now(), float(args[1])
    queue = queue_of_key(keys[0])
    for task_id, word in zip(args[4 + int(args[3]) :], reply, strict=True):
        seen = observer.seen(task_id)
        if word != b"ok":
            continue
        if seen.queue != queue:  # no reserve of the queue had it before
            observer.arrives(seen, task_id, queue)
        may_have_lapsed = not seen.outcome and seen.ends <= now and seen.spent + seen.ends > 0
        may_have_lapsed = may_have_lapsed or not seen.is_counted or observer.letters.expires(seen, now)
        if not (seen.outcome == "dead" or may_have_lapsed):
            raise Violation(f"{task_id.decode()} was requeued, but it is {seen.outcome or 'not dead'}")
        seen.outcome, seen.ends, seen.spent, seen.has_place, seen.is_to_stop = "", 0.0, 0, False, False
        seen.batch, seen.is_counted, seen.is_there = b"", True, True
        seen.not_before, seen.expires_at = now + delay if delay else 0.0, _ALWAYS
        delay += float(args[2])


def run_now(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for task_id, word in zip(args[1:], reply, strict=True):
        seen = observer.seen(task_id)
        if word == b"ok" and (seen.ends > observer.now() or seen.outcome):
            raise Violation(f"{task_id.decode()} was put in the queue, but it is {seen.outcome or 'leased'}")
        if word == b"ok":
            seen.has_place, seen.not_before = False, 0.0


def remove(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for task_id, word in zip(args[2:], reply, strict=True):
        seen = observer.seen(task_id)
        if word == b"ok" and seen.queue != queue_of_key(keys[0]):
            observer.arrives(seen, task_id, queue_of_key(keys[0]))
        if word == b"ok" and seen.ends > observer.now():
            raise Violation(f"{task_id.decode()} was removed while the lease {seen.lease:.0f} holds")
        if word == b"ok":
            seen.outcome, seen.ends = "removed", 0.0


def delete(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    task_id, seen = args[1], observer.seen(args[1])
    is_held = seen.ends > observer.now()
    if (reply == b"ok") != (is_held and not seen.outcome):
        raise Violation(f"a delete of {task_id.decode()} got {reply.decode()}; its lease ends at {seen.ends:.0f}")
    if reply == b"ok":
        seen.outcome, seen.ends = "succeeded", 0.0
        note_end(observer, seen.queue, task_id)
