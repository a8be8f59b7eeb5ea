"""Tasks on their way out: through the middleware of their client, then within what observes the process."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import msgspec

from jobrunner.client.item import read_headers, write_headers
from jobrunner.middleware import OBSERVERS, MiddlewareStack
from jobrunner.task import Task


class OutgoingTask:
    """A task that is about to be sent, as `on_enqueue` sees it. Entries of `headers` travel with the task."""

    __slots__ = ("_headers", "_task")

    def __init__(self, task: Task) -> None:
        self._task = task
        self._headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"OutgoingTask({self.id!r}, job={self.job!r}, queue={self.queue!r})"

    @property
    def id(self) -> str:
        """Its id."""
        return self._task.id

    @property
    def job(self) -> str:
        """The name of its job; empty for an item of a bare queue or a pipeline."""
        return self._task.type

    @property
    def queue(self) -> str:
        """The queue that it goes to."""
        return self._task.queue

    @property
    def payload(self) -> bytes:
        """Its payload as it is sent: the JSON of its parameters, or the bytes of an item. Not encrypted yet."""
        return self._task.payload

    @property
    def priority(self) -> int | None:
        """Its priority; None: the default, 1."""
        return self._task.priority

    @property
    def headers(self) -> dict[str, str]:
        """Strings by name that travel with it, to be changed in place."""
        if self._headers is None:
            self._headers = read_headers(self._task.headers)
        return self._headers

    def as_sent(self) -> Task:
        """The task with the headers that it has now. Raises InvalidOption unless they are strings by name."""
        if self._headers is None:
            return self._task
        return msgspec.structs.replace(self._task, headers=write_headers(self._headers) if self._headers else None)


def sending(tasks: Sequence[Task], middleware: MiddlewareStack | None) -> AbstractContextManager[Sequence[Task]]:
    """The tasks as they are to be sent, around sending them. Raises what `on_enqueue` raises, before any is sent."""
    if middleware is not None:
        tasks = through(tasks, middleware)
    return _observed(tasks) if OBSERVERS else nullcontext(tasks)


def through(tasks: Sequence[Task], middleware: MiddlewareStack) -> list[Task]:
    """The tasks as `on_enqueue` of the middleware leaves them."""
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
