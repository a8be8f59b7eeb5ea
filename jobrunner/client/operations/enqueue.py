"""From tasks to the calls that enqueue them, and from their replies to what became of the tasks."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.chunks import sliced
from jobrunner.broker.keys import Keys
from jobrunner.client.item import check_size
from jobrunner.client.operations import capacity
from jobrunner.client.operations.operation import Operation
from jobrunner.errors import DuplicateTask, JobrunnerError
from jobrunner.settings import Duration
from jobrunner.task import Task

BATCH = 1000
_TRIES = 20
"""How often a payload is sealed again for the task whose place it takes; more than once only in a race."""


def enqueue_call(keys: Keys, sent: list[Task], limit: int) -> Call[Any]:
    """The call that enqueues tasks of one queue, or one unique task. Raises PayloadTooLarge."""
    for task in sent:
        check_size(task.payload, limit)
    queue = keys.queue(sent[0].queue)
    return tasks.enqueue(queue, sent) if sent[0].lock is None else tasks.enqueue_unique(queue, sent[0])


Placed = tuple[str, bool]
"""The id of the task that is there after a call, and whether the call made it."""


def sealed_anew(keys: Keys, task: Task, reply: Any) -> Call[Any] | None:
    """The call that enqueues a unique task once more, when its payload had to be sealed for another task, whose place
    it takes; else None."""
    if reply.word != "sealed_else":
        return None
    return tasks.enqueue_unique(keys.queue(task.queue), task, sealed_as=(reply.id, keys.queue(reply.queue)))


def placed(task: Task, reply: Any) -> Placed:
    """Maps the reply of an enqueue to (id, is_new). Raises DuplicateTask for a clash that should."""
    if task.lock is None:
        return task.id, is_new(task, reply[0])
    word, task_id = reply[:2]
    if word == "clash" and task.lock.on_clash == "raise":
        raise DuplicateTask(f"a task like this one, {task_id}, is in queue {task.queue!r} already", task_id)
    return str(task_id), word == "new"


def is_new(task: Task, said: bool) -> bool:
    """Whether a task is new that the server says so of. An id that jobrunner made is there already only when it was
    sent before and the reply was lost, so it is."""
    return said or not task.sending


class EnqueueBatch:
    """Up to BATCH tasks as calls: `before`, of the registry of queues, and `written`, for each queue and unique task.

    `known` are queues that are in the registry. `before` is empty when all are.
    """

    def __init__(self, keys: Keys, sent: Sequence[Task], limit: int, known: AbstractSet[str] = frozenset()) -> None:
        self._sent = sent
        unique: list[int] = []
        together: dict[str, list[int]] = {}
        for position, task in enumerate(sent):
            if task.lock is None:
                together.setdefault(task.queue, []).append(position)
            else:
                unique.append(position)
        self.new_queues = {task.queue for task in sent} - known
        self.before: list[Call[Any]] = queues.register(keys, sorted(self.new_queues)) if self.new_queues else []
        self._parts = [*together.values(), *([position] for position in unique)]
        parts = [[sent[position] for position in part] for part in self._parts]
        self.written = [(keys.queue(part[0].queue), enqueue_call(keys, part, limit)) for part in parts]

    def unique(self, replies: list[Any]) -> Iterator[tuple[int, Task]]:
        """The unique tasks among `replies`, each with where its reply is."""
        first = len(replies) - len(self._parts)
        for at, part in enumerate(self._parts, first):
            if self._sent[part[0]].lock is not None:
                yield at, self._sent[part[0]]

    def placed(self, replies: list[Any]) -> list[Placed]:
        """Maps the replies to (id, is_new), one per task. Raises DuplicateTask."""
        found: list[Placed] = [("", False)] * len(self._sent)
        for part, reply in zip(self._parts, replies[len(replies) - len(self._parts) :], strict=True):
            first = self._sent[part[0]]
            if first.lock is not None:
                found[part[0]] = placed(first, reply)
                continue
            if False not in reply:
                for position in part:
                    found[position] = self._sent[position].id, True
                continue
            for position, said in zip(part, reply, strict=True):
                task = self._sent[position]
                found[position] = task.id, is_new(task, said)
        return found


def write(batch: EnqueueBatch, keys: Keys, wait: Duration) -> Operation[list[Any]]:
    """Sends a batch; returns its replies. Waits for room in full queues. Raises QueueFull."""
    replies = yield from capacity.write(batch.before, batch.written, wait)
    for at, task in batch.unique(replies):
        for _ in range(_TRIES):
            call = sealed_anew(keys, task, replies[at])
            if call is None:
                break
            (replies[at],) = yield from capacity.write([], [(keys.queue(task.queue), call)], wait)
        else:
            raise JobrunnerError(
                f"the task that {task.type!r} would take the place of changed {_TRIES} times meanwhile; nothing was "
                "changed: enqueue it again"
            )
    return replies


def batches(sent: Iterable[Task], limit: int, most: int = BATCH) -> Iterator[list[Task]]:
    """Slices of up to `most` tasks, and of a MiB of payloads and headers. Raises PayloadTooLarge before any of `most`
    tasks is given when one of them has more than `limit`."""
    rest = iter(sent)
    while some := list(itertools.islice(rest, most)):
        for task in some:
            check_size(task.payload, limit)
        yield from sliced(some, lambda task: len(task.payload) + len(task.headers or b""), most=most)
