"""Handles on one enqueued task: they read it, wait for it, change its fate."""

from datetime import datetime
from typing import Generic, TypeVar

from jobrunner.broker.aio import AsyncBroker
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client import task_steps
from jobrunner.client.steps import run_steps, run_steps_async
from jobrunner.settings import Duration
from jobrunner.task import TaskRecord, TaskState

R = TypeVar("R")


class TaskHandle(Generic[R]):
    """One task on the server. Every property asks the server, so it is never out of date.

    Reading a task that is no longer kept raises TaskGone. `durability` says how safe the task was when the enqueue that
    made this handle returned: "none", "fsync" or "replicated" (see docs/durability.md).
    """

    def __init__(
        self, broker: Broker, keys: Keys, task_id: str, queue: str | None = None, *, durability: str = "none"
    ) -> None:
        self.id = task_id
        self.durability = durability
        self._broker = broker
        self._place = task_steps.Place(keys, task_id, queue)

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def record(self) -> TaskRecord:
        """The whole task as it stands. Raises TaskGone."""
        return run_steps(self._broker, task_steps.read(self._place))

    def refresh(self) -> "TaskHandle[R]":
        """Makes sure the task is still kept, and returns the handle. Raises TaskGone."""
        self.record()
        return self

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
        return run_steps(self._broker, task_steps.find(self._place)) is not None

    def result(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the task and returns what its job returned, as plain JSON data.

        Raises TaskFailed when it is dead, TaskCancelled, TaskGone when it is no longer kept (see `keep`), and
        TaskTimeout after `timeout` (None: waits without limit).
        """
        return run_steps(self._broker, task_steps.wait_for_result(self._place, timeout))  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancels the task; one that runs is asked to stop. Returns False when it is finished already.

        Raises TaskGone when it is no longer kept.
        """
        return run_steps(self._broker, task_steps.cancel(self._place))

    def requeue(self) -> bool:
        """Puts a dead task back into its queue, with its counts at zero. Returns False when it is not dead."""
        return run_steps(self._broker, task_steps.requeue(self._place))


class AsyncTaskHandle(Generic[R]):
    """One task on the server, for asyncio. What are properties of TaskHandle are fields of the awaited `record()`."""

    def __init__(
        self, broker: AsyncBroker, keys: Keys, task_id: str, queue: str | None = None, *, durability: str = "none"
    ) -> None:
        self.id = task_id
        self.durability = durability
        self._broker = broker
        self._place = task_steps.Place(keys, task_id, queue)

    def __repr__(self) -> str:
        return f"AsyncTaskHandle({self.id!r})"

    async def record(self) -> TaskRecord:
        """As TaskHandle.record."""
        return await run_steps_async(self._broker, task_steps.read(self._place))

    async def refresh(self) -> "AsyncTaskHandle[R]":
        """As TaskHandle.refresh."""
        await self.record()
        return self

    async def exists(self) -> bool:
        """As TaskHandle.exists."""
        return await run_steps_async(self._broker, task_steps.find(self._place)) is not None

    async def result(self, timeout: Duration | None = None) -> R:
        """As TaskHandle.result. Looks again after pauses that grow to half a second."""
        steps = task_steps.wait_for_result(self._place, timeout)
        return await run_steps_async(self._broker, steps)

    async def cancel(self) -> bool:
        """As TaskHandle.cancel."""
        return await run_steps_async(self._broker, task_steps.cancel(self._place))

    async def requeue(self) -> bool:
        """As TaskHandle.requeue."""
        return await run_steps_async(self._broker, task_steps.requeue(self._place))
