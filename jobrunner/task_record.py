"""A task as programs and pages read it: its record, and the attempts of it that came to nothing."""

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
    """One attempt that came to nothing. `what` is failed; or expired, its lease ended without a
    report; or crashed, its worker died meanwhile."""

    at: datetime
    attempt: int
    what: str
    worker: str
    """Its id; of one that did not report only what its id ends with; empty when no worker ran it."""
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """A task as it stood when it was read."""

    id: str
    type: str
    queue: str
    state: TaskState
    when: datetime | None
    """Due time, end of lease, time of death or of finishing, by state."""
    enqueue_time: datetime
    attempts: int
    """How many attempts began. The lease of a pending task counts as one: whether that attempt has begun is known from
    its worker's heartbeat alone, which `jobrunner tasks list` and the dashboard read."""
    retry_count: int
    priority: int
    error: str
    payload: bytes = field(repr=False)
    result: bytes | None = field(repr=False, default=None)
    fields: Mapping[str, bytes] = field(repr=False, default_factory=dict)
    """Every field of the hash, also those a newer version wrote."""
    unread: EncryptionError | PayloadStoreError | ValueError | None = field(repr=False, default=None)
    """Why payload or result could not be decrypted or read and stand here as they are stored."""
    after: bytes = field(repr=False, default=b"")
    """Which results its payload says that it is given (see client/encryption.py)."""
    tag: str = field(repr=False, default="")
    """The hash tag of its keys."""
    is_encrypted: bool = field(repr=False, default=False)
    """Whether the payload stands here as ciphertext."""
    has_encrypted_result: bool = field(repr=False, default=False)
    """Whether the result stands here as ciphertext."""
    placeholder: str = field(repr=False, default="")
    """The text that pages and commands show for a payload that is ciphertext or a reference here; else empty."""

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the job last published with `progress(…)`: its `done`, `total` and `note`; None before it did, and for
        what is damaged."""
        try:
            found = decode(self.fields.get("progress", b""))
            done, total, note = found["done"], found["total"], str(found["note"])
            return {"done": done, "total": total, "note": note} if isfinite(done + total) else None
        except (KeyError, OverflowError, TypeError, ValueError):
            return None

    @property
    def failures(self) -> list[Failure]:
        """The last attempts that failed, at most ten, the oldest first; lines that are damaged are left out."""
        found = [_failure(line) for line in _text(self.fields, "failures").split("\n")]
        return [failure for failure in found if failure is not None]


def _failure(line: str) -> Failure | None:
    try:
        at, attempt, what, worker, error = line.split("\t", 4)
        return Failure(at=from_ms(_number(at)), attempt=int(_number(attempt)), what=what, worker=worker, error=error)
    except (ValueError, OverflowError, OSError):
        return None


def read_record(state: str, score: str, fields: Mapping[str, bytes], *, tag: str = "") -> TaskRecord | None:
    """The record of a task's hash as it is stored; None when the hash belongs to no set and is not finished (damage).
    A number that is damaged counts as missing.

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
        result=fields.get("result"),
        fields=fields,
        tag=tag,
    )


def _text(fields: Mapping[str, bytes], name: str) -> str:
    return fields.get(name, b"").decode("utf-8", "replace")


def whole_number(text: str, default: int = 0) -> int:
    """The number of a field, cut to a whole one; `default` where the field is missing or damaged."""
    try:
        return int(_number(text, default))
    except (ValueError, OverflowError):
        return default


def _number(text: str, default: float = 0) -> float:
    try:
        return float(text)
    except ValueError:
        return default
