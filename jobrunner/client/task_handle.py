"""Handles on enqueued tasks: they read a task, wait for its result, cancel or requeue it."""

from datetime import datetime
from typing import TYPE_CHECKING, Generic, TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.client.operations import task as task_operations
from jobrunner.client.operations.operation import Operation, run_operation, run_operation_async
from jobrunner.errors import UsageError
from jobrunner.option_names import checks_methods, no_attribute
from jobrunner.settings import Duration
from jobrunner.task import TaskState

if TYPE_CHECKING:
    from jobrunner.broker.async_broker import AsyncBroker
    from jobrunner.outcome import SteeringOutcome
    from jobrunner.task_record import TaskRecord

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class _LastRead:
    """The fields of a task at the last read of its handle."""

    id: str
    _last: "TaskRecord | None"

    @property
    def state(self) -> TaskState:
        """The state of the task at the last read."""
        return self._last_read().state

    @property
    def attempts(self) -> int:
        """How often the task had been handed out at the last read: 1 during the first attempt."""
        return self._last_read().attempts

    @property
    def retry_count(self) -> int:
        """How often it had failed, or its lease had ended without a report, at the last read: 0 during the first
        attempt."""
        return self._last_read().retry_count

    @property
    def enqueue_time(self) -> datetime:
        """The time of the first enqueue by the server's clock; aware, UTC."""
        return self._last_read().enqueue_time

    @property
    def error(self) -> str:
        """The text of the last failure; empty when the task had not failed at the last read."""
        return self._last_read().error

    def _last_read(self) -> "TaskRecord":
        raise NotImplementedError

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "handle")


@checks_methods
class TaskHandle(_LastRead, Generic[R_co]):
    """One task on the server.

    `record()` reads the task. `state`, `attempts`, `retry_count`, `enqueue_time` and `error` are values of the last
    read, so several of them cost one round trip and are consistent; a program that waits for a change calls `record()`
    again. They read the task themselves when the handle has read nothing yet, and after `result`, `cancel`, `requeue`
    and `run_now`, which may have changed it. Reading a task that is no longer kept raises TaskGone.

    `durability` is the durability of the task when the enqueue that made this handle returned: "none", "fsync" or
    "replicated" (see docs/durability.md). `is_new` says whether that enqueue added the task: False when a task with its
    id, or for a unique job an equal task, existed already, in whatever state, also dead or finished; None when that is
    unknown, as for a handle from `client.task` or a task that this process buffers until the server is back.
    """

    def __init__(
        self,
        broker: Broker,
        place: task_operations.TaskRef,
        *,
        durability: str = "none",
        is_new: bool | None = None,
    ) -> None:
        self.id = place.id
        self.durability = durability
        self.is_new = is_new
        self._broker = broker
        self._place = place
        self._last = None

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def record(self) -> "TaskRecord":
        """Reads the whole task, in one round trip. Raises TaskGone.

        A record has `id`, `type` (the name of the job), `queue`, `state`, `when` (due time, end of the lease, time of
        death or finish, by state), `enqueue_time`, `attempts`, `retry_count`, `priority`, `error`, `failures` (the last
        ten), `progress`, and as bytes of JSON `payload` and `result`.
        """
        self._last = None
        self._last = run_operation(self._broker, task_operations.read_whole(self._place))
        return self._last

    def exists(self) -> bool:
        """Whether the server still keeps the task."""
        return run_operation(self._broker, task_operations.find(self._place)) is not None

    def result(self: "TaskHandle[R | SteeringOutcome]", timeout: Duration | None = None) -> R:
        """Waits for the end of the task and returns the result of its job, as plain JSON data.

        Raises TaskFailed when it is dead, TaskCancelled, TaskGone when it is no longer kept (see `result_ttl`), and
        TaskTimeout after `timeout` (None: waits without limit).
        """
        return self._change(task_operations.wait_for_result(self._place, timeout))  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancels the task; a running task is asked to stop. Returns False when it has already finished.

        When the task is no longer kept it also returns False; a handle from `client.task(id)` without a queue raises
        TaskGone, as it cannot tell the task from one that never existed.
        """
        return self._change(task_operations.cancel(self._place))

    def requeue(self) -> bool:
        """Puts a dead task back into its queue, with its counts at zero. Returns False when it is not dead.

        When the task is no longer kept it behaves as `cancel`.
        """
        return self._change(task_operations.requeue(self._place))

    def run_now(self) -> bool:
        """Makes a scheduled task due now, behind all waiting tasks; also a failed task that is scheduled for a retry.

        Returns False, and changes nothing, when the task is waiting, pending, dead or finished. Raises TaskGone when it
        is no longer kept.
        """
        return self._change(task_operations.run_now(self._place))

    def _last_read(self) -> "TaskRecord":
        if self._last is None:
            self._last = run_operation(self._broker, task_operations.read(self._place))
        return self._last

    def _change(self, steps: Operation[T]) -> T:
        self._last = None
        return run_operation(self._broker, steps)


@checks_methods
class AsyncTaskHandle(_LastRead, Generic[R_co]):
    """One task on the server, for asyncio: the members of TaskHandle, its methods awaited.

    A property cannot be awaited, so `state` and the other fields of the last read raise UsageError where a TaskHandle
    would read the task: before the first `record()`, and after a method that may have changed the task.
    """

    def __init__(
        self,
        broker: "AsyncBroker",
        place: task_operations.TaskRef,
        *,
        durability: str = "none",
        is_new: bool | None = None,
    ) -> None:
        self.id = place.id
        self.durability = durability
        self.is_new = is_new
        self._broker = broker
        self._place = place
        self._last = None

    def __repr__(self) -> str:
        return f"AsyncTaskHandle({self.id!r})"

    async def record(self) -> "TaskRecord":
        """As TaskHandle.record."""
        self._last = None
        self._last = await self._read()
        return self._last

    async def exists(self) -> bool:
        """As TaskHandle.exists."""
        return await run_operation_async(self._broker, task_operations.find(self._place)) is not None

    async def result(self: "AsyncTaskHandle[R | SteeringOutcome]", timeout: Duration | None = None) -> R:
        """As TaskHandle.result. Polls with pauses that grow to half a second."""
        return await self._change(task_operations.wait_for_result(self._place, timeout))

    async def cancel(self) -> bool:
        """As TaskHandle.cancel."""
        return await self._change(task_operations.cancel(self._place))

    async def requeue(self) -> bool:
        """As TaskHandle.requeue."""
        return await self._change(task_operations.requeue(self._place))

    async def run_now(self) -> bool:
        """As TaskHandle.run_now."""
        return await self._change(task_operations.run_now(self._place))

    def _last_read(self) -> "TaskRecord":
        if self._last is None:
            raise UsageError(f"task {self.id} is not read yet: await its record(), then ask for its state or error")
        return self._last

    async def _read(self) -> "TaskRecord":
        return await run_operation_async(self._broker, task_operations.read_whole(self._place))

    async def _change(self, steps: Operation[T]) -> T:
        self._last = None
        return await run_operation_async(self._broker, steps)
