"""A client without a server: enqueued tasks stay in this process. `inline` runs them, `enqueued` records them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Never, NoReturn

from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.current import configured_client
from jobrunner.client.operations.task import TaskRef, gone, read_result
from jobrunner.client.outgoing import through
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.clock import utc_now
from jobrunner.errors import TaskTimeout, UsageError
from jobrunner.middleware import stack_of
from jobrunner.option_names import check_options
from jobrunner.settings import ClientSettings, Duration, client_settings
from jobrunner.task import Task, TaskRecord, TaskState, check_size

_PREFIX = "testing"


@dataclass(slots=True, kw_only=True)
class MemoryTask:
    """A task that was enqueued, and what became of it."""

    task: Task
    state: TaskState
    when: datetime | None = None
    attempts: int = 0
    retry_count: int = 0
    error: str = ""
    result: bytes | None = None
    is_kept: bool = True
    enqueue_time: datetime = field(default_factory=utc_now)

    def record(self) -> TaskRecord:
        """The task as it stands. Raises TaskGone."""
        task = self.task
        if not self.is_kept:
            raise gone(task.id)
        return TaskRecord(
            id=task.id, type=task.type, queue=task.queue, state=self.state, when=self.when,
            enqueue_time=self.enqueue_time, attempts=self.attempts, retry_count=self.retry_count,
            priority=1 if task.priority is None else task.priority,
            error=self.error, payload=task.payload, result=self.result,
        )  # fmt: skip

    def value(self) -> Any:
        """The result of the job. Raises as TaskHandle.result does; an unfinished task here never finishes."""
        record = self.record()
        if not record.state.is_final:
            raise TaskTimeout(f"task {record.id} ({record.type}) is {record.state}, and no worker runs it in this test")
        return read_result(record)

    def cancel(self) -> bool:
        """Cancels the task. Returns False when it is finished."""
        if self.state in (TaskState.SUCCEEDED, TaskState.CANCELLED):
            return False
        self.state = TaskState.CANCELLED
        return True

    def requeue(self) -> bool:
        """Puts a dead task back to wait, with its counts at zero. Returns False when it is not dead."""
        if self.state is not TaskState.DEAD:
            return False
        self.state, self.attempts, self.retry_count = TaskState.WAITING, 0, 0
        return True

    def run_now(self) -> bool:
        """Has a scheduled task wait. Returns False when it is not scheduled."""
        if self.record().state is not TaskState.SCHEDULED:
            return False
        self.state, self.when = TaskState.WAITING, None
        return True


class MemoryHandle(TaskHandle[Any]):
    """A handle on an entry."""

    def __init__(self, client: "MemoryClient", entry: MemoryTask, *, is_new: bool | None = None) -> None:
        super().__init__(
            broker_of(client), TaskRef(keys_of(client), None, entry.task.id, entry.task.queue), is_new=is_new
        )
        self._entry = entry

    def exists(self) -> bool:
        return self._entry.is_kept

    def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        return self._entry.value()

    def cancel(self) -> bool:
        return self._entry.cancel()

    def requeue(self) -> bool:
        return self._entry.requeue()

    def run_now(self) -> bool:
        return self._entry.run_now()

    def record(self) -> TaskRecord:
        return self._entry.record()


class AsyncMemoryHandle(AsyncTaskHandle[Any]):
    """The same for asyncio."""

    def __init__(self, twin: "AsyncMemoryClient", entry: MemoryTask, *, is_new: bool | None = None) -> None:
        super().__init__(broker_of(twin), TaskRef(keys_of(twin), None, entry.task.id, entry.task.queue), is_new=is_new)
        self._entry = entry

    async def exists(self) -> bool:
        return self._entry.is_kept

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        return self._entry.value()

    async def cancel(self) -> bool:
        return self._entry.cancel()

    async def requeue(self) -> bool:
        return self._entry.requeue()

    async def run_now(self) -> bool:
        return self._entry.run_now()

    async def _read(self) -> TaskRecord:
        return self._entry.record()


class MemoryBroker(Broker):
    """Keeps the metadata of jobs, takes notes of progress and early acknowledgements; refuses all that needs a server.

    `where` names what there is instead of one.
    """

    def __init__(self, endpoint: Endpoint, keys: Keys, where: str) -> None:
        super().__init__(endpoint)
        self._hashes: dict[bytes, dict[str, bytes]] = {}
        self._metadata = keys.job("")
        self._where = where

    def run(self, call: Call[Any]) -> Any:
        script = call.script
        if script is None:
            return call.read(self._command(*call.words))
        if script.name == "progress":
            return call.read(b"ok")
        return call.read([]) if script.name == "commit" else self._refuse(script.name)

    def run_many(self, calls: Iterable[Call[Any]]) -> list[Any]:
        return [self.run(call) for call in calls]

    def write(self, calls: Iterable[Call[Any]]) -> list[Any]:
        return self.run_many(calls)

    def run_each(self, calls: Iterable[Call[Any]], meanwhile: Callable[[], object] | None = None) -> list[Any]:
        if meanwhile is not None:
            meanwhile()
        return self.run_many(calls)

    def open_blocking(self, key: bytes) -> NoReturn:  # noqa: ARG002 - the face of a Broker
        self._refuse("a connection")

    def close(self) -> None:
        """Nothing to end: it may be used on."""

    def _command(self, verb: Any, key: Any = b"", *words: Any) -> Any:
        if not key.startswith(self._metadata):
            self._refuse(str(verb))
        fields = self._hashes.setdefault(key, {})
        if verb == "HGET":
            return fields.get(words[0])
        if verb == "HGETALL":
            return [word for name, value in fields.items() for word in (name.encode(), value)]
        if verb == "HSET":
            fields[words[0]] = words[1]
            return 1
        if verb == "HINCRBY":
            total = int(fields.get(words[0], b"0")) + words[1]
            fields[words[0]] = b"%d" % total
            return total
        return self._refuse(str(verb))

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{self._where} has no server for {what!r}; use the fixture jobrunner_client for this test")


class MemoryClient(Client):
    """Takes tasks in with `take`; all else that a client does needs a server and is refused."""

    def __init__(self, where: str) -> None:
        settings = client_settings() if (configured := configured_client()) is None else configured.settings
        self.settings = ClientSettings(url="unix:///no-server", prefix=_PREFIX, middleware=settings.middleware)
        self._middleware = stack_of(self.settings.middleware)
        self._keys = Keys(_PREFIX)
        self._encryption = None
        self._endpoint = Endpoint(self.settings.url)
        self._buffer = None
        self._broker = MemoryBroker(self._endpoint, self._keys, where)
        self.entries: dict[str, MemoryTask] = {}
        self.twin = AsyncMemoryClient(self)
        self._where = where

    def __repr__(self) -> str:
        return f"<the client of {self._where}>"

    def close(self) -> None:
        """Nothing to end: it may be used on."""

    def task(self, task_id: str, *, queue: str | None = None) -> TaskHandle[Any]:  # noqa: ARG002
        """A handle on a task that was enqueued here. Raises TaskGone."""
        return MemoryHandle(self, self.entry(task_id))

    def queues(self) -> list[str]:
        """Queues that something was enqueued into."""
        return sorted({entry.task.queue for entry in self.entries.values()})

    def enqueue(self, task: Task, *, wait: Duration = 0, **unknown: Never) -> TaskHandle[Any]:  # noqa: ARG002
        """Takes one task in. The same id again leaves the first task as it was."""
        check_options(unknown, ("task", "wait"), "option of enqueue()")
        (task,) = self.outgoing([task])
        known = self.entries.get(task.id)
        return MemoryHandle(self, self.take(task) if known is None else known, is_new=known is None)

    def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[TaskHandle[Any]]:  # noqa: ARG002
        """Takes tasks in, one after the other."""
        return [self.enqueue(task) for task in sent]

    def outgoing(self, tasks: list[Task]) -> list[Task]:
        """The tasks as the middleware leaves them. Raises what it raises."""
        return tasks if self._middleware is None else through(tasks, self._middleware)

    def entry(self, task_id: str) -> MemoryTask:
        """The record of a task. Raises TaskGone."""
        if task_id not in self.entries:
            raise gone(task_id)
        return self.entries[task_id]

    def take(self, task: Task) -> MemoryTask:
        """Takes a new task in. Raises PayloadTooLarge."""
        check_size(task.payload, self.settings.payload_limit)
        state = TaskState.SCHEDULED if task.delay_ms or task.at_ms is not None else TaskState.WAITING
        entry = self.entries[task.id] = MemoryTask(task=task, state=state)
        return entry

    async def take_async(self, task: Task) -> MemoryTask:
        """The same, called by a coroutine."""
        return self.take(task)


class AsyncMemoryClient(AsyncClient):
    """The asyncio twin of a MemoryClient, for any event loop."""

    def __init__(self, of: MemoryClient) -> None:
        super().__init__(of.settings.url, of.settings.prefix, middleware=of.settings.middleware)
        self._of = of

    async def close(self) -> None:
        """Nothing to end: it may be used on."""

    def task(self, task_id: str, *, queue: str | None = None) -> AsyncTaskHandle[Any]:  # noqa: ARG002
        """A handle on a task that was enqueued here. Raises TaskGone."""
        return AsyncMemoryHandle(self, self._of.entry(task_id))

    async def queues(self) -> list[str]:
        """Queues that something was enqueued into."""
        return self._of.queues()

    async def enqueue(self, task: Task, *, wait: Duration = 0, **unknown: Never) -> AsyncTaskHandle[Any]:  # noqa: ARG002
        """Takes one task in. The same id again leaves the first task as it was."""
        check_options(unknown, ("task", "wait"), "option of enqueue()")
        (task,) = self._of.outgoing([task])
        known = self._of.entries.get(task.id)
        entry = await self._of.take_async(task) if known is None else known
        return AsyncMemoryHandle(self, entry, is_new=known is None)

    async def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[AsyncTaskHandle[Any]]:  # noqa: ARG002
        """Takes tasks in, one after the other."""
        return [await self.enqueue(task) for task in sent]
