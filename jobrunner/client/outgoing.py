"""Outgoing tasks: the middleware of their client changes them, and the observers of the process wrap the sending.

Also the unique ids of calls: of a reserve, from which lease tokens are made, and of a push under a user-chosen id.
"""

import itertools
import os
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import Self

import msgspec

from jobrunner.broker.shards import whole_queue
from jobrunner.client.item import read_headers, write_headers
from jobrunner.errors import BufferFull, JobrunnerError, MiddlewareError, OutcomeUnknown, ServerUnavailable
from jobrunner.middleware import MiddlewareStack
from jobrunner.observers import OBSERVERS
from jobrunner.task import Task


class OutgoingTask:
    """A task that is about to be sent, the argument of `on_enqueue`. Entries of `headers` travel with the task."""

    __slots__ = ("_headers", "_task")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._headers: dict[str, str] | None = None

    def __setattr__(self, name: str, value: object) -> None:
        """Raises MiddlewareError when a middleware assigns an attribute."""
        if name not in OutgoingTask.__slots__:
            raise MiddlewareError(
                f"task.{name} of on_enqueue cannot be assigned: add entries to task.headers, such as "
                "task.headers['tenant'] = 'ada'; all else of a task is chosen where it is enqueued"
            )
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return f"OutgoingTask({self.id!r}, job={self.job!r}, queue={self.queue!r})"

    @property
    def id(self) -> str:
        """The id of the task."""
        return self._task.id

    @property
    def job(self) -> str:
        """The name of the task's job; empty for an item of a bare queue or a pipeline."""
        return self._task.type

    @property
    def queue(self) -> str:
        """The queue of the task."""
        return self._task.queue

    @property
    def payload(self) -> bytes:
        """The payload, not yet encrypted: the JSON of the parameters, or the bytes of an item."""
        return self._task.payload

    @property
    def priority(self) -> int | None:
        """The priority of the task; None: the default, 1."""
        return self._task.priority

    @property
    def headers(self) -> dict[str, str]:
        """Strings by name that travel with the task, to be changed in place."""
        if self._headers is None:
            self._headers = read_headers(self._task.headers)
        return self._headers

    def as_sent(self) -> Task:
        """The task with the current headers. Raises InvalidOption unless these are strings by name."""
        if self._headers is None:
            return self._task
        return msgspec.structs.replace(self._task, headers=write_headers(self._headers) if self._headers else None)


def sending(tasks: Sequence[Task], middleware: MiddlewareStack | None) -> AbstractContextManager[Sequence[Task]]:
    """A context manager around the sending, with the tasks to send. Raises the errors of `on_enqueue` before a task is
    sent."""
    if middleware is not None:
        tasks = through(tasks, middleware)
    return _observed(tasks) if OBSERVERS else nullcontext(tasks)


def through(tasks: Sequence[Task], middleware: MiddlewareStack) -> list[Task]:
    """The tasks after `on_enqueue` of the middleware."""
    outgoing = [OutgoingTask(task) for task in tasks]
    for task in outgoing:
        middleware.enqueue(task)
    return [task.as_sent() for task in outgoing]


@contextmanager
def _observed(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    with ExitStack() as ends:
        for observer in OBSERVERS:
            tasks = ends.enter_context(observer.sending(tasks))
        yield tasks


class _CallIds:
    def __init__(self) -> None:
        self._process = os.urandom(6).hex()
        self._count = itertools.count(1)

    def renew(self) -> None:
        """Takes a new process part: a forked child must not make the ids of its parent."""
        self._process = os.urandom(6).hex()

    def next(self) -> str:
        return f"{self._process}{next(self._count):x}"


_source = _CallIds()
os.register_at_fork(after_in_child=_source.renew)


def new_token() -> str:
    """An id for one call, unique among all processes."""
    return _source.next()


_REMEMBERED = 200_000
"""Twice the most items of a push: if items of a push were forgotten, the same push would get another call id."""
_unknown: OrderedDict[tuple[str, str], str] = OrderedDict()


def sending_of(queue: str, task_id: str) -> str:
    """Distinguishes one enqueue of a task under a user-chosen id from other enqueues of that id.

    While the outcome of an earlier enqueue is unknown, its value is used again: if the server applied that enqueue, the
    new enqueue adds nothing. This lasts until an enqueue is answered, as the new enqueue may fail, too, before or after
    it reaches the server.
    """
    return (_unknown.get((queue, task_id)) if _unknown else None) or new_token()


def remember_unknown(tasks: Iterable[Task]) -> None:
    """Notes tasks with an unknown outcome: the server may have added them."""
    _remember(_sendings(tasks))


def _sendings(tasks: Iterable[Task]) -> Iterator[tuple[tuple[str, str], str]]:
    """Queue and id of each task under a user-chosen id, with the value that distinguishes its enqueue."""
    return (((whole_queue(task.queue), task.id), task.sending) for task in tasks if task.sending)


def _remember(sendings: Iterable[tuple[tuple[str, str], str]]) -> None:
    _unknown.update(sendings)
    while len(_unknown) > _REMEMBERED:
        _unknown.popitem(last=False)  # atomic: other threads may add entries meanwhile


def forget_unknown(tasks: Iterable[Task]) -> None:
    """Forgets answered tasks: they were added, now or before, so the next enqueue of their ids is a new one."""
    if not _unknown:
        return
    for task in tasks:
        name = whole_queue(task.queue), task.id
        if task.sending and _unknown.get(name) == task.sending:
            _unknown.pop(name, None)


class BatchedCall:
    """Context manager around a call that sends its tasks in several batches. It corrects errors after added batches.

    ServerUnavailable, which means that nothing was sent, becomes OutcomeUnknown; the message of any other
    JobrunnerError gets the number of added tasks. The server recognises a repetition of the call, and does not add
    tasks twice that have finished and gone meanwhile.
    """

    __slots__ = ("_added", "_sendings")

    def __init__(self) -> None:
        self._added = 0
        self._sendings: deque[tuple[tuple[str, str], str]] = deque(maxlen=_REMEMBERED)

    def added(self, tasks: Sequence[Task]) -> None:
        """Notes a batch that was added, or waits in the buffer."""
        self._added += len(tasks)
        self._sendings.extend(_sendings(tasks))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or not self._added:
            return
        _remember(self._sendings)
        if not isinstance(error, JobrunnerError):
            return
        problem = (
            f"{error}. {self._added:,} other tasks of this call were added; with ids of your own you may send all again"
        )
        if isinstance(error, ServerUnavailable) and not isinstance(error, BufferFull):
            raise OutcomeUnknown(problem) from error
        error.args = (problem, *error.args[1:])
