"""A producer's buffer for short outages: unsent tasks wait in this process until the server is back.

Invariants: tasks are sent in the order of their enqueues, each under its first id, so that a task that had arrived
after all is stored once; an answered call is not sent again; every lost task is logged.
"""

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import NoReturn, TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import server as server_calls
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.capacity import awaiting_room, registering_again
from jobrunner.client.operations.enqueue import EnqueueBatch, batches
from jobrunner.client.operations.operation import Operation, run_operation
from jobrunner.client.operations.routing import Routes
from jobrunner.clock import monotonic, since_boot
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import NO_ANSWER, BufferFull, JobrunnerError, OutcomeUnknown
from jobrunner.logs import SafeLogger
from jobrunner.retry import seconds
from jobrunner.settings import ClientSettings, Duration
from jobrunner.task import Task

T = TypeVar("T")
_AT_ONCE = 500
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 2.0
_MADE_AGAIN_S = 3600.0
"""The age in seconds at which calls are made again. Earlier, the same calls are sent, as making them writes to the
payload store. Later, a sweep may have deleted the objects, to which no task refers yet."""
_log = SafeLogger("jobrunner.buffer")


class _WaitingTasks:
    """The tasks in a buffer, in the order of sending. `size`: bytes of their payloads."""

    def __init__(self) -> None:
        self._together: deque[list[Task]] = deque()
        """Tasks that may have arrived: each list was sent together, so the same calls again add nothing. They go before
        all other tasks, which were enqueued later."""
        self._others: deque[Task] = deque()
        self._count = self.size = 0

    def __len__(self) -> int:
        return self._count

    @property
    def first(self) -> Task:
        """The task that is sent next."""
        return self._together[0][0] if self._together else self._others[0]

    def add(self, tasks: Sequence[Task], *, may_be_there: bool) -> None:
        """Adds tasks; `may_be_there`: the tasks were sent together, and may have arrived."""
        if may_be_there:
            self._together.append(list(tasks))
        else:
            self._others.extend(tasks)
        self._count += len(tasks)
        self.size += _size_of(tasks)

    def first_part(self) -> list[Task]:
        """The tasks to send together now. `add` got validated tasks."""
        if not self._together:
            part = next(batches(islice(self._others, _AT_ONCE), sys.maxsize))
            for _ in part:
                self._others.popleft()
            self._together.append(part)
        return self._together[0]

    def keep_only(self, left: Sequence[Task]) -> None:
        """Removes the tasks of the first part, except those in `left`."""
        part = self._together.popleft()
        if left:
            self._together.appendleft(list(left))
        self._count -= len(part) - len(left)
        self.size -= _size_of(part) - _size_of(left)


class Buffer:
    """Tasks that wait for the server. A buffer:

    1. is empty at first, and all tasks go straight to the server, until a server is away;
    2. takes tasks that cannot be sent, and all later tasks, up to its limits: then it raises BufferFull;
    3. sends in a thread of its own, with growing pauses, until it is empty;
    4. on `close` waits until it is empty, `buffer_flush` seconds at most; the remaining tasks are lost and logged.
    """

    def __init__(
        self, broker: Broker, keys: Keys, encryption: PayloadEncryption | None, settings: ClientSettings
    ) -> None:
        self._broker = broker
        self._keys = keys
        self._encryption = encryption
        self._settings = settings
        self._changed = threading.Condition(threading.Lock())
        self._closed = False
        self._waiting = _WaitingTasks()
        self._thread: threading.Thread | None = None
        from jobrunner.forks import call_in_forks  # most clients buffer nothing

        call_in_forks(self._begin_in_fork)

    def __len__(self) -> int:
        return len(self._waiting)

    def awaiting_room(self, tasks: Sequence[Task], routes: Routes, wait: Duration) -> Operation[Duration]:
        """Runs the function `awaiting_room`; does not wait when the server is away, or when the tasks have to wait in
        this process. Returns the seconds of `wait` that are left."""
        if self._have_to_wait(tasks):
            return wait
        ends = monotonic() + seconds(wait, option="wait")
        try:
            return (yield from awaiting_room(routes, tasks, wait))
        except NO_ANSWER:
            return max(ends - monotonic(), 0.0)

    def placing(self, tasks: Sequence[Task], routes: Routes) -> Operation[bool | JobrunnerError]:
        """Places tasks in their shards by `Routes.placing`. When the server is away, or the tasks have to wait, cached
        counts place them, so that tasks with equal keys stay together. Returns whether a queue was registered, or the
        error of a server that is away."""
        if self._have_to_wait(tasks):
            routes.place_as_known(tasks)
            return False
        try:
            return (yield from routes.placing(tasks))
        except NO_ANSWER as error:
            if not self._takes(tasks):
                raise
            routes.place_as_known(tasks)
            return error

    def through(
        self, tasks: Sequence[Task], send: Operation[T], placed: bool | JobrunnerError
    ) -> Operation[T | None]:
        """Returns the result of `send`, or None when the tasks were buffered. `placed`: the result of `placing`. Raises
        BufferFull, OutcomeUnknown for tasks that may have arrived and exceed the buffer, and the errors of `send`."""
        if self._have_to_wait(tasks):
            # Raises errors of the tasks now, except errors of a payload store: payloads are written there only when
            # they can be sent.
            EnqueueBatch(self._keys, None, tasks, self._settings.payload_limit)
            self._keep(tasks)
            return None
        try:
            if isinstance(placed, JobrunnerError):
                raise placed
            return (yield from send)
        except NO_ANSWER as error:
            if not self._takes(tasks):
                raise
            self._keep(tasks, error)
            return None

    def close(self) -> None:
        """Waits until all tasks are sent, or `buffer_flush` has passed; logs lost tasks. Accepts no more tasks."""
        ends = monotonic() + self._settings.buffer_flush
        with self._changed:
            while len(self) and (left := ends - monotonic()) > 0:
                self._changed.wait(left)
            self._closed = True
            self._changed.notify_all()
            if lost := len(self):
                first = self._waiting.first
                _log.error("tasks that waited for the server are lost", tasks=lost, first=first.id, queue=first.queue)
        self._broker.close()

    def _have_to_wait(self, tasks: Sequence[Task]) -> bool:
        """Whether earlier tasks wait, which these tasks must not overtake."""
        return len(self._waiting) > 0 and self._takes(tasks)

    def _takes(self, tasks: Sequence[Task]) -> bool:
        """Whether the buffer takes these tasks. It takes no unique tasks, whose ids only the server can assign."""
        return all(task.lock is None for task in tasks)

    def _keep(self, tasks: Sequence[Task], error: JobrunnerError | None = None) -> None:
        with self._changed:
            count, size, limits = len(self._waiting), self._waiting.size, self._settings
            is_full = count + len(tasks) > limits.buffer_tasks or size + _size_of(tasks) > limits.buffer_bytes
            if self._closed or is_full:
                self._refuse(
                    f"{count} tasks ({size} bytes) wait for it already: {len(tasks)} were not taken; try again later, "
                    "or raise buffer_tasks and buffer_bytes",
                    error,
                )
            if self._thread is None:
                self._begin_to_send(error)
            if not count:
                _log.warning("the server is away; tasks wait in this process", error=str(error))
            self._waiting.add(tasks, may_be_there=isinstance(error, OutcomeUnknown))

    def _begin_to_send(self, error: JobrunnerError | None) -> None:
        """Starts the sending thread, before there is a task: the thread waits for the lock, which the caller holds."""
        thread = threading.Thread(target=self._send_all, name="jobrunner-buffer", daemon=True)
        try:
            thread.start()
        except RuntimeError as refused:
            self._refuse(
                f"no thread can be started that would send what waits for it ({refused}): nothing was taken; raise the "
                "limit on threads (ulimit -u, the pids of a container)",
                error,
            )
        self._thread = thread

    def _refuse(self, why: str, error: JobrunnerError | None) -> NoReturn:
        if isinstance(error, OutcomeUnknown):
            raise OutcomeUnknown(f"{error}; and {why}") from error
        raise BufferFull(f"no server, and {why}") from error

    def _send_all(self) -> None:
        pause, sent = _FIRST_PAUSE_S, 0
        kind: type[Exception] | None = None
        known: set[str] = set()
        batch: EnqueueBatch | None = None
        made_at = 0.0
        while True:
            with self._changed:
                if not self._waiting or self._closed:
                    self._thread, lost = None, len(self._waiting)
                    break
                part = self._waiting.first_part()
            try:
                if batch is None or since_boot() - made_at > _MADE_AGAIN_S:
                    batch = EnqueueBatch(self._keys, self._encryption, part, self._settings.payload_limit)
                    made_at = since_boot()
                left, error = self._sent(batch, known)
            except Exception as raised:  # of any kind: if this thread ended, nothing would send the tasks
                left, error = part, raised
            sent += len(part) - len(left)
            with self._changed:
                self._waiting.keep_only(left)
                self._changed.notify_all()
            if len(left) < len(part):
                batch = None
            if error is None:
                pause = _FIRST_PAUSE_S
                continue
            if not isinstance(error, NO_ANSWER) and type(error) is not kind:
                kind = type(error)
                _log.warning("the server refuses tasks that waited for it", tasks=len(self), error=str(error))
            with self._changed:
                self._changed.wait_for(lambda: self._closed, pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)
            known.clear()  # another server may answer now
        if not lost:
            _log.info("the server is back; tasks that waited were sent", tasks=sent)

    def _sent(self, batch: EnqueueBatch, known: set[str]) -> tuple[Sequence[Task], Exception | None]:
        """Sends tasks together; returns the tasks of unanswered and refused calls, and an error of these calls. The
        tasks of answered calls are not sent again, as the server forgets after a while that it applied a call."""
        is_new = not batch.new_queues <= known
        if is_new:
            self._broker.run_many(batch.before)
            known |= batch.new_queues
        replies = self._broker.run_each([call for _, call in batch.written])
        if not is_new:
            with suppress(JobrunnerError):  # the tasks were added before
                run_operation(self._broker, registering_again([queue for queue, _ in batch.written], replies))
        errors = [reply for reply in replies if isinstance(reply, JobrunnerError)]
        refused = [error for error in errors if not isinstance(error, NO_ANSWER)]
        parts = zip(batch.parts(), replies, strict=True)
        left = [task for (_, tasks), reply in parts if isinstance(reply, JobrunnerError) for task in tasks]
        return left, next(iter(refused or errors), None)

    def _begin_in_fork(self) -> None:
        """Empties the buffer in a forked child: the parent sends its tasks. The lock is replaced, as a thread of the
        parent may have held it."""
        self._waiting, self._thread = _WaitingTasks(), None
        self._changed = threading.Condition(threading.Lock())


def _size_of(tasks: Sequence[Task]) -> int:
    return sum(len(task.payload) for task in tasks)


def prepare(
    buffer: Buffer | None, routes: Routes, tasks: Sequence[Task], wait: Duration
) -> Operation[tuple[Duration, bool | JobrunnerError]]:
    """Waits until queues may have capacity for the tasks, and places the tasks in their shards. Returns the rest of
    `wait`, and whether a queue was registered, or with a buffer the error of a server that is away."""
    if buffer is None:
        left = (yield from awaiting_room(routes, tasks, wait)) if wait else wait
        return left, (yield from routes.placing(tasks))
    left = (yield from buffer.awaiting_room(tasks, routes, wait)) if wait else wait
    return left, (yield from buffer.placing(tasks, routes))


def send_or_keep(
    buffer: Buffer | None, tasks: Sequence[Task], send: Operation[T], registered: bool | JobrunnerError
) -> Operation[T | None]:
    """Returns the result of `send`, or None when the tasks were buffered. `registered`: from the result of `prepare`.
    """
    return send if buffer is None else buffer.through(tasks, send, registered)


def buffer_of(
    settings: ClientSettings,
    keys: Keys,
    encryption: PayloadEncryption | None,
    endpoint: Endpoint,
    now_ms: Callable[[], bytes],
) -> Buffer | None:
    """The buffer of a client; None when `buffer_tasks` is 0."""
    if not settings.buffer_tasks:
        return None
    broker = Broker(endpoint, retry_timeout_s=0, now_ms=now_ms, greeting=server_calls.check_format(keys))
    return Buffer(broker, keys, encryption, settings)
