"""Judges what is done by hand to tasks and queues, and the rate at which tasks are handed out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

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


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    buckets: dict[bytes, Bucket]
    paused: dict[bytes, float]
    tasks: dict[bytes, Seen]
    histories: dict[bytes, SeenHistory]

    def seen(self, task_id: bytes) -> Seen: ...

    def arrives(self, seen: Seen, task_id: bytes, queue: bytes) -> None: ...


def check_flow(observer: _Observer, queue: bytes, count: int, now: float) -> None:
    """Takes in that so many tasks of a queue were handed out. Raises Violation."""
    if count and observer.paused.get(queue, 0.0) > now:
        raise Violation(f"{count} tasks of {queue.decode()} were handed out, which is paused")
    bucket = observer.buckets.get(queue)
    if bucket and not bucket.take(count, now):
        raise Violation(f"{count} tasks of {queue.decode()} were handed out, {-bucket.level:.3f} beyond its rate")


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
        seen.outcome, seen.ends = "succeeded", 0.0
        note_end(observer, queue, task_id)
    check_flow(observer, queue, len(reply or ()), now)


def requeue(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for task_id, word in zip(args[4 + int(args[3]) :], reply, strict=True):
        seen = observer.seen(task_id)
        may_have_lapsed = not seen.outcome and seen.ends <= observer.now() and seen.spent + seen.ends > 0
        if word == b"ok" and not (seen.outcome == "dead" or may_have_lapsed):
            raise Violation(f"{task_id.decode()} was requeued, but it is {seen.outcome or 'not dead'}")
        if word == b"ok":
            seen.outcome, seen.ends, seen.spent, seen.has_place, seen.is_to_stop = "", 0.0, 0, False, False


def run_now(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for task_id, word in zip(args[1:], reply, strict=True):
        seen = observer.seen(task_id)
        if word == b"ok" and (seen.ends > observer.now() or seen.outcome):
            raise Violation(f"{task_id.decode()} was put in the queue, but it is {seen.outcome or 'leased'}")
        seen.has_place = seen.has_place and word != b"ok"


def remove(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    for task_id, word in zip(args[2:], reply, strict=True):
        seen = observer.seen(task_id)
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
