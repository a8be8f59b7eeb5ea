"""Judges batches: one driver at a time holds one, and each member is decided once."""

from collections.abc import Callable
from typing import Any, Protocol

from tests.simulation.seen import Seen, Violation


class _Observer(Protocol):
    """The part of an Observer that is used here."""

    ask: Callable[..., Any]
    now: Callable[[], float]
    epochs: dict[bytes, tuple[bytes, float]]
    claims: dict[bytes, bytes]
    decided: dict[bytes, bytes]
    ended_batches: set[bytes]
    staged: dict[tuple[bytes, bytes, bytes], dict[bytes, bytes]]
    tasks: dict[bytes, Seen]

    def seen(self, task_id: bytes) -> Seen: ...

    def arrives(self, seen: Seen, task_id: bytes, queue: bytes) -> None: ...


def fill(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    batch = args[2]
    if reply[0] in (b"lost", b"half") or not reply[0]:
        return
    members = observer.ask("LRANGE", keys[-1] + b":members", 0, -1)
    if len(members) != len(set(members)):
        raise Violation(f"a member is twice in batch {batch.decode()}")
    for task_id in members:
        seen = observer.seen(task_id)
        if seen.batch == batch and batch not in observer.ended_batches:
            continue
        if seen.ends > observer.now() or seen.outcome:
            raise Violation(f"{task_id.decode()} became a member of a batch while it was handed out or ended")
        observer.arrives(seen, task_id, args[1])
        seen.batch, seen.has_place, seen.is_counted, seen.ends = batch, False, False, 0.0
    observer.epochs[batch] = (args[3], float(reply[1]))


def claim(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if len(reply) < 2:
        return
    before, epoch = observer.epochs.get(args[1]), b"%d" % reply[0]
    is_again = before is not None and before[0] == epoch and observer.claims.get(args[1]) == args[3]
    if before is not None and before[1] > observer.now() and reply[1] == b"open" and not is_again:
        raise Violation(f"batch {args[1].decode()} was handed out while epoch {before[0].decode()} holds it")
    observer.epochs[args[1]], observer.claims[args[1]] = (epoch, float(reply[2])), args[3]


def fail_batch(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    batch, epoch = args[1:3]
    if reply == b"lost":
        return
    _check_open(observer, batch, epoch, "failure")
    if reply != b"more":
        observer.epochs[batch] = (epoch, 0.0)
    if reply == b"dissolved":
        observer.ended_batches.add(batch.partition(b".")[0])


def renew(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if reply != b"lost":
        _check_epoch(observer, args[0], args[1], "renewal")
        observer.epochs[args[0]] = (args[1], float(reply))


def begin(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    batch, attempt, epoch = args[0], args[3], b"%d" % reply[0]
    if reply[1] != b"open":
        if batch not in observer.decided:
            raise Violation(f"write {batch.decode()} is {reply[1].decode()}, and nobody decided it")
        return
    if batch in observer.decided:
        raise Violation(f"write {batch.decode()} begins anew, and is decided")
    newest, ends = observer.epochs.get(batch, (b"0", 0.0))
    is_shared = attempt and observer.claims.get(batch) == attempt and ends > observer.now()
    if not is_shared and int(epoch) <= int(newest):
        was = newest.decode()
        raise Violation(f"write {batch.decode()} begins under epoch {epoch.decode()}, and the newest is {was}")
    observer.epochs[batch], observer.claims[batch] = (epoch, float(reply[2])), attempt


def stage(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    if reply[:1] != [b"lost"]:
        _check_open(observer, args[0], args[1], "staging")
        rows = observer.staged.setdefault((args[0], args[1], args[2]), {})
        for row, to, more in zip(args[4::4], args[5::4], args[7::4], strict=True):
            if more:  # it makes a new item
                rows[row] = to


def decide(observer: _Observer, keys: list[bytes], args: list[bytes], reply: Any) -> None:
    """Takes in a call and its reply. Raises Violation."""
    batch, epoch = args[0], args[1]
    if reply[0] != b"ok" or observer.decided.get(batch) == epoch:  # the same holder may ask again
        return
    _check_open(observer, batch, epoch, "decision")
    observer.decided[batch] = epoch
    for nonce, count in zip(args[4::2], args[5::2], strict=True):
        rows = observer.staged.get((batch, epoch, nonce), {})
        if rows and len(rows) != int(count):
            raise Violation(f"batch {batch.decode()} was decided with {count.decode()} rows of {len(rows)} staged ones")
        for row, to in rows.items():
            observer.tasks[row] = Seen(_beside(keys[0], to), 1, len(observer.tasks), has_place=False, is_there=False)
    first, size, root = observer.ask("HMGET", keys[0], "first", "size", "list")
    list_key, last = keys[0].removesuffix(batch) + root + b":members", int(first) + int(size) - 1
    members = observer.ask("LRANGE", list_key, first, last)
    for task_id in members:
        seen = observer.seen(task_id)
        if seen.batch != root:
            raise Violation(f"{task_id.decode()} is decided by {batch.decode()}, but is in {seen.batch.decode()}")
        seen.decided += 1
        if seen.decided > 1:
            raise Violation(f"{task_id.decode()} is decided by two batches, at last by {batch.decode()}")


def _beside(batch: bytes, to: bytes) -> bytes:
    """The full name of a queue of the pipeline of a batch."""
    return batch.split(b":", 2)[1][1:-1] + b"/" + to


def _check_open(observer: _Observer, batch: bytes, epoch: bytes, what: str) -> None:
    _check_epoch(observer, batch, epoch, what)
    if batch in observer.decided:
        raise Violation(f"a {what} of batch {batch.decode()} was taken, but it is decided")


def _check_epoch(observer: _Observer, batch: bytes, epoch: bytes, what: str) -> None:
    newest, ends = observer.epochs.get(batch, (b"none", 0.0))
    if newest != epoch or ends <= observer.now():
        state = "holds" if ends > observer.now() else "is over"
        raise Violation(
            f"a {what} of batch {batch.decode()} under epoch {epoch.decode()} was taken, but the newest is "
            f"{newest.decode()}, and its lease {state}"
        )
