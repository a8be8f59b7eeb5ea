"""The client for asyncio applications: the same calls through the asyncio driver."""

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, Self, TypeVar

from jobrunner.broker.aio import AsyncBroker
from jobrunner.broker.calls import queues, tasks
from jobrunner.broker.calls.server import confirmation
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, check_id, tag_of_id
from jobrunner.client.batch import Batch, batches
from jobrunner.client.handle import gone, read_result, timed_out
from jobrunner.client.relay import relay_async
from jobrunner.clock import monotonic
from jobrunner.errors import InvalidName
from jobrunner.retry import seconds
from jobrunner.settings import ClientSettings, Duration, client_settings
from jobrunner.task import Task, TaskRecord

R = TypeVar("R")
_FIRST_LOOK_S = 0.005
_LONGEST_PAUSE_S = 0.5


class AsyncTaskHandle(Generic[R]):
    """One task on the server, for asyncio: `record`, `result`, `cancel` and `requeue` are awaited."""

    def __init__(self, broker: AsyncBroker, keys: Keys, task_id: str, queue: str | None = None) -> None:
        self.id = task_id
        self._broker = broker
        self._keys = keys
        self._queue = queue

    def __repr__(self) -> str:
        return f"AsyncTaskHandle({self.id!r})"

    async def record(self) -> TaskRecord:
        """The whole task as it stands. Raises TaskGone."""
        return await self._read(awaited=False)

    async def result(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the task and returns what its job returned. Errors as in TaskHandle.result."""
        limit_s = None if timeout is None else seconds(timeout, option="timeout")
        ends = None if limit_s is None else monotonic() + limit_s
        pause = _FIRST_LOOK_S
        while True:
            record = await self._read(awaited=True)
            if record.state.is_final:
                return read_result(record)  # type: ignore[no-any-return]
            left = pause if ends is None else min(pause, ends - monotonic())
            if left <= 0:
                raise timed_out(self.id, limit_s, record)
            await asyncio.sleep(left)
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    async def cancel(self) -> bool:
        """Cancels the task; one that runs is asked to stop. Returns False when it is finished already."""
        keys = self._keys.queue((await self.record()).queue)
        word = await self._broker.run(tasks.cancel(keys, self.id, keep_ms=60_000))
        if word == "posted":
            await relay_async(self._broker, self._keys, tags=[keys.tag])
        return word != "gone"

    async def requeue(self) -> bool:
        """Puts a dead task back into its queue. Returns False when it is not dead."""
        keys = self._keys.queue((await self.record()).queue)
        return await self._broker.run(tasks.requeue(keys, [self.id])) == ["ok"]

    async def _read(self, *, awaited: bool) -> TaskRecord:
        record = await self._broker.run(tasks.show(self._keys, self.id, queue=self._queue, awaited=awaited))
        if record is None:
            raise gone(self.id)
        return record


class AsyncClient:
    """The twin of Client for one event loop."""

    def __init__(self, url: str | None = None, prefix: str | None = None, **options: Any) -> None:
        self.settings = client_settings(url, prefix, **options)
        self.keys = Keys(self.settings.prefix)
        self.endpoint = Endpoint(self.settings.url)
        self.broker = AsyncBroker(
            self.endpoint,
            patience_s=self.settings.patience,
            confirmation=confirmation(self.settings.durability, self.settings.durability_timeout),
        )

    @classmethod
    def like(cls, settings: ClientSettings) -> "AsyncClient":
        """A client with the settings of another one."""
        return cls(
            settings.url,
            settings.prefix,
            payload_limit=settings.payload_limit,
            patience=settings.patience,
            durability=settings.durability,
            durability_timeout=settings.durability_timeout,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connections; use after that raises ClientClosed."""
        await self.broker.close()
        await asyncio.to_thread(self.endpoint.release)

    def task(self, task_id: str, *, queue: str | None = None) -> AsyncTaskHandle[Any]:
        """A handle on a task. An id of the user's own needs the name of its queue. Raises InvalidName."""
        if queue is None and tag_of_id(check_id(task_id)) is None:
            raise InvalidName(f"task id {task_id!r} was not made by jobrunner; give its queue too: task(id, queue=…)")
        return AsyncTaskHandle(self.broker, self.keys, task_id, queue)

    async def queues(self) -> list[str]:
        """Full names of all queues ever used, sorted."""
        return await self.broker.run(queues.registered(self.keys))

    async def enqueue(self, task: Task) -> AsyncTaskHandle[Any]:
        """Sends one task. The same id again leaves the first task as it was."""
        return (await self.enqueue_many([task]))[0]

    async def enqueue_many(self, sent: Iterable[Task]) -> list[AsyncTaskHandle[Any]]:
        """Sends tasks in batches of up to 1 000 per queue, one round trip each; handles in the order given."""
        handles: list[AsyncTaskHandle[Any]] = []
        for tasks_of_batch in batches(sent):
            batch = Batch(self.keys, tasks_of_batch, self.settings.payload_limit)
            ids = batch.ids(await self.broker.write(batch.calls))
            handles += [
                AsyncTaskHandle(self.broker, self.keys, task_id, task.queue)
                for task_id, task in zip(ids, tasks_of_batch, strict=True)
            ]
        return handles
