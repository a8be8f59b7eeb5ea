"""The handle on a flow that was sent, and its twin for asyncio."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from jobrunner.client.client import Client, broker_of, encryption_of, keys_of, middleware_of
from jobrunner.client.operations import flow as operations
from jobrunner.client.operations.flow import Flow, FlowProgress
from jobrunner.client.operations.operation import run_operation, run_operation_async
from jobrunner.client.operations.task import TaskRef
from jobrunner.client.outgoing import sending
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.errors import JobrunnerError, ServerError
from jobrunner.option_names import checks_methods
from jobrunner.settings import Duration

if TYPE_CHECKING:
    from jobrunner.client.async_client import AsyncClient


@checks_methods
class FlowHandle:
    """A flow that was sent. `tasks` are handles on the tasks that could begin at once."""

    def __init__(self, client: Client, flow: Flow) -> None:
        self.id = flow.id
        self._broker = broker_of(client)
        self._keys = keys_of(client)
        self._encryption = encryption_of(client)
        self.tasks = [
            TaskHandle[Any](
                self._broker,
                TaskRef(self._keys, self._encryption, task.id, task.queue),
                durability=client.settings.durability,
            )
            for task in flow.heads
        ]
        self._flow = flow

    def __repr__(self) -> str:
        return f"FlowHandle({self.id!r})"

    def progress(self) -> FlowProgress:
        """How the flow's tasks ended so far. Raises TaskGone when the flow is forgotten: a `ttl` after its last task
        ended."""
        return run_operation(self._broker, operations.progress(self.id, self._keys))

    def result(self, timeout: Duration | None = None) -> Any:
        """Waits for the result of the last step, for a group for the list of results, and returns it.

        Raises TaskFailed or TaskCancelled when one of these steps died, was cancelled or cannot begin any more: a step
        after a group cannot begin when a task of the group died or was cancelled and all its tasks have ended. Raises
        TaskTimeout, TaskGone.
        """
        return run_operation(
            self._broker, operations.wait_for_result(self._flow, self._keys, self._encryption, timeout)
        )

    def cancel(self) -> bool:
        """Starts no further step and cancels those that started; a running step is asked to stop.

        Dead steps stay dead, with their errors. Callbacks stay: `on_complete` still runs. Returns False when no step
        was left to stop.
        """
        return run_operation(self._broker, operations.cancel(self._flow, self._keys))


@checks_methods
class AsyncFlowHandle:
    """The twin of FlowHandle: `progress`, `result` and `cancel` are awaited."""

    def __init__(self, client: "AsyncClient", flow: Flow) -> None:
        self.id = flow.id
        self._broker = broker_of(client)
        self._keys = keys_of(client)
        self._encryption = encryption_of(client)
        self.tasks = [
            AsyncTaskHandle[Any](
                self._broker,
                TaskRef(self._keys, self._encryption, task.id, task.queue),
                durability=client.settings.durability,
            )
            for task in flow.heads
        ]
        self._flow = flow

    def __repr__(self) -> str:
        return f"AsyncFlowHandle({self.id!r})"

    async def progress(self) -> FlowProgress:
        """As FlowHandle.progress."""
        return await run_operation_async(self._broker, operations.progress(self.id, self._keys))

    async def result(self, timeout: Duration | None = None) -> Any:
        """As FlowHandle.result."""
        return await run_operation_async(
            self._broker, operations.wait_for_result(self._flow, self._keys, self._encryption, timeout)
        )

    async def cancel(self) -> bool:
        """As FlowHandle.cancel."""
        return await run_operation_async(self._broker, operations.cancel(self._flow, self._keys))


def send(client: Client, flow: Flow) -> FlowHandle:
    """Sends a flow. Raises PayloadTooLarge before anything is sent; QueueFull, PayloadStoreUnavailable and
    ServerRefused, after which no step of it begins."""
    take = getattr(client, "take_flow", None)  # a method of a client without a server (jobrunner.testing)
    if take is not None:
        return take(flow)  # type: ignore[no-any-return]
    handle = FlowHandle(client, flow)
    with sending(flow.prepared, middleware_of(client)) as tasks:
        traced = flow.with_tasks(tasks)
        steps = operations.send(traced, keys_of(client), encryption_of(client), client.settings.payload_limit)
        run_operation(broker_of(client), steps)
    return handle


async def send_async(client: "AsyncClient", flow: Flow) -> AsyncFlowHandle:
    """`send` for asyncio. When it is cancelled midway, it takes back the tasks sent so far before it ends."""
    take = getattr(client, "take_flow", None)
    if take is not None:
        return await take(flow)  # type: ignore[no-any-return]
    handle = AsyncFlowHandle(client, flow)
    with sending(flow.prepared, middleware_of(client)) as tasks:
        traced = flow.with_tasks(tasks)
        await _send_or_take_back(client, traced)
    return handle


async def _send_or_take_back(client: "AsyncClient", flow: Flow) -> None:
    import asyncio  # a program with threads does not need it

    broker, keys, state = broker_of(client), keys_of(client), operations.Sending()
    steps = operations.send(flow, keys, encryption_of(client), client.settings.payload_limit, state)
    sent = asyncio.ensure_future(run_operation_async(broker, steps))

    async def taken_back() -> None:
        # The batch under way ends first: on an abandoned connection it could arrive after this.
        with suppress(JobrunnerError):
            await sent
        with suppress(ServerError):
            await run_operation_async(broker, operations.take_back(flow, keys))

    try:
        await asyncio.shield(sent)
    except asyncio.CancelledError:
        state.is_given_up = True
        if state.has_begun:
            await asyncio.shield(asyncio.ensure_future(taken_back()))  # a second cancellation does not wait for it
        else:
            sent.cancel()
            await asyncio.wait([sent])
        raise
