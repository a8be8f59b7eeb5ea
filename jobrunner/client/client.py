"""The client: one connection pool, one prefix; enqueues tasks and hands out handles and queues."""

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Never, Protocol, Self, TypeVar, Unpack

from jobrunner.broker.broker import Broker, server_clock
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.calls.server import add_redacted_names, confirmation
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.buffer import buffer_of, prepare, send_or_keep
from jobrunner.client.encryption import client_encryption
from jobrunner.client.operations.capacity import registering_again
from jobrunner.client.operations.enqueue import (
    Placed,
    QueueRef,
    batches,
    check_one_task,
    enqueue_call,
    enqueueing,
    no_task,
    placed,
)
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.routing import NotedOutcome, Routes
from jobrunner.client.operations.task import TaskRef, check_place
from jobrunner.client.outgoing import BatchedCall, sending
from jobrunner.client.shared_redaction import SharedRedaction
from jobrunner.client.task_handle import TaskHandle
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import JobrunnerError, UsageError
from jobrunner.middleware import MiddlewareStack, stack_of
from jobrunner.observers import OBSERVERS
from jobrunner.option_names import checks_options, no_attribute
from jobrunner.redaction import Redaction
from jobrunner.settings import ClientOptions, ClientSettings, Duration, as_arguments, client_settings
from jobrunner.task import Task, check_size

if TYPE_CHECKING:
    from jobrunner.broker.calls.queues import QueueCounts
    from jobrunner.client.added_periodics import PeriodicCall
    from jobrunner.client.operations.flow import FlowProgress
    from jobrunner.client.queue import Queue
    from jobrunner.client.records import PeriodicRecord, WorkerRecord
    from jobrunner.due_ticks import CatchUp
    from jobrunner.events import Event

OF_WORKER: "ContextVar[Client]" = ContextVar("jobrunner_client")
"""In a job the client of its worker."""


@checks_options
class Client:
    """A connection to one server under one prefix.

    Options, which docs/reference/settings.md explains: `durability` ("none", "fsync", "replicated"),
    `durability_timeout`; `retry_timeout`, seconds to try to reach a server that is away; `buffer_tasks`,
    `buffer_bytes`, `buffer_flush`; `payload_limit`, `result_limit`, in bytes; `payload_keys`, `payload_encryption`,
    `require_encryption`; `payload_store`, `payload_store_above`; `middleware`; `redact`. `now_ms` is a clock for tests
    (`jobrunner.testing.Travel`). Raises UnknownOption, InvalidOption.

    Its life:

    1. settles its settings (argument > environment > pyproject.toml > the embedded server);
    2. connects at the first call, and starts the embedded server if that is its server;
    3. on `close`, or when the program ends, closes its connections and leaves the embedded server; use after that
       raises ClientClosed. Handlers that a program gave to `atexit` after it imported jobrunner run before.
    """

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
        self._broker = Broker(
            self._endpoint,
            retry_timeout_s=self.settings.retry_timeout,
            now_ms=now_ms,
            confirmation=confirmation(self.settings.durability, self.settings.durability_timeout),
            greeting=server_calls.check_format(self._keys),
        )
        self._buffer = buffer_of(self.settings, self._keys, self._encryption, self._endpoint, now_ms)
        self._routes = Routes(self._keys, self._endpoint)
        self._redaction = SharedRedaction(self.settings.redact)
        _open_clients.add(self)

    @classmethod
    def like(cls, settings: ClientSettings) -> "Client":
        """A client with the settings of another one."""
        return cls(**as_arguments(settings))

    def __repr__(self) -> str:
        return f"Client({str(self._endpoint)!r}, prefix={self.settings.prefix!r})"

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name, "client")

    def __enter__(self) -> Self:
        if OF_WORKER.get(None) is self:
            raise UsageError(
                "with current_client(): its end would close the client through which all jobs of this worker enqueue; "
                "use it without `with`, which is for Client(…)"
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connections; the embedded server stops when this was its last user."""
        _open_clients.discard(self)
        if self._buffer is not None:
            self._buffer.close()
        self._broker.close()
        self._endpoint.release()

    def queue(self, name: str) -> "Queue":
        """The queue of that name. Raises InvalidName."""
        from jobrunner.client.queue import Queue  # here and below: programs that only enqueue jobs do not need it

        limits = self.settings.payload_limit, self.settings.result_limit
        ref = QueueRef(self._keys, self._encryption, name, *limits, routes=self._routes)
        return Queue(self._broker, ref, self._buffer, self._middleware)

    def task(self, task_id: str, *, queue: str | None = None) -> TaskHandle[Any]:
        """A handle on a task. An id of the user's own needs the name of its queue. Raises InvalidName."""
        check_place(task_id, queue)
        return TaskHandle(self._broker, TaskRef(self._keys, self._encryption, task_id, queue))

    def flow_progress(self, flow_id: str) -> "FlowProgress":
        """How the tasks of a flow ended so far, by the `id` of its handle: for a program that did not enqueue it.

        Raises TaskGone when the flow is forgotten, InvalidName.
        """
        from jobrunner.client.operations.flow import progress

        return run_operation(self._broker, progress(flow_id, self._keys))

    def queues(self) -> list[str]:
        """Full names of all queues ever used, sorted."""
        from jobrunner.client.records import whole_queues

        return run_operation(self._broker, whole_queues(self._keys))

    def events(self, after: str | None = None, *, follow: bool = False) -> "Iterator[Event]":
        """The events after the one with the id `after`, oldest first; with `follow` the iterator never ends.

        The last 10 000 or so are kept (see jobrunner.events). Raises InvalidOption, ServerError.
        """
        from jobrunner.client.events import read_events

        return read_events(self._broker, self._keys, after, follow=follow)

    def workers(self) -> "list[WorkerRecord]":
        """The live workers (by their heartbeats), by id; each record is some seconds old."""
        from jobrunner.client.records import read_workers

        return run_operation(self._broker, read_workers(self._keys))

    def periodics(self) -> "list[PeriodicRecord]":
        """The periodic jobs that workers published or programs added, by name, with their last and next ticks."""
        from jobrunner.client.records import read_periodics

        return run_operation(self._broker, read_periodics(self._keys))

    def enable_periodic(self, name: str) -> None:
        """Has the ticks of a periodic job fire again. Missed ticks are not made up for. Raises UnknownJob."""
        from jobrunner.client.periodic_state import switch

        run_operation(self._broker, switch(self._keys, name, enabled=True))

    def disable_periodic(self, name: str) -> None:
        """Has the ticks of a periodic job not fire, whatever workers publish, until it is enabled. Raises
        UnknownJob."""
        from jobrunner.client.periodic_state import switch

        run_operation(self._broker, switch(self._keys, name, enabled=False))

    @checks_options
    def add_periodic(
        self,
        name: str,
        call: "PeriodicCall",
        *,
        every: Duration | None = None,
        cron: str | None = None,
        tz: str | None = None,
        catch_up: "CatchUp" = "last",
        overlap: str = "skip",
        jitter: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        limit: int | None = None,
    ) -> None:
        """Adds a periodic job at run time, or replaces the one of that name. It stays until it is removed.

        `call` is a job with its parameters, `SendReport(customer="acme")` or `send_report.bind("acme")`, also with
        options by `using`, except id, in_, at and wait. Ticks fire from `start` to `end`, both included and aware
        datetimes, until `limit` of them became tasks; those of an interval count from `start`. The other options are
        those of `@job`. Equal calls change nothing, so each process of an application may make them when it starts.

        Raises InvalidOption, also for a `call` of a unique job; NaiveDatetime; InvalidName, also for the name of a
        periodic job that is declared in code; UsageError for what is no job with its parameters; ParameterError;
        PayloadTooLarge for parameters above 64 KiB; ServerError, after which the call may be repeated.
        """
        from jobrunner.client.added_periodics import add, definition_of

        definition = definition_of(
            name, call, every=every, cron=cron, tz=tz, catch_up=catch_up, overlap=overlap, jitter=jitter,
            start=start, end=end, limit=limit,
        )  # fmt: skip
        run_operation(self._broker, add(self._keys, self._encryption, definition))

    def remove_periodic(self, name: str) -> None:
        """Removes a periodic job that was added at run time. No tick of it fires afterwards; tasks that it enqueued
        stay. Raises UnknownJob, also for a job that is declared in code."""
        from jobrunner.client.added_periodics import remove

        run_operation(self._broker, remove(self._keys, name))

    def stats(self) -> "dict[str, QueueCounts]":
        """Counts and totals of every queue, by name; one round trip for all queues."""
        from jobrunner.client.records import read_stats

        return run_operation(self._broker, read_stats(self._keys))

    def redaction(self) -> Redaction:
        """The names of parameters that are hidden: this client's and the server's; all names while the server, or its
        node with them, does not answer. Raises ServerRefused."""
        return run_operation(self._broker, self._redaction.now(self._keys))

    def hide(self, names: Iterable[str]) -> None:
        """Hides parameters with these names in everything rendered through this client. Raises InvalidOption."""
        self._redaction.add(names)

    def redact(self, *names: str) -> None:
        """Has all pages and commands hide parameters with these names (or patterns of whole names), for good: the
        server keeps the names. Raises InvalidOption."""
        self._redaction.add(names)
        if names:
            self._broker.run(add_redacted_names(self._keys, names))

    def enqueue(self, task: Task, *more: Never, wait: Duration = 0, **unknown: Never) -> TaskHandle[Any]:
        """Sends one task; `wait` is the time to wait for room in a full queue. A repeated id leaves the first task as
        is."""
        if more or unknown:  # checked here, as every enqueue would pay for the frame of `checks_options`
            check_one_task(task, more, unknown, "Client.enqueue()")
        try:
            is_alone = task.lock is None or self._encryption is None
        except AttributeError:
            raise no_task(task) from None
        if wait or self._buffer is not None or not is_alone:
            return self.enqueue_many([task], wait=wait)[0]
        is_new = False
        if self._routes.are_needed(task.queue) and not self._routes.placed_at_once(task):
            check_size(task.payload, self.settings.payload_limit)
            is_new = run_operation(self._broker, self._routes.placing([task]))
        if self._middleware is None and not OBSERVERS:
            return self._send(task, is_new)
        with sending([task], self._middleware) as (outgoing,):
            return self._send(outgoing, is_new)

    def enqueue_many(self, sent: Iterable[Task], *, wait: Duration = 0) -> list[TaskHandle[Any]]:
        """Sends tasks in batches of up to 1 000 and 1 MiB, one round trip each; returns handles in the same order.

        Each batch is all or nothing, except unique tasks, which are added one by one. Nothing is sent when a payload of
        the first 1 000 is too large. DuplicateTask is raised after its batch was sent. With `wait` each batch waits
        that long for room in full queues, and is all or nothing for each queue alone. Raises QueueFull. The error of a
        later batch says how many tasks were added before it.
        """
        handles: list[TaskHandle[Any]] = []
        with BatchedCall() as call:
            for tasks_of_batch in batches(sent, self.settings.payload_limit, encryption=self._encryption):
                preparing = prepare(self._buffer, self._routes, tasks_of_batch, wait)
                left, registered = run_operation(self._broker, preparing)
                with sending(tasks_of_batch, self._middleware) as outgoing:
                    found, durability = self._write(outgoing, left, registered)
                handles += [
                    TaskHandle(
                        self._broker,
                        TaskRef(self._keys, self._encryption, task_id, task.queue),
                        durability=durability,
                        is_new=is_new,
                    )
                    for (task_id, is_new), task in zip(found, outgoing, strict=True)
                ]
                call.added(outgoing)
        return handles

    def _write(
        self, tasks: Sequence[Task], wait: Duration, registered: bool | JobrunnerError
    ) -> tuple[Sequence[Placed | tuple[str, None]], str]:
        """Sends a batch. Returns (id, whether the task was added) for each task, and the durability reached."""
        limit, routes, is_new = self.settings.payload_limit, self._routes, registered is True
        send = enqueueing(self._keys, self._encryption, tasks, limit, wait, routes, just_registered=is_new)
        with NotedOutcome(tasks, routes):
            found = run_operation(self._broker, send_or_keep(self._buffer, tasks, send, registered))
        if found is None:
            return [(task.id, None) for task in tasks], "buffered"
        return found, self.settings.durability

    def _send(self, task: Task, is_new: bool) -> TaskHandle[Any]:
        call = enqueue_call(self._keys, self._encryption, [task], self.settings.payload_limit)
        with NotedOutcome([task], self._routes):
            (reply,) = self._broker.write([call])
        if reply.is_first and not is_new:
            run_operation(self._broker, registering_again([self._keys.queue(task.queue)], [reply]))
        task_id, is_new = placed(task, reply)
        reached = self.settings.durability
        return TaskHandle(
            self._broker, TaskRef(self._keys, self._encryption, task_id, task.queue), durability=reached, is_new=is_new
        )


_open_clients: set[Client] = set()


def close_clients() -> None:
    """Closes every open client at the end of the program; an error of one client leaves no other open."""
    with ExitStack() as ends:
        for client in _open_clients.copy():
            ends.callback(client.close)


# Registered at import, not per client: handlers run in reverse order, and a program's earlier handler could still
# enqueue.
atexit.register(close_clients)

B_co = TypeVar("B_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)


class _HasBroker(Protocol[B_co]):
    @property
    def _broker(self) -> B_co: ...


class _HasKeys(Protocol[K_co]):
    @property
    def _keys(self) -> K_co: ...


class _HasEncryption(Protocol):
    @property
    def _encryption(self) -> PayloadEncryption | None: ...


class _HasEndpoint(Protocol):
    @property
    def _endpoint(self) -> Endpoint: ...


class _HasRedaction(Protocol):
    @property
    def _redaction(self) -> SharedRedaction: ...


class _HasMiddleware(Protocol):
    @property
    def _middleware(self) -> MiddlewareStack | None: ...


def broker_of(owner: _HasBroker[B_co]) -> B_co:
    """The driver: a Broker of a Client or a Queue, an AsyncBroker of their twins."""
    return owner._broker  # noqa: SLF001 - the only module that may


def keys_of(owner: _HasKeys[K_co]) -> K_co:
    """The key names: Keys of a client, QueueKeys of a queue."""
    return owner._keys  # noqa: SLF001


def encryption_of(client: _HasEncryption) -> PayloadEncryption | None:
    """The encryption of a client; None without keys."""
    return client._encryption  # noqa: SLF001


def endpoint_of(client: _HasEndpoint) -> Endpoint:
    """The address that a client connects to."""
    return client._endpoint  # noqa: SLF001


def redaction_of(client: _HasRedaction) -> SharedRedaction:
    """The hidden names of a client, for those who read the server's themselves."""
    return client._redaction  # noqa: SLF001


def middleware_of(client: _HasMiddleware) -> MiddlewareStack | None:
    """The middleware of a client; None when it has none."""
    return client._middleware  # noqa: SLF001
