"""Reads of batches: their staged rows, which tasks still are members, and since when members were due."""

from collections.abc import Sequence
from typing import Any

from jobrunner.attempt import due_ms, number_from
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls.batches import part_key
from jobrunner.broker.keys import QueueKeys


def nonces(keys: QueueKeys, batch_id: str, epoch: int, *, prefix: str) -> Call[list[str]]:
    """The sorted names, beginning with `prefix`, of the lists of rows that the holder of this epoch staged, whether the
    batch is decided or not."""
    start = f"{epoch}."

    def read(reply: Any) -> list[str]:
        names = (raw.decode() for raw in reply)
        return sorted(name.removeprefix(start) for name in names if name.startswith(start + prefix))

    return command("SMEMBERS", part_key(keys, batch_id, ":nonces"), read=read)


def staged_rows(keys: QueueKeys, batch_id: str, epoch: int, nonce: str) -> Call[int]:
    """How many rows one list of staged rows has."""
    rows = part_key(keys, batch_id, f":rows:{epoch}.{nonce}")
    return command("LLEN", rows, read=lambda reply: int(reply) // 4)


def staged_ids(keys: QueueKeys, batch_id: str, epoch: int, nonce: str) -> Call[list[str]]:
    """The ids of the rows in one list of staged rows, in order."""
    rows = part_key(keys, batch_id, f":rows:{epoch}.{nonce}")
    return command("LRANGE", rows, 0, -1, read=lambda reply: [raw.decode() for raw in reply[::4]])


def first_error(keys: QueueKeys, batch_id: str, epoch: int, nonce: str) -> Call[str]:
    """The error in the first row of one list of staged rows, each of which makes its item dead."""
    rows = part_key(keys, batch_id, f":rows:{epoch}.{nonce}")
    return command("LINDEX", rows, 2, read=lambda raw: (raw or b"").decode(errors="replace"))


def due_since(keys: QueueKeys, task_id: str) -> Call[float]:
    """The instant at which a member was due, Unix ms; 0 when the member is gone or damaged."""

    def read(reply: list[bytes | None]) -> float:
        enqueue_time, place, priority = reply
        if place is not None:
            return due_ms(place, priority)
        return float(enqueue_time) if enqueue_time and enqueue_time.replace(b".", b"", 1).isdigit() else 0.0

    return command("HMGET", keys.tasks + task_id.encode(), "enqueue_time", "place", "priority", read=read)


def size(keys: QueueKeys, batch_id: str) -> Call[int]:
    """How many members a batch has that is not split; 0 for a write, and when it is gone."""
    return command("HGET", part_key(keys, batch_id, ""), "size", read=lambda found: int(found or 0))


def failures(keys: QueueKeys, batch_id: str) -> Call[int]:
    """How many attempts at a batch, or at a batch that it is a part of, failed or ended without a report."""

    def read(reply: list[bytes | None]) -> int:
        return sum(int(count or 0) for count in reply)

    return command("HMGET", part_key(keys, batch_id, ""), "failures", "expiries", read=read)


def max_attempts(keys: QueueKeys, task_id: str) -> Call[int | None]:
    """The member's own limit of attempts; None when its queue's limit holds, or when the member is gone or damaged."""

    def read(reply: bytes | None) -> int | None:
        return int(reply) if reply is not None and reply.isdigit() else None

    return command("HGET", keys.tasks + task_id.encode(), "max_attempts", read=read)


def still_members(keys: QueueKeys, root: str, ids: Sequence[str]) -> Call[list[bool]]:
    """Whether each of one or more ids still is a member of the batch or of a part of it. A task that was deleted, or
    that another part ended, is none."""
    number = number_from(root)

    def read(reply: Any) -> list[bool]:
        return [held is not None and float(held) == number for held in reply]

    return command("ZMSCORE", keys.leases, *ids, read=read)
