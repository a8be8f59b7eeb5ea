"""The record of a task, as programs and pages read it, with its failed attempts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import isfinite
from typing import Any

from jobrunner.clock import from_ms, read_instant
from jobrunner.codec import decode
from jobrunner.errors import EncryptionError, PayloadStoreError
from jobrunner.task import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt without success. `what`: failed; expired, when its lease ended without a report; or crashed, when its
    worker died meanwhile."""

    at: datetime
    attempt: int
    what: str
    worker: str
    """The id of the worker; only the end of the id when it did not report; empty when no worker ran the attempt."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task at the time of the read."""

    id: str
    type: str
    queue: str
    state: TaskState
    when: datetime | None
    """Due time, end of lease, time of death or of finishing, by state."""
    enqueue_time: datetime
    attempts: int
    """How many attempts began. The lease of a pending task counts as an attempt: only its worker's heartbeat, which
    `jobrunner tasks list` and the dashboard read, tells whether that attempt has begun."""
    retry_count: int
    priority: int
    error: str
    payload: bytes = field(repr=False)
    result: bytes | None = field(repr=False, default=None)
    """None where there is none: before the end, of a job that returned nothing, of a task that was cancelled."""
    fields: Mapping[str, bytes] = field(repr=False, default_factory=dict)
    """Every field of the hash, also fields of a newer version."""
    unread: EncryptionError | PayloadStoreError | ValueError | None = field(repr=False, default=None)
    """The error when payload or result could not be decrypted or read: then they are in their stored form."""
    after: bytes = field(repr=False, default=b"")
    """The metadata, in its payload, of the results that the task gets (see client/encryption.py)."""
    tag: str = field(repr=False, default="")
    """The hash tag of its keys."""
    is_encrypted: bool = field(repr=False, default=False)
    """Whether the payload in this record is ciphertext."""
    has_encrypted_result: bool = field(repr=False, default=False)
    """Whether the result in this record is ciphertext."""
    placeholder: str = field(repr=False, default="")
    """The text that pages and commands render for a payload that is ciphertext or a reference; else empty."""

    @property
    def progress(self) -> dict[str, Any] | None:
        """The last progress that the job published with `progress(…)`: `done`, `total` and `note`; None without
        progress and for damaged progress."""
        try:
            found = decode(self.fields.get("progress", b""))
            done, total, note = found["done"], found["total"], str(found["note"])
            return {"done": done, "total": total, "note": note} if isfinite(done + total) else None
        except (KeyError, OverflowError, TypeError, ValueError):
            return None

    @property
    def failures(self) -> list[Failure]:
        """The last failed attempts, at most ten, oldest first; damaged lines are left out."""
        found = [_failure(line) for line in _text(self.fields, "failures").split("\n")]
        return [failure for failure in found if failure is not None]


def _failure(line: str) -> Failure | None:
    try:
        at, attempt, what, worker, error = line.split("\t", 4)
        error = error.removesuffix("\ufffd")  # the server cut it at a byte, within a letter
        return Failure(at=from_ms(_number(at)), attempt=int(_number(attempt)), what=what, worker=worker, error=error)
    except (ValueError, OverflowError, OSError):
        return None


def read_record(state: str, score: str, fields: Mapping[str, bytes], *, tag: str = "") -> TaskRecord | None:
    """The record of a task's stored hash; None when the task is in no set and not finished (damage). A damaged number
    counts as missing.

    `tag` is the hash tag of the task. client/encryption.py decrypts the record.
    """
    if state not in TaskState.__members__.values():
        return None
    when = read_instant(score)
    retry_count = whole_number(_text(fields, "retry_count"))
    runs_or_ran = state in (TaskState.PENDING, TaskState.SUCCEEDED, TaskState.CANCELLED)
    return TaskRecord(
        id=_text(fields, "id"),
        type=_text(fields, "type"),
        queue=_text(fields, "queue"),
        state=TaskState(state),
        when=when if when is not None and when > from_ms(0) and state != "waiting" else None,
        enqueue_time=read_instant(_text(fields, "enqueue_time")) or from_ms(0),
        attempts=whole_number(_text(fields, "attempts"), retry_count + runs_or_ran),
        retry_count=retry_count,
        priority=whole_number(_text(fields, "priority"), 1),
        error=_text(fields, "error"),
        payload=fields.get("payload", b""),
        result=fields.get("result") or None,  # a task that was cancelled ends with an empty one
        fields=fields,
        tag=tag,
    )


def _text(fields: Mapping[str, bytes], name: str) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def whole_number(text: str, default: int = 0) -> int:
    """The number in a field, cut to a whole number; `default` for a missing or damaged field."""
    try:
        return int(_number(text, default))
    except (ValueError, OverflowError):
        return default


def _number(text: str, default: float = 0) -> float:
    try:
        return float(text)
    except ValueError:
        return default
