"""From tasks to the calls that enqueue them, and from their replies to the ids of the tasks that are there now."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.keys import Keys
from jobrunner.client.item import check_size
from jobrunner.errors import DuplicateTask
from jobrunner.task import Task

BATCH = 1000


def enqueue_call(keys: Keys, sent: list[Task], limit: int) -> Call[Any]:
    """The call that enqueues tasks of one queue, or one unique task. Raises PayloadTooLarge."""
    for task in sent:
        check_size(task.payload, limit)
    queue = keys.queue(sent[0].queue)
    return tasks.enqueue(queue, sent) if sent[0].lock is None else tasks.enqueue_unique(queue, sent[0])


def id_of(task: Task, placed: Any) -> str:
    """The id of the task that is there, after its call. Raises DuplicateTask if a clash should."""
    if task.lock is None:
        return task.id
    word, task_id = placed
    if word == "clash" and task.lock.on_clash == "raise":
        raise DuplicateTask(f"a task like this one, {task_id}, is in queue {task.queue!r} already", task_id)
    return str(task_id)


class Batch:
    """Up to BATCH tasks as calls: `before`, of the registry of queues, and `written`, for each queue and unique task.

    `known` are queues that are in the registry. `before` is empty when all are.
    """

    def __init__(self, keys: Keys, sent: Sequence[Task], limit: int, known: AbstractSet[str] = frozenset()) -> None:
        self._sent = sent
        self._unique: list[int] = []
        together: dict[str, list[Task]] = {}
        for position, task in enumerate(sent):
            if task.lock is None:
                together.setdefault(task.queue, []).append(task)
            else:
                self._unique.append(position)
        self.new_queues = {task.queue for task in sent} - known
        self.before: list[Call[Any]] = queues.register(keys, sorted(self.new_queues)) if self.new_queues else []
        parts = [*together.values(), *([sent[position]] for position in self._unique)]
        self.written = [(keys.queue(part[0].queue), enqueue_call(keys, part, limit)) for part in parts]

    def ids(self, replies: list[Any]) -> list[str]:
        """Beside the tasks, the ids of those that are there now. Raises DuplicateTask."""
        ids = [task.id for task in self._sent]
        first = len(replies) - len(self._unique)
        for position, placed in zip(self._unique, replies[first:], strict=True):
            ids[position] = id_of(self._sent[position], placed)
        return ids


def batches(sent: Iterable[Task]) -> Iterator[list[Task]]:
    """Slices of up to BATCH tasks."""
    rest = iter(sent)
    while batch := list(itertools.islice(rest, BATCH)):
        yield batch
