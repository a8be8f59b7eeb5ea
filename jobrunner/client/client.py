"""The client: one connection pool, one prefix; enqueues tasks and hands out handles and queues."""

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.calls import formats, queues
from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.broker.calls.server import confirmation
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client import room
from jobrunner.client.buffer import buffer_of
from jobrunner.client.bulk import Batch, batches, enqueue_call, id_of
from jobrunner.client.events import read_events
from jobrunner.client.handle import TaskHandle
from jobrunner.client.periodic_steps import switch
from jobrunner.client.queue import Queue
from jobrunner.client.records import PeriodicRecord, WorkerRecord, read_periodics, read_stats, read_workers
from jobrunner.client.sealing import seal_of
from jobrunner.client.steps import run_steps
from jobrunner.client.task_steps import check_place
from jobrunner.events import Event
from jobrunner.settings import Duration, client_settings
from jobrunner.task import Task
from jobrunner.tracepoint import TRACEPOINT, sending


class Client:
    """A connection to one server under one prefix. Its life:

    1. settles its settings (argument > environment > pyproject.toml > the embedded server);
    2. connects at the first call, starting the embedded server if that is the one;
    3. on `close` ends its connections and leaves the embedded server; use after that raises ClientClosed.
    """

    def __init__(
        self,
        url: str | None = None,
        prefix: str | None = None,
        *,
        now_ms: Callable[[], bytes] = server_clock,
        **options: Any,
    ) -> None:
        self.settings = client_settings(url, prefix, **options)
        self.keys = Keys(self.settings.prefix, seal_of(self.settings))
        self.endpoint = Endpoint(self.settings.url)
        self.broker = Broker(
            self.endpoint,
            patience_s=self.settings.patience,
            now_ms=now_ms,
            confirmation=confirmation(self.settings.durability, self.settings.durability_timeout),
            greeting=formats.check(self.keys),
        )
        self._buffer = buffer_of(self.settings, self.keys, self.endpoint, now_ms)
        self._registered: set[str] = set()
        atexit.register(self.close)

    def __repr__(self) -> str:
        return f"Client({str(self.endpoint)!r}, prefix={self.settings.prefix!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; the embedded server stops when this was its last user."""
        atexit.unregister(self.close)
        if self._buffer is not None:
            self._buffer.close()
        self.broker.close()
        self.endpoint.release()

    def queue(self, name: str) -> Queue:
        """The queue of that name. Raises InvalidName."""
        return Queue(self.broker, self.keys, name, self.settings.payload_limit, self._buffer)

    def task(self, task_id: str, *, queue: str | None = None) -> TaskHandle[Any]:
        """A handle on a task. An id of the user's own needs the name of its queue. Raises InvalidName."""
        check_place(task_id, queue)
        return TaskHandle(self.broker, self.keys, task_id, queue)

    def queues(self) -> list[str]:
        """Full names of all queues ever used, sorted."""
        return self.broker.run(queues.registered(self.keys))

    def events(self, after: str | None = None, *, follow: bool = False) -> Iterator[Event]:
        """What happened, oldest first, from behind the event with the id `after` on; with `follow` for ever.

        The last 10 000 or so are kept (see jobrunner.events). Raises InvalidOption, ServerError.
        """
        return read_events(self.broker, self.keys, after, follow=follow)

    def workers(self) -> list[WorkerRecord]:
        """The workers that gave a sign of life lately, by id; what each says of itself is some seconds old."""
        return run_steps(self.broker, read_workers(self.keys))

    def periodics(self) -> list[PeriodicRecord]:
        """The periodic jobs that workers published, by name, with their last and next ticks."""
        return run_steps(self.broker, read_periodics(self.keys))

    def enable_periodic(self, name: str) -> None:
        """Has the ticks of a periodic job fire again. Those that passed are not made up for. Raises UnknownJob."""
        run_steps(self.broker, switch(self.keys, name, enabled=True))

    def disable_periodic(self, name: str) -> None:
        """Has the ticks of a periodic job pass by, whatever workers publish, until it is enabled. Raises UnknownJob."""
        run_steps(self.broker, switch(self.keys, name, enabled=False))

    def stats(self) -> dict[str, QueueCounts]:
        """Counts and totals of every queue, by name; one round trip for all of them."""
        return run_steps(self.broker, read_stats(self.keys))

    def enqueue(self, task: Task, *, wait: Duration = 0) -> TaskHandle[Any]:
        """Sends one task; waits so long for room in a full queue. The same id again leaves the first task as it was."""
        if wait or self._buffer is not None:
            return self.enqueue_many([task], wait=wait)[0]
        if TRACEPOINT.tracer is None:
            return self._send(task)
        with sending([task]) as (traced,):
            return self._send(traced)

    def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[TaskHandle[Any]]:
        """Sends tasks in batches of up to 1 000 per queue, one round trip each; handles in the order given.

        Each batch is all or nothing, but for unique tasks, which are added one by one. Nothing is sent when a payload
        of the first batch is too large. DuplicateTask is raised after the batch it is in was sent. With `wait` each
        batch waits so long for room in full queues, and is all or nothing for each queue alone. Raises QueueFull.
        """
        handles: list[TaskHandle[Any]] = []
        for tasks_of_batch in batches(sent):
            with sending(tasks_of_batch) as traced:
                batch = Batch(self.keys, traced, self.settings.payload_limit, self._registered)
                ids, durability = self._write(batch, traced, wait)
            placed = zip(ids, tasks_of_batch, strict=True)
            handles += [self._handle(task_id, task.queue, durability) for task_id, task in placed]
        return handles

    def _write(self, batch: Batch, tasks: Sequence[Task], wait: Duration) -> tuple[list[str], str]:
        """Ids of the tasks that are there now, and how safe they are."""

        def send() -> list[Any]:
            return run_steps(self.broker, room.write(batch.before, batch.written, wait))

        replies = send() if self._buffer is None else self._buffer.through(tasks, send)
        if replies is None:
            return [task.id for task in tasks], "buffered"
        self._registered |= batch.new_queues
        return batch.ids(replies), self.settings.durability

    def _send(self, task: Task) -> TaskHandle[Any]:
        call = enqueue_call(self.keys, [task], self.settings.payload_limit)
        if task.queue not in self._registered:
            self.broker.run_many(queues.register(self.keys, [task.queue]))  # refused: nothing is enqueued
            self._registered.add(task.queue)
        (placed,) = self.broker.write([call])
        return self._handle(id_of(task, placed), task.queue)

    def _handle(self, task_id: str, queue: str, durability: str | None = None) -> TaskHandle[Any]:
        reached = durability or self.settings.durability
        return TaskHandle(self.broker, self.keys, task_id, queue, durability=reached)
