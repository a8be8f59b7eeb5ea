"""Attempts at tasks: the worker of each, decoded from lease numbers, and the timeline of one task."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from jobrunner.attempt import mark_in, mark_of, number_from
from jobrunner.broker.call import Call, command, whole
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.item import read_headers
from jobrunner.client.operations.dead_and_history import REPLAYED_FROM
from jobrunner.client.records import RunningAttempt, WorkerRecord
from jobrunner.clock import read_instant
from jobrunner.inspector.shards import queue_of
from jobrunner.inspector.task_rows import TaskRow
from jobrunner.task import TaskState
from jobrunner.task_record import Failure, TaskRecord

Kind = Literal[
    "replayed", "enqueued", "failed", "crashed", "expired", "started", "retry", "due", "lease", "succeeded", "died",
    "cancelled",
]
_LAST: dict[TaskState, Kind] = {
    TaskState.SUCCEEDED: "succeeded",
    TaskState.DEAD: "died",
    TaskState.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The holder of a task's lease."""

    mark: str
    """The end of the worker's id; empty for a batch, and for a lease that a program reserved itself."""
    worker: WorkerRecord | None
    """None when no live worker has this mark."""
    running: RunningAttempt | None
    """The worker's report on the attempt, or on the batch that the task is in (of a split batch, on its parts);
    None when the attempt had not begun at the last heartbeat."""


def holder_of(client: Client, record: TaskRecord, workers: Iterable[WorkerRecord]) -> LeaseHolder | None:
    """Finds the holder of this task in one command; None when it is not pending. Raises ServerError."""
    if record.state is not TaskState.PENDING:
        return None
    found = command("ZSCORE", keys_of(client).queue(record.queue).leases, record.id, read=lambda raw: float(raw or 0))
    number = broker_of(client).run(found)
    mark = mark_of(number)
    if not mark:
        return _of_batch(number, record.queue, workers)
    worker = worker_marked(mark, workers)
    known = worker.running if worker is not None else ()
    running = next((one for one in known if (one.queue, one.id) == (record.queue, record.id)), None)
    return LeaseHolder(mark=mark, worker=worker, running=running)


def stray_leases(client: Client, queue: str, workers: list[WorkerRecord]) -> Call[int]:
    """The call that counts, among the first hundred leases of a queue, those that no live worker holds."""

    def read(raw: list[bytes]) -> int:
        return sum(
            (worker_marked(mark_of(number), workers) or _of_batch(number, queue, workers).worker) is None
            for number in map(float, raw[1::2])
        )

    return command("ZRANGE", keys_of(client).queue(queue).leases, 0, _MOST_CHECKED - 1, "WITHSCORES", read=read)


def _of_batch(number: float, queue: str, workers: Iterable[WorkerRecord]) -> LeaseHolder:
    for worker in workers:
        for one in worker.running:
            if one.items and one.queue == queue_of(queue) and number in _numbers(one.id):
                return LeaseHolder(mark="", worker=worker, running=one)
    return LeaseHolder(mark="", worker=None, running=None)


def _numbers(batch_id: str) -> set[int]:
    """Lease numbers of the members of a batch: its own, and those of the batches that it is a part of."""
    parts = batch_id.split(".")
    return {number_from(".".join(parts[:end])) for end in range(1, len(parts) + 1)}


def worker_marked(mark: str, workers: Iterable[WorkerRecord]) -> WorkerRecord | None:
    """The worker whose id is or ends with this mark: a worker that reports a failure sends its whole id."""
    return next((worker for worker in workers if mark and mark in (worker.id, mark_in(worker.id))), None)


def who_failed(failure: Failure, workers: Iterable[WorkerRecord]) -> str:
    """The id of the worker that ran an attempt, or only its mark when the worker is gone; empty when unknown."""
    worker = worker_marked(failure.worker, workers)
    return failure.worker if worker is None else worker.id


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A pending task with its holder, or a batch of a driver."""

    queue: str
    id: str
    type: str
    attempt: int | None
    """The number of the last attempt that began; None when none has begun."""
    began: datetime | None
    """None when the attempt has not begun, or its holder does not report it."""
    lease_ends: datetime | None
    """None when it was not read."""
    worker: WorkerRecord | None
    """None when no worker reports the attempt."""
    items: int = 0
    """Size of the batch with this id; 0 for a single task."""
    is_fetched: bool = False
    """Whether a worker has reserved the task and had not begun it at its last heartbeat."""


_MOST_CHECKED, _QUEUES_CHECKED = 100, 10


def lease_checks(client: Client, workers: Iterable[WorkerRecord]) -> list[Call[set[RunningAttempt]]]:
    """Calls that read which of the reported attempts are over: one for each of the ten queues with most of the hundred
    longest attempts. Each returns the attempts that have ended since the heartbeat."""
    longest = sorted((one for worker in workers for one in worker.running if one.lease), key=lambda one: one.began_ms)
    by_queue: dict[str, list[RunningAttempt]] = {}
    for one in longest[:_MOST_CHECKED]:
        by_queue.setdefault(one.queue, []).append(one)
    some = sorted(by_queue.values(), key=len, reverse=True)[:_QUEUES_CHECKED]
    return [_ended(keys_of(client).queue(attempts[0].queue).leases, attempts) for attempts in some]


def _ended(leases: bytes, attempts: Sequence[RunningAttempt]) -> Call[set[RunningAttempt]]:
    def read(scores: list[bytes | None]) -> set[RunningAttempt]:
        return {
            one
            for one, score in zip(attempts, scores, strict=True)
            if score is None or f"{float(score):.0f}" != one.lease
        }

    return command("ZMSCORE", leases, *(one.id for one in attempts), read=read)


def still_running(worker: WorkerRecord, ended: Collection[RunningAttempt]) -> WorkerRecord:
    """The worker without the attempts that have ended since its heartbeat."""
    left = tuple(one for one in worker.running if one not in ended)
    over = len(worker.running) - len(left)
    return replace(worker, running=left, executing=worker.executing - over) if over else worker


def with_beginnings(rows: Iterable[TaskRow], workers: Iterable[WorkerRecord]) -> list[TaskRow]:
    """The rows of pending tasks with the beginning of the attempts that workers report; a task that is fetched and not
    begun has the number of its last attempt, or none."""
    workers = list(workers)
    known = {(one.queue, one.id): one for worker in workers for one in worker.running}
    complete = _completely_reported(workers)

    def with_beginning(row: TaskRow) -> TaskRow:
        if (running := known.get((row.queue, row.id))) is not None:
            return replace(row, started=running.began, attempt=running.attempt)
        is_fetched = queue_of(row.queue) in complete
        return replace(row, attempt=((row.attempt or 1) - 1) or None) if is_fetched else row

    return [with_beginning(row) if row.state == "pending" else row for row in rows]


def with_begun_attempts(records: Iterable[TaskRecord], workers: Iterable[WorkerRecord]) -> list[TaskRecord]:
    """The records; a pending task that is fetched and not begun does not count its lease as an attempt."""
    workers = list(workers)
    begun = {(one.queue, one.id) for worker in workers for one in worker.running}
    complete = _completely_reported(workers)

    def is_fetched(record: TaskRecord) -> bool:
        is_pending = record.state is TaskState.PENDING and queue_of(record.queue) in complete
        return is_pending and (record.queue, record.id) not in begun

    return [_without_attempt(record) if is_fetched(record) else record for record in records]


def with_begun_attempt(record: TaskRecord, holder: LeaseHolder | None) -> TaskRecord:
    """`with_begun_attempts` for one record whose holder is known."""
    is_fetched = holder is not None and holder.worker is not None and holder.running is None
    return _without_attempt(record) if is_fetched else record


def _without_attempt(record: TaskRecord) -> TaskRecord:
    return replace(record, attempts=max(record.attempts - 1, 0))


def _completely_reported(workers: Iterable[WorkerRecord]) -> set[str]:
    """Queues whose workers all list all their attempts: tasks that they do not list have not begun."""
    served: set[str] = set()
    partly: set[str] = set()
    for worker in workers:
        listed = sum(not one.items for one in worker.running)
        (served if worker.executing <= listed else partly).update(worker.queues)
    return served - partly


def at_work(workers: Iterable[WorkerRecord], pending: Iterable[TaskRow]) -> list[HeldTask]:
    """Attempts that workers report as running, the longest first; then the other `pending` tasks, `with_beginnings`."""
    lines = {(line.queue, line.id): line for line in pending}
    workers = list(workers)
    complete = _completely_reported(workers)
    said = sorted(((one, worker) for worker in workers for one in worker.running), key=lambda pair: pair[0].began_ms)
    found = [_said(one, worker, lines.pop((one.queue, one.id), None)) for one, worker in said]
    return found + [
        HeldTask(
            queue=line.queue, id=line.id, type=line.type, attempt=line.attempt, began=None,
            lease_ends=line.when, worker=None, is_fetched=queue_of(line.queue) in complete,
        )
        for line in lines.values()
    ]  # fmt: skip


def _said(one: RunningAttempt, worker: WorkerRecord, line: TaskRow | None) -> HeldTask:
    return HeldTask(
        queue=one.queue, id=one.id, type=one.type, attempt=one.attempt, began=one.began,
        lease_ends=None if line is None else line.when, worker=worker, items=one.items,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineEvent:
    """One past or future event of a task. Future kinds: `retry` and `due` (when it is next due), `lease` (when its
    lease ends)."""

    kind: Kind
    at: datetime
    text: str = ""
    """The error of an attempt; the id of the task that this one was replayed from."""
    attempt: int = 0
    """The number of the attempt; 0 for an event without one."""
    ahead: bool = False
    """Whether the event is in the future, by the reader's clock."""
    worker: str = ""
    """Id of the worker that ran a failed attempt; only the end of the id for a worker that is gone; or empty."""
    release: str = ""
    """The release of that worker while it lives; else empty."""


def timeline(
    record: TaskRecord, workers: Iterable[WorkerRecord] = (), holder: LeaseHolder | None = None
) -> list[TimelineEvent]:
    """The moments of a task, the earliest first. Of its failed attempts the last ten are known; `workers`: the live
    workers, for the names of workers that did not report; `holder`: of a pending task, for the start of its attempt."""
    found = [_begin(record)]
    found += [_failed(failure, workers) for failure in record.failures]
    if (started := _last_start(record, holder)) is not None:
        found.append(TimelineEvent(kind="started", at=started, attempt=record.attempts))
    if record.when is not None:
        found += _end(record, record.when)
    return sorted(found, key=lambda moment: moment.at)  # stable: events with equal times keep this order


def _last_start(record: TaskRecord, holder: LeaseHolder | None) -> datetime | None:
    """When the last attempt began, as its worker reports or measured it; else when it was handed out, if that is known.
    Several seconds may lie between, in which a worker holds a task behind others."""
    if record.state is TaskState.WAITING:
        return None
    if holder is not None and holder.worker is not None:
        return None if holder.running is None else holder.running.began
    if record.state in _LAST and record.when is not None and (run_ms := record.fields.get("run_ms")) is not None:
        return record.when - timedelta(milliseconds=whole(run_ms))
    return read_instant(record.fields.get("started_at"))


def _begin(record: TaskRecord) -> TimelineEvent:
    origin = read_headers(record.fields.get("headers")).get(REPLAYED_FROM, "")
    return TimelineEvent(kind="replayed" if origin else "enqueued", at=record.enqueue_time, text=origin)


def _failed(failure: Failure, workers: Iterable[WorkerRecord]) -> TimelineEvent:
    kinds: dict[str, Kind] = {"failed": "failed", "crashed": "crashed"}
    kind = kinds.get(failure.what, "expired")
    worker = worker_marked(failure.worker, workers)
    return TimelineEvent(
        kind=kind, at=failure.at, text=failure.error, attempt=failure.attempt,
        worker=failure.worker if worker is None else worker.id, release="" if worker is None else worker.release,
    )  # fmt: skip


def _end(record: TaskRecord, when: datetime) -> list[TimelineEvent]:
    if record.state in _LAST:
        return [TimelineEvent(kind=_LAST[record.state], at=when, attempt=record.attempts)]
    kind: Kind = "lease" if record.state is TaskState.PENDING else "retry" if record.retry_count else "due"
    return [TimelineEvent(kind=kind, at=when, ahead=True, attempt=record.retry_count + 1)]
