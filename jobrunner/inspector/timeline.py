"""The timeline of one task, derived from its hash."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from jobrunner.client.item import read_headers
from jobrunner.client.operations.history import REPLAYED_FROM
from jobrunner.client.records import WorkerRecord
from jobrunner.clock import from_ms
from jobrunner.inspector.lease_holders import who_failed
from jobrunner.task import Failure, TaskRecord, TaskState

Kind = Literal[
    "replayed", "enqueued", "failed", "expired", "started", "retry", "due", "lease", "succeeded", "died", "cancelled"
]
_LAST: dict[TaskState, Kind] = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.DEAD: "died",
    TaskState.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One thing that happened, or will: `retry` and `due` (when it is next due), `lease` (when its lease ends)."""

    kind: Kind
    at: datetime
    text: str = ""
    """The error of an attempt; the id of the task that this one was replayed from."""
    attempt: int = 0
    """Which attempt; 0 where it is about none."""
    ahead: bool = False
    """Whether it has not happened yet, by the clock of who reads."""
    worker: str = ""
    """Id of the worker that ran a failed attempt; only the end of the id for a worker that is gone; or empty."""


def timeline(record: TaskRecord, workers: Iterable[WorkerRecord] = ()) -> list[TimelineEvent]:
    """The moments of a task, the earliest first. Of its failed attempts the last ten are known; `workers` are those
    alive, by which a worker is named that did not report."""
    found = [_begin(record)]
    found += [_failed(failure, workers) for failure in record.failures]
    if record.state is not TaskState.WAITING and (started := _instant(record, "started_at")) is not None:
        found.append(TimelineEvent(kind="started", at=started, attempt=record.attempts))
    if record.when is not None:
        found += _end(record, record.when)
    return sorted(found, key=lambda moment: moment.at)  # stable: what has the same time stays in this order


def _begin(record: TaskRecord) -> TimelineEvent:
    origin = read_headers(record.fields.get("headers")).get(REPLAYED_FROM, "")
    return TimelineEvent(kind="replayed" if origin else "enqueued", at=record.enqueue_time, text=origin)


def _failed(failure: Failure, workers: Iterable[WorkerRecord]) -> TimelineEvent:
    kind: Kind = "failed" if failure.what == "failed" else "expired"
    worker = who_failed(failure, workers)
    return TimelineEvent(kind=kind, at=failure.at, text=failure.error, attempt=failure.attempt, worker=worker)


def _end(record: TaskRecord, when: datetime) -> list[TimelineEvent]:
    if record.state in _LAST:
        return [TimelineEvent(kind=_LAST[record.state], at=when, attempt=record.attempts)]
    kind: Kind = "lease" if record.state is TaskState.PENDING else "retry" if record.retry_count else "due"
    return [TimelineEvent(kind=kind, at=when, ahead=True, attempt=record.retry_count + 1)]


def _instant(record: TaskRecord, field: str) -> datetime | None:
    try:
        return from_ms(float(record.fields[field]))
    except (KeyError, ValueError, OverflowError, OSError):
        return None
