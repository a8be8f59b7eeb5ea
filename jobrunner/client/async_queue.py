"""Queues as queues, for asyncio: Queue with every method awaited. What the operations do stands in the steps."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from jobrunner.broker.aio import AsyncBroker
from jobrunner.broker.keys import Keys
from jobrunner.client import dead_steps, history_steps, lease_steps, queue_steps
from jobrunner.client.buffer import Buffer
from jobrunner.client.item import Item, Popped
from jobrunner.client.lease import AsyncLease
from jobrunner.client.line import Line
from jobrunner.client.steps import Steps, run_steps_async
from jobrunner.settings import Duration, QueueSettings
from jobrunner.task import TaskRecord
from jobrunner.tracepoint import sending

T = TypeVar("T")


class AsyncQueue:
    """One queue by name, for asyncio. Its properties are methods here: `await q.is_paused()`, `await q.settings()`."""

    def __init__(
        self, broker: AsyncBroker, keys: Keys, name: str, payload_limit: int, buffer: Buffer | None = None
    ) -> None:
        self.name = name
        self.broker = broker
        self.keys = keys.queue(name)
        self._buffer = buffer
        self._line = Line(keys, name, payload_limit)

    def __repr__(self) -> str:
        return f"AsyncQueue({self.name!r})"

    async def push(self, payload: Any, *, wait: Duration = 0, **options: Any) -> str:
        """As Queue.push."""
        return (await self.push_many([Item(payload, **options)], wait=wait))[0]

    async def push_many(self, payloads: Iterable[Any], *, wait: Duration = 0) -> list[str]:
        """As Queue.push_many."""
        with sending(queue_steps.tasks_of(self._line, payloads)) as tasks:
            if self._buffer is None:
                return await self._run(queue_steps.push_many(self._line, tasks, wait))
            await self._buffer.through_async(tasks, lambda: self._run(queue_steps.push_many(self._line, tasks, wait)))
            return [task.id for task in tasks]

    async def reserve(
        self,
        n: int = 1,
        *,
        keepalive: Duration | None = None,
        wait: Duration = 0,
        committing: Iterable[AsyncLease] = (),
    ) -> list[AsyncLease]:
        """As Queue.reserve. When it is cancelled, what the server had handed out goes back to its place first."""
        taken = await self._run(lease_steps.reserve(self._line, n, keepalive, wait, committing))
        return [AsyncLease(self.broker, self._line, attempt) for attempt in taken]

    async def reserve_many(
        self, n: int, *, keepalive: Duration | None = None, wait: Duration = 0, committing: Iterable[AsyncLease] = ()
    ) -> list[AsyncLease]:
        """As Queue.reserve_many."""
        return await self.reserve(n, keepalive=keepalive, wait=wait, committing=committing)

    async def commit_many(self, leases: Iterable[AsyncLease], results: Iterable[Any] | None = None) -> list[bool]:
        """As Queue.commit_many."""
        return await self._run(lease_steps.commit_many(self._line, leases, results))

    async def rollback_many(
        self, leases: Iterable[AsyncLease], delay: Duration | None = None, error: str = ""
    ) -> list[bool]:
        """As Queue.rollback_many."""
        return await self._run(lease_steps.rollback_many(self._line, leases, delay, error))

    async def release_many(self, leases: Iterable[AsyncLease]) -> list[bool]:
        """As Queue.release_many."""
        return await self._run(lease_steps.release_many(self._line, leases))

    async def extend_many(self, leases: Iterable[AsyncLease]) -> list[bool]:
        """As Queue.extend_many."""
        return await self._run(lease_steps.extend_many(self._line, leases))

    async def pop(self, n: int = 1) -> list[Popped]:
        """As Queue.pop: what is on its way when it is cancelled may be lost."""
        return await self._run(queue_steps.pop(self._line, n))

    async def delete(self, task_id: str) -> bool:
        """As Queue.delete."""
        return await self._run(queue_steps.delete(self._line, task_id))

    async def counts(self) -> dict[str, int]:
        """As Queue.counts."""
        return await self._run(queue_steps.counts(self._line))

    async def totals(self) -> dict[str, int]:
        """As Queue.totals."""
        return await self._run(queue_steps.totals(self._line))

    async def pause(self, for_: Duration | None = None) -> None:
        """As Queue.pause."""
        await self._run(queue_steps.pause(self._line, for_))

    async def resume(self) -> None:
        """As Queue.resume."""
        await self._run(queue_steps.resume(self._line))

    async def is_paused(self) -> bool:
        """As Queue.paused."""
        return await self._run(queue_steps.is_paused(self._line))

    async def configure(self, **options: Any) -> None:
        """As Queue.configure."""
        await self._run(queue_steps.configure(self._line, options))

    async def settings(self) -> QueueSettings:
        """As Queue.settings."""
        return await self._run(queue_steps.settings(self._line))

    async def ids(self, state: str, *, limit: int = 100, start: int = 0) -> list[str]:
        """As Queue.ids."""
        return await self._run(queue_steps.ids(self._line, state, limit, start))

    async def tasks(self, state: str = "dead", *, limit: int = 100, after: str | None = None) -> list[TaskRecord]:
        """As Queue.tasks."""
        return await self._run(queue_steps.list_tasks(self._line, state, limit, after))

    async def requeue_dead(
        self, ids: Iterable[str] | None = None, *, rate: float | None = None, payload: Any = msgspec.UNSET
    ) -> int:
        """As Queue.requeue_dead."""
        return await self._run(dead_steps.requeue_dead(self._line, ids, rate, payload))

    async def history(self, limit: int = 100) -> list[TaskRecord]:
        """As Queue.history."""
        return await self._run(history_steps.history(self._line, limit))

    async def replay(self, task_id: str) -> str:
        """As Queue.replay."""
        return await self._run(history_steps.replay(self._line, task_id))

    async def purge(self, state: str, *, progress: Callable[[int], None] | None = None) -> int:
        """As Queue.purge."""
        return await self._run(queue_steps.purge(self._line, state, progress))

    async def _run(self, steps: Steps[T]) -> T:
        return await run_steps_async(self.broker, steps)
