"""Reads the state of the demo from the server: progress, and the tasks that workers run."""

import json
from collections.abc import Iterator

from jobrunner import Client
from jobrunner.errors import TaskGone
from jobrunner.task_record import TaskRecord
from jobs_example.demos.fleet import WorkerProcess
from jobs_example.demos.jobs.state import DemoState, QueueLine, RunningTask, WorkerLine
from jobs_example.demos.jobs.workload import QUEUES, Accepted


def look(
    client: Client,
    accepted: dict[str, Accepted],
    workers: list[WorkerProcess],
    elapsed_s: float,
) -> DemoState:
    """The state at this moment; `accepted` gives the tasks their names."""
    queues = tuple(_line(client, name) for name in QUEUES)
    running = tuple(running_tasks(client, accepted))
    return DemoState(
        elapsed_s=elapsed_s,
        accepted=len(accepted),
        ended=sum(queue.dead + queue.done for queue in queues),
        queues=queues,
        workers=tuple(_worker(worker, running) for worker in workers),
        running=running,
    )


def running_tasks(client: Client, accepted: dict[str, Accepted]) -> Iterator[RunningTask]:
    """The running tasks, by queue; tasks that end during the reading are left out."""
    for name in QUEUES:
        for task_id in client.queue(name).ids("pending"):
            try:
                record = client.task(task_id, queue=name).record()
            except TaskGone:
                continue
            yield _running(record, accepted)


def left(client: Client) -> int:
    """How many tasks are still waiting, scheduled or pending."""
    counts = [client.queue(name).counts() for name in QUEUES]
    return sum(count[state] for count in counts for state in ("waiting", "scheduled", "pending"))


def _line(client: Client, name: str) -> QueueLine:
    queue = client.queue(name)
    counts = queue.counts()
    return QueueLine(
        name=name,
        waiting=counts["waiting"],
        scheduled=counts["scheduled"],
        pending=counts["pending"],
        dead=counts["dead"],
        done=queue.totals().get("succeeded", 0),
    )


def _worker(worker: WorkerProcess, running: tuple[RunningTask, ...]) -> WorkerLine:
    return WorkerLine(
        name=worker.name,
        executor=worker.kind,
        pid=worker.pid,
        state=worker.state,
        running=sum(task.worker == worker.name for task in running),
    )


def _running(record: TaskRecord, accepted: dict[str, Accepted]) -> RunningTask:
    known = accepted.get(record.id)
    progress = json.loads(record.fields.get("progress", b"{}"))
    worker, _, attempt = progress.get("note", "").partition("#")
    is_of_this_attempt = attempt == str(record.attempts)
    return RunningTask(
        id=record.id,
        what=known.what if known else record.type,
        worker=worker if is_of_this_attempt else "",
        attempt=record.attempts,
        done=progress["done"] if is_of_this_attempt else 0,
        total=progress["total"] if is_of_this_attempt else 0,
    )
