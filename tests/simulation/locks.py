"""Judges unique tasks: one is enqueued exactly when no other holds its lock."""

from collections.abc import Callable
from itertools import product
from typing import Any, Protocol

from jobrunner.queue_settings import QueueSettings
from tests.simulation.letters import SeenLetters
from tests.simulation.seen import Seen, Violation

_QUEUES = (b":in", b":out")
_STATES = (b":waiting", b":scheduled", b":pending")


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    tasks: dict[bytes, Seen]
    locks: dict[bytes, tuple[bytes, float]]
    replacements: set[bytes]
    letters: SeenLetters


def enqueue_unique(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if reply[0] == b"full":
        return
    (word, task_id), due, now = reply[:2], args[7], observer.now()
    if word == b"clash":
        _check_clash(observer, keys, args, task_id)
        return
    if word == b"exists" or (word == b"new" and task_id in observer.tasks):  # a call that was sent again
        return
    if word == b"new":
        holder, ends = observer.locks.get(keys[6], (task_id, 0.0))
        if ends > now + 1 and _has_lock(observer, keys, args, holder, by_default=False):
            raise Violation(f"{task_id.decode()} is unique, and was enqueued while {holder.decode()} has the lock")
        fields = dict(zip(args[12::2], args[13::2], strict=True))
        observer.tasks[task_id] = Seen(
            args[3], int(args[6] or 1), len(observer.tasks), has_place=not due, due=now, not_before=_due(due, now),
            payload=fields[b"payload"], key=fields.get(b"key", b""), enqueued=now,
            expires_at=observer.letters.expiry(args[3], fields.get(b"expires_in_ms"), now),
        )  # fmt: skip
    elif args[4] in observer.replacements:
        return
    else:
        observer.replacements.add(args[4])
        seen = observer.tasks[task_id]
        if seen.ends > now or seen.hops:
            has_begun = f"while the lease {seen.lease:.0f} holds" if seen.ends > now else "behind a move to a station"
            raise Violation(f"{task_id.decode()} was {word.decode()} {has_begun}")
        seen.lapses(now)
        fields = dict(zip(args[12::2], args[13::2], strict=True))
        seen.has_place, seen.not_before = False, _due(due, now)
        seen.expires_at = observer.letters.expiry(seen.queue, fields.get(b"expires_in_ms"), now)
        if word == b"replaced":
            seen.key, seen.payload = fields.get(b"key", b""), fields[b"payload"]
    observer.locks[keys[6]] = task_id, now + float(due[1:] or 0) + float(args[9])


def _due(due: bytes, now: float) -> float:
    """The end of a delay as a call has it: '' for none, '+N' in N ms, 'N' at that Unix ms."""
    return float(due or 0) + (now if due[:1] == b"+" else 0.0)


def _check_clash(observer: _Observer, keys: list[bytes], args: list[bytes], holder: bytes) -> None:
    """Raises Violation."""
    if observer.ask("EXISTS", args[0] + args[5]):
        raise Violation(f"{args[5].decode()} was refused for {holder.decode()}, but it is there itself")
    if not _has_lock(observer, keys, args, holder, by_default=True):
        raise Violation(f"a unique task was refused for {holder.decode()}, which does not hold its lock")


def _has_lock(observer: _Observer, keys: list[bytes], args: list[bytes], holder: bytes, *, by_default: bool) -> bool:
    """Whether a task holds a lock whose time is not over. `by_default`: the answer for a task that was handed out
    before, when the lock lasts until it starts: whether it counts as begun, only the server knows."""
    lasts = args[8]
    if lasts == b"expired":
        return True
    seen = observer.tasks[holder]
    if seen.has_expired(observer.now()):
        return False
    if lasts == b"started" and (seen.lease or seen.batch):
        return by_default
    tag = keys[0].rsplit(b":", 2)[0]
    for queue, state in product(_QUEUES, _STATES):
        score = observer.ask("ZSCORE", tag + queue + state, holder)
        if score is not None and (
            state != b":pending"
            or float(score) > observer.now()
            or _has_attempts(observer, tag + queue, args[0] + holder)
        ):
            return True
    return False


def _has_attempts(observer: _Observer, queue: bytes, task: bytes) -> bool:
    """Whether a task runs again after its lease has ended."""
    tries, own, cancelled = observer.ask("HMGET", task, "retry_count", "max_attempts", "cancel_requested")
    of_queue = observer.ask("HGET", queue + b":settings", "max_attempts")
    return not cancelled and int(tries or 0) + 1 < int(own or of_queue or QueueSettings().max_attempts)
