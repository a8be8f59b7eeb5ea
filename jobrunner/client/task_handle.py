"""Handles on one enqueued task: they read it, wait for it, change its fate."""

from datetime import datetime
from typing import Generic, TypeVar

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.operations import task as task_operations
from jobrunner.client.operations.operation import run_operation, run_operation_async
from jobrunner.option_names import checks_methods
from jobrunner.settings import Duration
from jobrunner.task import TaskRecord, TaskState

R = TypeVar("R")


@checks_methods
class TaskHandle(Generic[R]):
    """One task on the server. Every property asks the server, so it is never out of date.

    Reading a task that is no longer kept raises TaskGone. `durability` says how safe the task was when the enqueue that
    made this handle returned: "none", "fsync" or "replicated" (see docs/durability.md). `is_new` says whether that
    enqueue added the task: False when one with its id, or like it if the job is unique, was there already, in whatever
    state, also dead or finished; None when that is not known, as of a handle from `client.task` or of a task that waits
    in this process for the server.
    """

    def __init__(
        self,
        broker: Broker,
        keys: Keys,
        task_id: str,
        queue: str | None = None,
        *,
        durability: str = "none",
        is_new: bool | None = None,
    ) -> None:
        self.id = task_id
        self.durability = durability
        self.is_new = is_new
        self._broker = broker
        self._place = task_operations.TaskRef(keys, task_id, queue)

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def record(self) -> TaskRecord:
        """The whole task as it stands. Raises TaskGone."""
        return run_operation(self._broker, task_operations.read(self._place))

    @property
    def state(self) -> TaskState:
        """Where the task is in its life."""
        return self.record().state

    @property
    def attempts(self) -> int:
        """How often it was handed out: 1 during the first try."""
        return self.record().attempts

    @property
    def retry_count(self) -> int:
        """How often it failed or its lease ended without a report: 0 during the first try."""
        return self.record().retry_count

    @property
    def enqueue_time(self) -> datetime:
        """When it was first enqueued, by the server's clock; aware, UTC."""
        return self.record().enqueue_time

    @property
    def error(self) -> str:
        """Text of the last failure; empty when it never failed."""
        return self.record().error

    @property
    def exists(self) -> bool:
        """Whether the server still keeps the task."""
        return run_operation(self._broker, task_operations.find(self._place)) is not None

    def result(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the task and returns what its job returned, as plain JSON data.

        Raises TaskFailed when it is dead, TaskCancelled, TaskGone when it is no longer kept (see `keep`), and
        TaskTimeout after `timeout` (None: waits without limit).
        """
        return run_operation(self._broker, task_operations.wait_for_result(self._place, timeout))  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancels the task; one that runs is asked to stop. Returns False when it is finished already.

        Raises TaskGone when it is no longer kept.
        """
        return run_operation(self._broker, task_operations.cancel(self._place))

    def requeue(self) -> bool:
        """Puts a dead task back into its queue, with its counts at zero. Returns False when it is not dead."""
        return run_operation(self._broker, task_operations.requeue(self._place))

    def run_now(self) -> bool:
        """Has a scheduled task wait from now on, behind all that wait: also a failed one that waits for its next try.

        Returns False, and changes nothing, when the task is waiting, pending, dead or finished. Raises TaskGone when it
        is no longer kept.
        """
        return run_operation(self._broker, task_operations.run_now(self._place))


@checks_methods
class AsyncTaskHandle(Generic[R]):
    """One task on the server, for asyncio. What are properties of TaskHandle are fields of the awaited `record()`."""

    def __init__(
        self,
        broker: AsyncBroker,
        keys: Keys,
        task_id: str,
        queue: str | None = None,
        *,
        durability: str = "none",
        is_new: bool | None = None,
    ) -> None:
        self.id = task_id
        self.durability = durability
        self.is_new = is_new
        self._broker = broker
        self._place = task_operations.TaskRef(keys, task_id, queue)

    def __repr__(self) -> str:
        return f"AsyncTaskHandle({self.id!r})"

    async def record(self) -> TaskRecord:
        """As TaskHandle.record."""
        return await run_operation_async(self._broker, task_operations.read(self._place))

    async def exists(self) -> bool:
        """As TaskHandle.exists."""
        return await run_operation_async(self._broker, task_operations.find(self._place)) is not None

    async def result(self, timeout: Duration | None = None) -> R:
        """As TaskHandle.result. Looks again after pauses that grow to half a second."""
        steps = task_operations.wait_for_result(self._place, timeout)
        return await run_operation_async(self._broker, steps)

    async def cancel(self) -> bool:
        """As TaskHandle.cancel."""
        return await run_operation_async(self._broker, task_operations.cancel(self._place))

    async def requeue(self) -> bool:
        """As TaskHandle.requeue."""
        return await run_operation_async(self._broker, task_operations.requeue(self._place))

    async def run_now(self) -> bool:
        """As TaskHandle.run_now."""
        return await run_operation_async(self._broker, task_operations.run_now(self._place))
