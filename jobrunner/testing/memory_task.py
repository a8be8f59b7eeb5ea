"""Tasks without a server: their states, the handles on them, and the broker that replaces a connection."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn, TypeAlias, cast

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.operations.task import TaskRef, gone, read_result
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.clock import from_ms, utc_now
from jobrunner.errors import ServerRefused, TaskTimeout, UsageError
from jobrunner.settings import Duration
from jobrunner.task import Task, TaskState
from jobrunner.task_record import TaskRecord

_LARGEST = 2**63 - 1


@dataclass(slots=True, kw_only=True)
class MemoryTask:
    """An enqueued task and its state."""

    task: Task
    state: TaskState = TaskState.WAITING
    when: datetime | None = None
    attempts: int = 0
    retry_count: int = 0
    error: str = ""
    result: bytes | None = None
    fields: dict[str, bytes] = field(default_factory=dict)
    """Fields of its record: `progress`, and `failures` in the form of a server."""
    is_kept: bool = True
    enqueue_time: datetime = field(default_factory=utc_now)
    start_by_ms: float | None = None
    """The time at which the task expires unless it has begun, in Unix ms; None: never."""
    cancel_requested: bool = False
    """Whether it was cancelled while it ran: no further attempt begins."""

    @property
    def waits(self) -> bool:
        """Whether it is waiting or scheduled."""
        return self.state in (TaskState.WAITING, TaskState.SCHEDULED)

    @property
    def expires_unbegun(self) -> bool:
        """Whether it is due only when it has expired."""
        return self.start_by_ms is not None and self.when is not None and self.when >= from_ms(self.start_by_ms)

    def wait(self, due_ms: float | None = None) -> None:
        """Makes the task scheduled until `due_ms`, Unix ms, or waiting."""
        self.state = TaskState.WAITING if due_ms is None else TaskState.SCHEDULED
        self.when = None if due_ms is None else from_ms(due_ms)

    def record(self) -> TaskRecord:
        """The present record of the task. Raises TaskGone."""
        task = self.task
        if not self.is_kept:
            raise gone(task.id)
        return TaskRecord(
            id=task.id, type=task.type, queue=task.queue, state=self.state, when=self.when,
            enqueue_time=self.enqueue_time, attempts=self.attempts, retry_count=self.retry_count,
            priority=1 if task.priority is None else task.priority,
            error=self.error, payload=task.payload, result=self.result, fields=self.fields,
        )  # fmt: skip

    def value(self) -> Any:
        """The result of the job. Raises as TaskHandle.result does; an unfinished task never finishes here."""
        record = self.record()
        if not record.state.is_final:
            raise TaskTimeout(f"task {record.id} ({record.type}) is {record.state}, and no worker runs it in this test")
        return read_result(record)

    def cancel(self) -> bool:
        """Cancels the task; a running one ends as its job does, and is not tried again. Returns False when it is
        finished."""
        if self.state in (TaskState.SUCCEEDED, TaskState.CANCELLED):
            return False
        if self.state is TaskState.PENDING:
            self.cancel_requested = True
        else:
            self.state, self.when = TaskState.CANCELLED, utc_now()
        return True

    def requeue(self) -> bool:
        """Makes a dead task waiting, with its counts at zero. Returns False when it is not dead."""
        if self.state is not TaskState.DEAD:
            return False
        self.attempts, self.retry_count, self.start_by_ms, self.cancel_requested = 0, 0, None, False
        self.wait()
        return True

    def run_now(self) -> bool:
        """Makes a scheduled task waiting. Returns False when it is not scheduled."""
        if self.record().state is not TaskState.SCHEDULED:
            return False
        self.wait()
        return True


Cancel: TypeAlias = Callable[[MemoryTask], bool]
"""Cancels a task by the rules of its client."""


class MemoryHandle(TaskHandle[Any]):
    """A handle on a task in memory."""

    def __init__(self, client: Client, entry: MemoryTask, cancel: Cancel, *, is_new: bool | None = None) -> None:
        super().__init__(
            broker_of(client), TaskRef(keys_of(client), None, entry.task.id, entry.task.queue), is_new=is_new
        )
        self._entry = entry
        self._cancel = cancel

    def exists(self) -> bool:
        return self._entry.is_kept

    def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        self._last = None
        return self._entry.value()

    def cancel(self) -> bool:
        self._last = None
        return self._cancel(self._entry)

    def requeue(self) -> bool:
        self._last = None
        return self._entry.requeue()

    def run_now(self) -> bool:
        self._last = None
        return self._entry.run_now()

    def record(self) -> TaskRecord:
        self._last = None
        return self._last_read()

    def _last_read(self) -> TaskRecord:
        if self._last is None:
            self._last = self._entry.record()
        return self._last


class AsyncMemoryHandle(AsyncTaskHandle[Any]):
    """An asyncio handle on a task in memory."""

    def __init__(self, twin: AsyncClient, entry: MemoryTask, cancel: Cancel, *, is_new: bool | None = None) -> None:
        super().__init__(broker_of(twin), TaskRef(keys_of(twin), None, entry.task.id, entry.task.queue), is_new=is_new)
        self._entry = entry
        self._cancel = cancel

    async def exists(self) -> bool:
        return self._entry.is_kept

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ARG002
        self._last = None
        return self._entry.value()

    async def cancel(self) -> bool:
        self._last = None
        return self._cancel(self._entry)

    async def requeue(self) -> bool:
        self._last = None
        return self._entry.requeue()

    async def run_now(self) -> bool:
        self._last = None
        return self._entry.run_now()

    async def _read(self) -> TaskRecord:
        return self._entry.record()


class MemoryBroker(Broker):
    """Keeps the metadata and the progress of jobs; refuses operations that need a server.

    `where` names the replacement of the server, for errors.
    """

    def __init__(self, endpoint: Endpoint, keys: Keys, where: str) -> None:
        super().__init__(endpoint)
        self._hashes: dict[bytes, dict[str, bytes]] = {}
        self._metadata = keys.job("")
        self.given: dict[bytes, tuple[bytes, bytes]] = {}
        """Results and outcomes that a flow passed to tasks, by the key of the task."""
        self.progress: dict[bytes, bytes] = {}
        """The last progress of running tasks, by the key of the task."""
        self._where = where

    def run(self, call: Call[Any]) -> Any:
        script = call.script
        if script is None:
            return call.read(self._command(*call.words))
        if script.name == "progress":
            tasks, _, task_id, _, progress = cast(tuple[bytes, str, str, str, bytes], call.words)
            self.progress[tasks + task_id.encode()] = progress
            return call.read(b"ok")
        return self._refuse(script.name)

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
        """Does nothing: the broker stays usable."""

    def _command(self, verb: Any, key: Any = b"", *words: Any) -> Any:
        if verb == "HMGET" and words[:1] == ("id",):
            return [b"", *self.given.get(key, (None, None)), None]
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
            try:
                total = int(fields.get(words[0], b"0")) + words[1]
            except ValueError:
                raise ServerRefused("hash value is not an integer") from None
            if abs(total) > _LARGEST:
                raise ServerRefused("increment or decrement would overflow")
            fields[words[0]] = b"%d" % total
            return total
        return self._refuse(str(verb))

    def _refuse(self, what: str) -> NoReturn:
        raise UsageError(f"{self._where} has no server for {what!r}; use the fixture jobrunner_client for this test")


class AsyncMemoryBroker(AsyncBroker):
    """The asyncio twin of a MemoryBroker, for any event loop."""

    def __init__(self, of: Broker) -> None:
        super().__init__(of.endpoint)
        self._of = of

    async def run(self, call: Call[Any]) -> Any:
        return self._of.run(call)

    async def run_many(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._of.run_many(calls)

    async def run_each(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._of.run_many(calls)

    async def write(self, calls: Sequence[Call[Any]]) -> list[Any]:
        return self._of.run_many(calls)

    async def open_blocking(self, key: bytes) -> Any:
        return self._of.open_blocking(key)
