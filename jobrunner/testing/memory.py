"""A client without a server: enqueued tasks stay in this process. `inline` runs them, `enqueued` records them."""

from collections.abc import Iterable, Iterator
from typing import Any, Never

import msgspec

from jobrunner.broker.calls.new_tasks import full, locked
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys, split_queue, tag_of_id
from jobrunner.client.async_client import AsyncClient
from jobrunner.client.async_queue import AsyncQueue
from jobrunner.client.client import Client, broker_of
from jobrunner.client.current import configured_client
from jobrunner.client.flow_handle import AsyncFlowHandle, FlowHandle
from jobrunner.client.operations.enqueue import QueueRef, batches, check_one_task
from jobrunner.client.operations.flow import Flow, FlowProgress
from jobrunner.client.operations.task import check_place, gone
from jobrunner.client.outgoing import through
from jobrunner.client.queue import Queue
from jobrunner.client.settings_hash import read_settings
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.clock import unix_ms
from jobrunner.errors import DuplicateTask, QueueFull
from jobrunner.jobs.declared_queues import declared
from jobrunner.middleware import stack_of
from jobrunner.queue_settings import QueueSettings
from jobrunner.retry import seconds
from jobrunner.settings import ClientSettings, Duration, client_settings
from jobrunner.task import Task, TaskState, check_size
from jobrunner.testing.flows import AsyncMemoryFlowHandle, Begun, MemoryFlow, MemoryFlowHandle, MemoryJoins, signals_of
from jobrunner.testing.memory_queue import AsyncMemoryQueue, KeptSettings, MemoryQueue
from jobrunner.testing.memory_task import AsyncMemoryBroker, AsyncMemoryHandle, MemoryBroker, MemoryHandle, MemoryTask

_PREFIX = "testing"


class MemoryClient(Client):
    """A client that keeps tasks in memory, by `take`. Other operations need a server and are refused."""

    def __init__(self, where: str) -> None:
        settings = client_settings() if (configured := configured_client()) is None else configured.settings
        self.settings = ClientSettings(
            url="unix:///no-server",
            prefix=_PREFIX,
            payload_limit=settings.payload_limit,
            result_limit=settings.result_limit,
            middleware=settings.middleware,
        )
        self._middleware = stack_of(self.settings.middleware)
        self._keys = Keys(_PREFIX)
        self._encryption = None
        self._endpoint = Endpoint(self.settings.url)
        self._buffer = None
        self._broker = self._memory = MemoryBroker(self._endpoint, self._keys, where)
        self.joins = MemoryJoins()
        self._locks: dict[tuple[str, str], tuple[bytes, float]] = {}
        self.entries: dict[bytes, MemoryTask] = {}
        """Tasks by the keys that they would have on a server: queues of different pipelines may have the same id."""
        self._kept: dict[str, KeptSettings] = {}
        self.twin = AsyncMemoryClient(self)
        self._where = where

    def __repr__(self) -> str:
        return f"<the client of {self._where}>"

    def close(self) -> None:
        """Does nothing; the client stays usable."""

    def task(self, task_id: str, *, queue: str | None = None) -> TaskHandle[Any]:
        """A handle on a task that was enqueued here. Raises TaskGone, and as Client.task."""
        return MemoryHandle(self, self.entry(task_id, queue), self.cancel)

    def queue(self, name: str) -> Queue:
        """A queue, for its settings. Raises InvalidName."""
        ref = QueueRef(self._keys, None, name, self.settings.payload_limit)
        return MemoryQueue(self, ref, self.kept_of(name))

    def kept_of(self, name: str) -> KeptSettings:
        """The settings configured for a queue."""
        return self._kept.setdefault(name, KeptSettings())

    def usual(self, queue: str) -> QueueSettings:
        """The queue settings for values that a job does not set: as this test configured them, else as declared."""
        known = declared(queue)
        stored = {} if known is None else {name: str(value).encode() for name, value in known.stored.items() if value}
        return read_settings(stored | self.kept_of(queue).fields)

    def flow_progress(self, flow_id: str) -> FlowProgress:
        """The progress of a flow that was sent here. Raises TaskGone."""
        return self.joins.progress(flow_id)

    def queues(self) -> list[str]:
        """Names of queues with tasks."""
        return sorted({entry.task.queue for entry in list(self.entries.values())})

    def enqueue(self, task: Task, *more: Never, wait: Duration = 0, **unknown: Never) -> TaskHandle[Any]:
        """Enqueues a task. A second task with the same id is ignored while the first task is kept."""
        if more or unknown:
            check_one_task(task, more, unknown, "enqueue()")
        seconds(wait, option="wait")
        (task,) = self.outgoing([task])
        known = self.known(task)
        entry = self.take(task) if known is None else known
        return MemoryHandle(self, entry, self.cancel, is_new=known is None)

    def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[TaskHandle[Any]]:
        """Enqueues tasks one after the other, in batches; each batch is checked as a whole before its first task."""
        return [
            MemoryHandle(self, self.take(task) if known is None else known, self.cancel, is_new=known is None)
            for task, known in self.placed(sent, wait)
        ]

    def placed(self, sent: Iterable[Task], wait: Duration) -> Iterator[tuple[Task, MemoryTask | None]]:
        """Yields the tasks of an `enqueue_many` after the middleware, each with the existing task that replaces it (see
        `known`), in the batches of a client with a server. Raises PayloadTooLarge, and QueueFull for tasks without
        uniqueness, before the first task of a batch; QueueFull and DuplicateTask for unique tasks after its last."""
        seconds(wait, option="wait")
        for batch in batches(sent, self.settings.payload_limit):
            tasks, no_room, clash = self.outgoing(batch), None, None
            for task in tasks:
                check_size(task.payload, self.settings.payload_limit)
            self.check_capacity([task for task in tasks if task.lock is None])  # unique tasks are checked one by one
            for task in tasks:
                try:
                    known = self.known(task)
                    if known is None and task.lock is not None:
                        self.check_capacity([task])
                except QueueFull as error:
                    no_room = no_room or error
                except DuplicateTask as error:
                    clash = clash or error
                else:
                    yield task, known
            if (problem := no_room or clash) is not None:
                raise problem

    def check_capacity(self, tasks: Iterable[Task]) -> None:
        """Raises QueueFull when a queue has no capacity for all its new tasks among these."""
        new: dict[str, set[str]] = {}
        for task in tasks if self._kept else ():
            known = self.entry_of(task)
            if known is None or not known.is_kept:
                new.setdefault(task.queue, set()).add(task.id)
        for queue, ids in new.items():
            if (most := self.kept_of(queue).read().max_size) is None:
                continue
            held = sum(entry.task.queue == queue and entry.waits for entry in list(self.entries.values()))
            if held + len(ids) > most:
                raise full(queue, len(ids), most)

    def outgoing(self, tasks: list[Task]) -> list[Task]:
        """Returns the tasks after the middleware, whose errors pass through."""
        return tasks if self._middleware is None else through(tasks, self._middleware)

    def known(self, task: Task) -> MemoryTask | None:
        """Returns the existing task that replaces this task: the task with the same id, else the holder of the lock
        of a unique task. Takes the lock when it is free. Raises DuplicateTask."""
        known = self.entry_of(task)
        if known is not None and known.is_kept:
            return known
        if task.lock is None:
            return None
        place = (split_queue(task.queue)[0], task.lock.digest)
        holder_key, ends_ms = self._locks.get(place, (b"", 0.0))
        holder = None if holder_key == self._key(task) else self.entries.get(holder_key)
        if holder is not None and ends_ms > unix_ms():
            lives = holder.state in (TaskState.WAITING, TaskState.SCHEDULED, TaskState.PENDING)
            begun = holder.state is TaskState.PENDING or holder.retry_count > 0
            lives = lives and (begun or holder.start_by_ms is None or holder.start_by_ms > unix_ms())
            lives = lives and holder.task.lock is not None and holder.task.lock.digest == task.lock.digest
            if lives and not begun and task.lock.on_clash in ("replace", "reschedule"):
                self.put_instead(holder, task)
                self._locks[place] = (holder_key, _lock_ends_ms(task))
                return holder
            if task.lock.lasts == "expired" or (lives and not (task.lock.lasts == "started" and begun)):
                if task.lock.on_clash == "raise":
                    raise locked(task.queue, holder.task.id)
                return holder
        self._locks[place] = (self._key(task), _lock_ends_ms(task))
        return None

    def put_instead(self, holder: MemoryTask, task: Task) -> None:
        """Gives a unique task that has not begun the due time and priority of a duplicate, with `replace` all of it."""
        same: dict[str, Any] = {"id": holder.task.id, "queue": holder.task.queue}
        if task.lock is not None and task.lock.on_clash == "reschedule":
            same |= {"payload": holder.task.payload, "headers": holder.task.headers}
        holder.task = msgspec.structs.replace(task, **same)
        holder.start_by_ms = self._start_by_ms(task)
        holder.wait(_due_ms(task))

    def _start_by_ms(self, task: Task) -> float | None:
        """The expiry of a task enqueued now (Unix ms), by its own option or that of its queue; None: never."""
        if task.expires_in_ms is not None:
            return unix_ms() + task.expires_in_ms
        of_queue = self.usual(task.queue).expires_in
        return None if of_queue is None else unix_ms() + 1000 * of_queue

    def take_flow(self, flow: Flow) -> FlowHandle:
        """Enqueues a flow: its first steps, and the steps that start when these end."""
        flow = self.joining(flow)
        for head in flow.heads:
            self.take(head)
        self.begin(signals_of(flow, self.joins))
        self.flow_taken()
        return MemoryFlowHandle(self, MemoryFlow(self, flow))

    def flow_taken(self) -> None:
        """A hook for subclasses, called when all steps of a flow that begin at once are enqueued."""

    def joining(self, flow: Flow) -> Flow:
        """Returns the flow after the middleware, and prepares its joins. Raises PayloadTooLarge, QueueFull."""
        flow = flow.with_tasks(self.outgoing(flow.prepared))
        flow.check(self.settings.payload_limit)
        self.check_capacity(flow.heads)
        self.joins.prepare(flow.joins)
        return flow

    def begin(self, begun: Iterable[Begun]) -> None:
        """Enqueues the steps of a flow that begin now, each with the results and outcomes passed to it."""
        for task, results, outcomes in begun:
            self.give(task, results, outcomes)
            self.take(task)

    async def begin_async(self, begun: Iterable[Begun]) -> None:
        """As `begin`, for coroutines."""
        for task, results, outcomes in begun:
            self.give(task, results, outcomes)
            await self.take_async(task)

    def cancel(self, entry: MemoryTask) -> bool:
        """Cancels a task, and enqueues the steps of its flow that its end starts. Returns False for a finished task."""
        runs = entry.state is TaskState.PENDING
        if not entry.cancel():
            return False
        if not runs:
            self.begin(self.joins.end(entry.task.then, entry.state.value, b""))
        return True

    def give(self, task: Task, results: bytes, outcomes: bytes) -> None:
        """Stores the results and outcomes that a flow passes to a task."""
        self._memory.given[self._key(task)] = (results, outcomes)

    def entry(self, task_id: str, queue: str | None) -> MemoryTask:
        """The record of a task. Raises TaskGone, and as Client.task."""
        check_place(task_id, queue)
        place = queue or tag_of_id(task_id)
        assert place is not None, "check_place() has refused it"
        known = self.entries.get(self._keys.queue(place).task(task_id))
        if known is None:
            raise gone(task_id)
        return known

    def entry_of(self, task: Task) -> MemoryTask | None:
        """The record of the task with this task's id; None when there is none."""
        return self.entries.get(self._key(task))

    def _key(self, task: Task) -> bytes:
        return self._keys.queue(task.queue).task(task.id)

    def take(self, task: Task) -> MemoryTask:
        """Adds a new task. Raises PayloadTooLarge, QueueFull."""
        check_size(task.payload, self.settings.payload_limit)
        self.check_capacity([task])
        entry = MemoryTask(task=task, start_by_ms=self._start_by_ms(task))
        entry.wait(_due_ms(task))
        self.entries[self._key(task)] = entry
        return entry

    async def take_async(self, task: Task) -> MemoryTask:
        """As `take`, for coroutines."""
        return self.take(task)


def _due_ms(task: Task) -> float | None:
    """The due time of a task enqueued now, Unix ms; None: at once."""
    now_ms = unix_ms()
    due_ms = now_ms + (task.delay_ms or 0.0) if task.at_ms is None else task.at_ms
    return due_ms if due_ms > now_ms else None


def _lock_ends_ms(task: Task) -> float:
    assert task.lock is not None
    return (_due_ms(task) or unix_ms()) + task.lock.ttl_ms


class AsyncMemoryClient(AsyncClient):
    """The asyncio twin of a MemoryClient, for any event loop."""

    def __init__(self, of: MemoryClient) -> None:
        super().__init__(of.settings.url, of.settings.prefix, middleware=of.settings.middleware)
        self._of = of
        self._broker = AsyncMemoryBroker(broker_of(of))

    async def close(self) -> None:
        """Does nothing; the client stays usable."""

    def task(self, task_id: str, *, queue: str | None = None) -> AsyncTaskHandle[Any]:
        """A handle on a task that was enqueued here. Raises TaskGone, and as AsyncClient.task."""
        return AsyncMemoryHandle(self, self._of.entry(task_id, queue), self._of.cancel)

    def queue(self, name: str) -> AsyncQueue:
        """As MemoryClient.queue."""
        ref = QueueRef(self._keys, None, name, self.settings.payload_limit)
        return AsyncMemoryQueue(self._broker, ref, self._of.queue(name))

    async def flow_progress(self, flow_id: str) -> FlowProgress:
        """As MemoryClient.flow_progress."""
        return self._of.flow_progress(flow_id)

    async def queues(self) -> list[str]:
        """Names of queues with tasks."""
        return self._of.queues()

    async def enqueue(
        self, task: Task, *more: Never, wait: Duration = 0, **unknown: Never
    ) -> AsyncTaskHandle[Any]:
        """Enqueues a task. A second task with the same id is ignored while the first task is kept."""
        if more or unknown:
            check_one_task(task, more, unknown, "enqueue()")
        seconds(wait, option="wait")
        (task,) = self._of.outgoing([task])
        known = self._of.known(task)
        entry = await self._of.take_async(task) if known is None else known
        return AsyncMemoryHandle(self, entry, self._of.cancel, is_new=known is None)

    async def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[AsyncTaskHandle[Any]]:
        """As MemoryClient.enqueue_many."""
        return [
            AsyncMemoryHandle(
                self, await self._of.take_async(task) if known is None else known, self._of.cancel, is_new=known is None
            )
            for task, known in self._of.placed(sent, wait)
        ]

    async def take_flow(self, flow: Flow) -> AsyncFlowHandle:
        """As MemoryClient.take_flow."""
        flow = self._of.joining(flow)
        for head in flow.heads:
            await self._of.take_async(head)
        await self._of.begin_async(signals_of(flow, self._of.joins))
        self._of.flow_taken()
        return AsyncMemoryFlowHandle(self, MemoryFlow(self._of, flow))
