"""The client for asyncio applications: the same calls through the asyncio driver."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Never, Self, Unpack

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.broker.broker import server_clock
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.broker.calls.server import add_redacted_names, confirmation
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.added_periodics import PeriodicCall, add, definition_of, remove
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.buffer import buffer_of, prepare, send_or_keep
from jobrunner.client.client import Client, broker_of
from jobrunner.client.encryption import client_encryption
from jobrunner.client.events import read_events_async
from jobrunner.client.operations.enqueue import Placed, QueueRef, batches, check_one_task, enqueueing
from jobrunner.client.operations.operation import run_operation_async
from jobrunner.client.operations.routing import NotedOutcome, Routes
from jobrunner.client.operations.task import TaskRef, check_place
from jobrunner.client.outgoing import BatchedCall, sending
from jobrunner.client.periodic_state import switch
from jobrunner.client.records import (
    PeriodicRecord,
    WorkerRecord,
    read_periodics,
    read_stats,
    read_workers,
    whole_queues,
)
from jobrunner.client.shared_redaction import SharedRedaction
from jobrunner.client.task_handle import AsyncTaskHandle
from jobrunner.due_ticks import CatchUp
from jobrunner.errors import JobrunnerError
from jobrunner.events import Event
from jobrunner.middleware import stack_of
from jobrunner.option_names import checks_options, no_attribute
from jobrunner.redaction import Redaction
from jobrunner.settings import ClientOptions, ClientSettings, Duration, as_arguments, client_settings
from jobrunner.task import Task

if TYPE_CHECKING:
    from jobrunner.client.operations.flow import FlowProgress


@checks_options
class AsyncClient:
    """The twin of Client for one event loop."""

    def __init__(
        self,
        url: str | None = None,
        prefix: str | None = None,
        *,
        now_ms: Callable[[], bytes] = server_clock,
        **options: Unpack[ClientOptions],
    ) -> None:
        self.settings = client_settings(url, prefix, **options)
        self._middleware = stack_of(self.settings.middleware)
        self._keys = Keys(self.settings.prefix)
        self._encryption = client_encryption(self.settings)
        self._endpoint = Endpoint(self.settings.url)
        self._broker = AsyncBroker(
            self._endpoint,
            retry_timeout_s=self.settings.retry_timeout,
            now_ms=now_ms,
            confirmation=confirmation(self.settings.durability, self.settings.durability_timeout),
            greeting=server_calls.check_format(self._keys),
        )
        self._buffer = buffer_of(self.settings, self._keys, self._encryption, self._endpoint, now_ms)
        self._owns_buffer = True
        self._routes = Routes(self._keys, self._endpoint)
        self._redaction = SharedRedaction(self.settings.redact)

    @classmethod
    def like(cls, settings: ClientSettings) -> "AsyncClient":
        """A client with the settings of another one."""
        return cls(**as_arguments(settings))

    def __repr__(self) -> str:
        return f"AsyncClient({str(self._endpoint)!r}, prefix={self.settings.prefix!r})"

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections; use after that raises ClientClosed."""
        if self._buffer is not None and self._owns_buffer:
            await asyncio.to_thread(self._buffer.close)
        await self._broker.close()
        if self._endpoint.embedded is not None:
            await asyncio.to_thread(self._endpoint.release)

    def queue(self, name: str) -> AsyncQueue:
        """The queue of that name. Raises InvalidName."""
        limits = self.settings.payload_limit, self.settings.result_limit
        ref = QueueRef(self._keys, self._encryption, name, *limits, routes=self._routes)
        return AsyncQueue(self._broker, ref, self._buffer, self._middleware)

    def task(self, task_id: str, *, queue: str | None = None) -> AsyncTaskHandle[Any]:
        """A handle on a task. An id of the user's own needs the name of its queue. Raises InvalidName."""
        check_place(task_id, queue)
        return AsyncTaskHandle(self._broker, TaskRef(self._keys, self._encryption, task_id, queue))

    async def flow_progress(self, flow_id: str) -> "FlowProgress":
        """As Client.flow_progress."""
        from jobrunner.client.operations.flow import progress  # programs without flows do not need it

        return await run_operation_async(self._broker, progress(flow_id, self._keys))

    async def queues(self) -> list[str]:
        """Full names of all queues ever used, sorted."""
        return await run_operation_async(self._broker, whole_queues(self._keys))

    def events(self, after: str | None = None, *, follow: bool = False) -> AsyncIterator[Event]:
        """As Client.events."""
        return read_events_async(self._broker, self._keys, after, follow=follow)

    async def workers(self) -> list[WorkerRecord]:
        """As Client.workers."""
        return await run_operation_async(self._broker, read_workers(self._keys))

    async def periodics(self) -> list[PeriodicRecord]:
        """As Client.periodics."""
        return await run_operation_async(self._broker, read_periodics(self._keys))

    async def enable_periodic(self, name: str) -> None:
        """As Client.enable_periodic."""
        await run_operation_async(self._broker, switch(self._keys, name, enabled=True))

    async def disable_periodic(self, name: str) -> None:
        """As Client.disable_periodic."""
        await run_operation_async(self._broker, switch(self._keys, name, enabled=False))

    @checks_options
    async def add_periodic(
        self,
        name: str,
        call: PeriodicCall,
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        catch_up: CatchUp = "last",
        overlap: str = "skip",
        jitter: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
    ) -> None:
        """As Client.add_periodic."""
        definition = definition_of(
            name, call, every=every, cron=cron, tz=tz, catch_up=catch_up, overlap=overlap, jitter=jitter,
            start=start, end=end, limit=limit,
        )  # fmt: skip
        await run_operation_async(self._broker, add(self._keys, self._encryption, definition))

    async def remove_periodic(self, name: str) -> None:
        """As Client.remove_periodic."""
        await run_operation_async(self._broker, remove(self._keys, name))

    async def stats(self) -> dict[str, QueueCounts]:
        """As Client.stats."""
        return await run_operation_async(self._broker, read_stats(self._keys))

    async def redaction(self) -> Redaction:
        """As Client.redaction."""
        return await run_operation_async(self._broker, self._redaction.now(self._keys))

    def hide(self, names: Iterable[str]) -> None:
        """As Client.hide."""
        self._redaction.add(names)

    async def redact(self, *names: str) -> None:
        """As Client.redact."""
        self._redaction.add(names)
        if names:
            await self._broker.run(add_redacted_names(self._keys, names))

    async def enqueue(
        self, task: Task, *more: Never, wait: Duration = 0, **unknown: Never
    ) -> AsyncTaskHandle[Any]:
        """As Client.enqueue."""
        if more or unknown:
            check_one_task(task, more, unknown, "AsyncClient.enqueue()")
        return (await self.enqueue_many([task], wait=wait))[0]

    async def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[AsyncTaskHandle[Any]]:
        """As Client.enqueue_many."""
        handles: list[AsyncTaskHandle[Any]] = []
        with BatchedCall() as call:
            for tasks_of_batch in batches(sent, self.settings.payload_limit, encryption=self._encryption):
                preparing = prepare(self._buffer, self._routes, tasks_of_batch, wait)
                left, registered = await run_operation_async(self._broker, preparing)
                with sending(tasks_of_batch, self._middleware) as outgoing:
                    found, durability = await self._write(outgoing, left, registered)
                handles += [
                    AsyncTaskHandle(
                        self._broker,
                        TaskRef(self._keys, self._encryption, task_id, task.queue),
                        durability=durability,
                        is_new=is_new,
                    )
                    for (task_id, is_new), task in zip(found, outgoing, strict=True)
                ]
                call.added(outgoing)
        return handles

    async def _write(
        self, tasks: Sequence[Task], wait: Duration, registered: bool | JobrunnerError
    ) -> tuple[Sequence[Placed | tuple[str, None]], str]:
        """As Client._write."""
        limit, routes, is_new = self.settings.payload_limit, self._routes, registered is True
        send = enqueueing(self._keys, self._encryption, tasks, limit, wait, routes, just_registered=is_new)
        with NotedOutcome(tasks, routes):
            found = await run_operation_async(self._broker, send_or_keep(self._buffer, tasks, send, registered))
        if found is None:
            return [(task.id, None) for task in tasks], "buffered"
        return found, self.settings.durability


def client_beside(client: Client) -> AsyncClient:
    """Makes a client for an event loop, with the settings of `client`."""
    made = AsyncClient.like(replace(client.settings, buffer_tasks=0))
    made.settings = client.settings
    made._owns_buffer = False  # noqa: SLF001 - here and below: its own module
    return made


def go_by(made: AsyncClient, client: Client) -> None:
    """Makes a client of an event loop use the clock and the buffer of `client`. With a buffer per loop, tasks would
    overtake each other, and be lost with their loop while the process lives on."""
    made._broker.now_ms = broker_of(client).now_ms  # noqa: SLF001
    if not made._owns_buffer:  # noqa: SLF001
        made._buffer = client._buffer  # noqa: SLF001
