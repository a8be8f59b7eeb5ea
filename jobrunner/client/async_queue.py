"""Queues as queues, for asyncio: Queue with every method awaited. The operations are those of Queue."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

import msgspec

from jobrunner.broker.async_broker import AsyncBroker
from jobrunner.client.buffer import Buffer, prepare, send_or_keep
from jobrunner.client.item import ItemKeywords, item_of
from jobrunner.client.item_record import ItemRecord, Popped
from jobrunner.client.lease import AsyncLease
from jobrunner.client.operations import partitions, shard_leases, whole_queue
from jobrunner.client.operations import queue as queue_operations
from jobrunner.client.operations.enqueue import QueueRef
from jobrunner.client.operations.operation import Operation, run_operation_async
from jobrunner.client.operations.queue import OnClash, Progress
from jobrunner.client.operations.routing import NotedOutcome
from jobrunner.client.outgoing import BatchedCall, sending
from jobrunner.client.settings_hash import SettingOrigin
from jobrunner.errors import JobrunnerError
from jobrunner.middleware import MiddlewareStack
from jobrunner.option_names import checks_methods, no_attribute
from jobrunner.queue_settings import QueueSettings, SettingKeywords
from jobrunner.settings import Duration
from jobrunner.task import Task

T = TypeVar("T")


@checks_methods
class AsyncQueue:
    """One queue by name, for asyncio: the methods of Queue with the same parameters, awaited."""

    def __new__(cls, broker: object = None, *_: object, **__: object) -> Self:
        """Refuses the arguments of other systems' queues: a name, and a connection."""
        if broker is None or isinstance(broker, str):
            raise queue_operations.not_made("AsyncQueue", "AsyncClient", broker)
        return super().__new__(cls)

    def __init__(
        self,
        broker: AsyncBroker,
        ref: QueueRef,
        buffer: Buffer | None = None,
        middleware: MiddlewareStack | None = None,
    ) -> None:
        self.name = ref.name
        self._broker = broker
        self._keys = ref.keys
        self._buffer = buffer
        self._middleware = middleware
        self._ref = ref

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r})"

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "queue")

    async def push(
        self, payload: Any, *, wait: Duration = 0, on_clash: OnClash = "existing", **options: Unpack[ItemKeywords]
    ) -> str:
        """As Queue.push."""
        return (await self.push_many([item_of(payload, options)], wait=wait, on_clash=on_clash))[0]

    async def push_many(
        self, payloads: Iterable[Any], *, wait: Duration = 0, on_clash: OnClash = "existing"
    ) -> list[str]:
        """As Queue.push_many."""
        return await self._enqueue(queue_operations.tasks_of(self._ref, payloads), wait, on_clash)

    async def push_all(
        self,
        payloads: Iterable[Any],
        *,
        wait: Duration = 0,
        on_clash: OnClash = "existing",
        progress: Progress | None = None,
    ) -> int:
        """As Queue.push_all, but it takes the next thousand only after the thousand before them are in."""
        queue_operations.waits_for_reply(on_clash)
        pushed = 0
        with BatchedCall() as call:
            for tasks in queue_operations.batches_of(self._ref, payloads):
                pushed += len(await self._enqueue(tasks, wait, on_clash))
                call.added(tasks)
                if progress is not None:
                    progress(pushed)
        return pushed

    async def _enqueue(self, made: Sequence[Task], wait: Duration, on_clash: OnClash) -> list[str]:
        buffer = None if queue_operations.waits_for_reply(on_clash) else self._buffer
        left, registered = await self._prepared(made, buffer, wait)
        with sending(made, self._middleware) as tasks, NotedOutcome(tasks, self._ref.routes):
            send = queue_operations.push_many(self._ref, tasks, left, on_clash, just_registered=registered is True)
            await self._run(send_or_keep(buffer, tasks, send, registered))
            return [task.id for task in tasks]

    async def _prepared(
        self, tasks: Sequence[Task], buffer: Buffer | None, wait: Duration
    ) -> tuple[Duration, bool | JobrunnerError]:
        """As Queue._prepared."""
        routes = self._ref.routes
        if routes is None or not (wait or (tasks and routes.are_needed(self.name))):
            return wait, False
        return await self._run(prepare(buffer, routes, tasks, wait))

    async def reserve(
        self,
        n: int = 1,
        *,
        keepalive: Duration | None = None,
        wait: Duration = 0,
        committing: Iterable[AsyncLease] = (),
    ) -> list[AsyncLease]:
        """As Queue.reserve. A cancelled call first puts items that the server had handed out back to their places."""
        taken = await self._run(shard_leases.reserve(self._ref, n, keepalive, wait, committing))
        return [AsyncLease(self._broker, self._ref.shard(attempt.queue), attempt) for attempt in taken]

    async def commit_many(self, leases: Iterable[AsyncLease], results: Iterable[Any] | None = None) -> list[bool]:
        """As Queue.commit_many."""
        return await self._run(shard_leases.commit_many(self._ref, leases, results))

    async def rollback_many(
        self, leases: Iterable[AsyncLease], delay: Duration | None = None, error: str = ""
    ) -> list[bool]:
        """As Queue.rollback_many."""
        return await self._run(shard_leases.rollback_many(self._ref, leases, delay, error))

    async def release_many(self, leases: Iterable[AsyncLease]) -> list[bool]:
        """As Queue.release_many."""
        return await self._run(shard_leases.release_many(self._ref, leases))

    async def extend_many(self, leases: Iterable[AsyncLease]) -> list[bool]:
        """As Queue.extend_many."""
        return await self._run(shard_leases.extend_many(self._ref, leases))

    async def move_many(
        self,
        leases: Iterable[AsyncLease],
        queue: str,
        *,
        payloads: Iterable[Any] | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration = 0,
        priority: int | None = None,
        max_hops: int = 0,
    ) -> list[bool]:
        """As Queue.move_many."""
        steps = shard_leases.move_many(self._ref, leases, queue, payloads, headers, delay, priority, max_hops)
        return await self._run(steps)

    async def pop(self, n: int = 1) -> list[Popped]:
        """As Queue.pop. Cancelling it may lose an item that is already on its way."""
        return await self._run(shard_leases.pop(self._ref, n))

    async def delete(self, task_id: str | msgspec.UnsetType = msgspec.UNSET, *, force: bool = False) -> bool:
        """As Queue.delete."""
        if isinstance(task_id, msgspec.UnsetType):
            return await self._run(whole_queue.delete(self._ref, force=force))
        return await self._run(whole_queue.delete_task(self._ref, task_id, force=force))

    async def run_now(self, task_id: str) -> bool:
        """As Queue.run_now."""
        return await self._run(whole_queue.run_now(self._ref, task_id))

    async def counts(self) -> dict[str, int]:
        """As Queue.counts."""
        return await self._run(whole_queue.counts(self._ref))

    async def totals(self) -> dict[str, int]:
        """As Queue.totals."""
        return await self._run(whole_queue.totals(self._ref))

    async def pause(self, for_: Duration | None = None) -> None:
        """As Queue.pause."""
        await self._run(whole_queue.pause(self._ref, for_))

    async def resume(self) -> None:
        """As Queue.resume."""
        await self._run(whole_queue.resume(self._ref))

    async def is_paused(self) -> bool:
        """As Queue.is_paused."""
        return await self._run(queue_operations.is_paused(self._ref))

    async def configure(self, **options: Unpack[SettingKeywords]) -> None:
        """As Queue.configure."""
        await self._run(partitions.configure(self._ref, options))

    async def settings(self) -> QueueSettings:
        """As Queue.settings."""
        return await self._run(partitions.settings_of(self._ref))

    async def origins(self) -> dict[str, SettingOrigin]:
        """As Queue.origins."""
        return await self._run(queue_operations.origins(self._ref))

    async def ids(self, state: str, *, limit: int = 100, start: int = 0) -> list[str]:
        """As Queue.ids."""
        return await self._run(whole_queue.ids(self._ref, state, limit, start))

    async def tasks(self, state: str = "dead", *, limit: int = 100, after: str | None = None) -> list[ItemRecord]:
        """As Queue.tasks."""
        return await self._run(whole_queue.list_tasks(self._ref, state, limit, after))

    async def requeue_dead(
        self, ids: Iterable[str] | None = None, *, rate: float | None = None, payload: Any = msgspec.UNSET
    ) -> int:
        """As Queue.requeue_dead."""
        return await self._run(whole_queue.requeue_dead(self._ref, ids, rate, payload))

    async def history(self, limit: int = 100) -> list[ItemRecord]:
        """As Queue.history."""
        return await self._run(whole_queue.history(self._ref, limit))

    async def replay(self, task_id: str) -> str:
        """As Queue.replay."""
        return await self._run(whole_queue.replay(self._ref, task_id))

    async def purge(self, state: str, *, progress: Progress | None = None) -> int:
        """As Queue.purge."""
        return await self._run(whole_queue.purge(self._ref, state, progress))

    async def _run(self, steps: Operation[T]) -> T:
        return await run_operation_async(self._broker, steps)
