"""Tasks that lie in a queue which is served, but by workers that do not know their job. No writes.

Workers hand such a task back with a delay, as another worker may know the job, and after a day it fails and is dead. So
it is looked for among those first in line and among those that are due next.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jobrunner.broker.call import Call
from jobrunner.client.client import Client
from jobrunner.client.records import WorkerRecord
from jobrunner.inspector.doctor.check import Check, warn
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.task_rows import TaskRow, first_lines

_QUEUES = 3
_TASKS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownType:
    """A job that no worker of a queue knows. `tasks`: how many of it are among those that were looked at."""

    queue: str
    type: str
    tasks: int


def lines_in_doubt(
    client: Client, queues: Iterable[QueueView], workers: Sequence[WorkerRecord], *, most: int = _QUEUES
) -> list[Call[list[TaskRow]]]:
    """Calls that read the first 20 waiting and scheduled tasks of the fullest queues whose workers all list their jobs;
    queues of pipelines are left out, as a station takes any item."""
    doubtful = [one for one in queues if (one.waiting or one.scheduled) and _known(one.name, workers) is not None]
    fullest = sorted(doubtful, key=lambda one: -(one.waiting + one.scheduled))[:most]
    return [
        first_lines(client, one.name, state, count=_TASKS)
        for one in fullest
        for state in ("waiting", "scheduled")
        if getattr(one, state)
    ]


def unknown_types(lines: Iterable[TaskRow], workers: Sequence[WorkerRecord]) -> list[UnknownType]:
    """Of these tasks, the jobs that no worker of their queue knows."""
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        known = _known(line.queue, workers)
        if line.type and known is not None and line.type not in known:
            found[line.queue, line.type] += 1
    return [UnknownType(queue=queue, type=job, tasks=tasks) for (queue, job), tasks in sorted(found.items())]


def unknown_type_check(one: UnknownType) -> Check:
    """The check result for an unknown job type."""
    told = f"{one.queue}: no live worker knows the job {one.type!r}, of {one.tasks} or more tasks to do"
    advice = "start a worker with the module that declares it; else they fail after a day (--unknown-grace) and die"
    return warn("job", told, advice)


def _known(queue: str, workers: Sequence[WorkerRecord]) -> frozenset[str] | None:
    """All jobs that workers of the queue have loaded; None when unknown or irrelevant."""
    serving = [worker.types for worker in workers if queue in worker.queues]
    if "/" in queue or not serving or any(types is None for types in serving):
        return None
    return frozenset(one for types in serving for one in types or ())
