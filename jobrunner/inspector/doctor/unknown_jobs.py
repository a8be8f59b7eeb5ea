"""Jobs that a task of a served queue needs, and that no worker of that queue has loaded.

Workers release such a task with a delay, as another worker may know the job, and after a day it fails and is dead. So
the check reads the tasks that are first in the queue and those that are due next.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jobrunner.broker.call import Call
from jobrunner.client.client import Client
from jobrunner.client.records import WorkerRecord
from jobrunner.inspector.doctor import Check, warn
from jobrunner.inspector.shards import queue_of
from jobrunner.inspector.snapshot import QueueView, Shards, holding
from jobrunner.inspector.task_rows import TaskRow, some_lines

_QUEUES_IN_DOUBT, _TASKS_IN_DOUBT = 3, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownType:
    """A job that no worker of a queue knows. `tasks`: the number of its tasks among those that were read."""

    queue: str
    type: str
    tasks: int


def lines_in_doubt(
    client: Client, queues: Iterable[QueueView], workers: Sequence[WorkerRecord], shards: Mapping[str, Shards],
    *, most: int = _QUEUES_IN_DOUBT,
) -> list[Call[list[TaskRow]]]:
    """Calls that read the first 20 waiting and scheduled tasks of the fullest queues whose workers all list their jobs;
    queues of pipelines are left out, as a station takes any item."""
    doubtful = [one for one in queues if (one.waiting or one.scheduled) and _known(one.name, workers) is not None]
    fullest = sorted(doubtful, key=lambda one: -(one.waiting + one.scheduled))[:most]
    return [
        call
        for one in fullest
        for state in ("waiting", "scheduled")
        if getattr(one, state)
        for call in some_lines(client, holding(shards[one.name], state), state, count=_TASKS_IN_DOUBT)
    ]


def unknown_types(lines: Iterable[TaskRow], workers: Sequence[WorkerRecord]) -> list[UnknownType]:
    """The jobs of these tasks that no worker of their queue knows."""
    found: Counter[tuple[str, str]] = Counter()
    for line in lines:
        queue = queue_of(line.queue)
        known = _known(queue, workers)
        if line.type and known is not None and line.type not in known:
            found[queue, line.type] += 1
    return [UnknownType(queue=queue, type=job, tasks=tasks) for (queue, job), tasks in sorted(found.items())]


def unknown_type_check(one: UnknownType) -> Check:
    """The check result for an unknown job type."""
    found = f"{one.queue}: no live worker knows the job {one.type!r}, of {one.tasks} or more tasks to do"
    advice = "start a worker with the module that declares it; else they fail after a day (--unknown-grace) and die"
    return warn("job", found, advice)


def _known(queue: str, workers: Sequence[WorkerRecord]) -> frozenset[str] | None:
    """All jobs that workers of the queue have loaded; None when unknown or irrelevant."""
    serving = [worker.types for worker in workers if queue in worker.queues]
    if "/" in queue or not serving or any(types is None for types in serving):
        return None
    return frozenset(one for types in serving for one in types or ())
