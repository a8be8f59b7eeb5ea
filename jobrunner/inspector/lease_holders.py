"""The workers that hold pending tasks and that ran failed attempts, decoded from lease numbers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from jobrunner.broker.call import command
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.client.records import RunningAttempt, WorkerRecord
from jobrunner.inspector.task_rows import TaskRow
from jobrunner.lease_number import mark_in, mark_of, number_from
from jobrunner.task import Failure, TaskRecord, TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseHolder:
    """The holder of a task's lease."""

    mark: str
    """The end of the worker's id; empty for a batch, and for a lease that a program reserved itself."""
    worker: WorkerRecord | None
    """None when no live worker has this mark."""
    running: RunningAttempt | None
    """What it said of the attempt, or of the batch that the task is in, with that one's other half; None when it had
    not begun, or began since the last heartbeat."""


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


def _of_batch(number: float, queue: str, workers: Iterable[WorkerRecord]) -> LeaseHolder:
    for worker in workers:
        for one in worker.running:
            if one.items and one.queue == queue and number in _numbers(one.id):
                return LeaseHolder(mark="", worker=worker, running=one)
    return LeaseHolder(mark="", worker=None, running=None)


def _numbers(batch_id: str) -> set[int]:
    """Of the leases of its members: those of the batch that it is, or is a half of."""
    parts = batch_id.split(".")
    return {number_from(".".join(parts[:end])) for end in range(1, len(parts) + 1)}


def worker_marked(mark: str, workers: Iterable[WorkerRecord]) -> WorkerRecord | None:
    """The worker whose id ends with this mark."""
    return next((worker for worker in workers if mark and mark_in(worker.id) == mark), None)


def who_failed(failure: Failure, workers: Iterable[WorkerRecord]) -> str:
    """The id of the worker that ran an attempt; where only its mark is known and it is gone, that; or nothing."""
    worker = worker_marked(failure.worker, workers)
    return failure.worker if worker is None else worker.id


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTask:
    """A pending task with its holder, or a batch of a driver."""

    queue: str
    id: str
    type: str
    attempt: int
    began: datetime | None
    """None: it has not begun, or who holds it does not say."""
    lease_ends: datetime | None
    """None: not looked at."""
    worker: WorkerRecord | None
    """None: no worker says that it runs it."""
    items: int = 0
    """Of a batch, which `id` names. 0: a task."""


def at_work(workers: Iterable[WorkerRecord], pending: Iterable[TaskRow]) -> list[HeldTask]:
    """Attempts that workers report as running, the longest first; then the other `pending` tasks."""
    lines = {(line.queue, line.id): line for line in pending}
    said = sorted(((one, worker) for worker in workers for one in worker.running), key=lambda pair: pair[0].began_ms)
    found = [_said(one, worker, lines.pop((one.queue, one.id), None)) for one, worker in said]
    return found + [
        HeldTask(
            queue=line.queue, id=line.id, type=line.type, attempt=line.attempt, began=line.started,
            lease_ends=line.when, worker=None,
        )
        for line in lines.values()
    ]  # fmt: skip


def _said(one: RunningAttempt, worker: WorkerRecord, line: TaskRow | None) -> HeldTask:
    return HeldTask(
        queue=one.queue, id=one.id, type=one.type, attempt=one.attempt, began=one.began,
        lease_ends=None if line is None else line.when, worker=worker, items=one.items,
    )  # fmt: skip
