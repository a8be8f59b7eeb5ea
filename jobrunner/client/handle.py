"""A handle on one enqueued task: reads it, waits for it, changes its fate."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import tasks
from jobrunner.broker.keys import Keys, QueueKeys
from jobrunner.client.relay import relay
from jobrunner.clock import monotonic
from jobrunner.codec import decode
from jobrunner.errors import TaskCancelled, TaskFailed, TaskGone, TaskTimeout
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import TaskRecord, TaskState

R = TypeVar("R")
_RECHECK_S = 2.0
_KEEP_CANCELLED_MS = 60_000


class TaskHandle(Generic[R]):
    """One task on the server. Every property asks the server, so it is never out of date.

    Reading a task that is no longer kept raises TaskGone.
    """

    def __init__(self, broker: Broker, keys: Keys, task_id: str, queue: str | None = None) -> None:
        self.id = task_id
        self._broker = broker
        self._keys = keys
        self._queue = queue

    def __repr__(self) -> str:
        return f"TaskHandle({self.id!r})"

    def record(self) -> TaskRecord:
        """The whole task as it stands. Raises TaskGone."""
        return self._read(awaited=False)

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
        return self._broker.run(tasks.show(self._keys, self.id, queue=self._queue)) is not None

    def result(self, timeout: Duration | None = None) -> R:
        """Waits for the end of the task and returns what its job returned, as plain JSON data.

        Raises TaskFailed when it is dead, TaskCancelled, TaskGone when it is no longer kept (see `keep`), and
        TaskTimeout after `timeout` (None: waits without limit).
        """
        limit_s = None if timeout is None else seconds(timeout, option="timeout")
        record = self._read(awaited=limit_s != 0)
        if not record.state.is_final:
            record = self._wait(limit_s)
        return read_result(record)  # type: ignore[no-any-return]

    def cancel(self) -> bool:
        """Cancels the task; one that runs is asked to stop. Returns False when it is finished or gone already."""
        keys = self._own_queue()
        word = self._broker.run(tasks.cancel(keys, self.id, keep_ms=_KEEP_CANCELLED_MS))
        if word == "posted":
            relay(self._broker, self._keys, tags=[keys.tag])
        return word != "gone"

    def requeue(self) -> bool:
        """Puts a dead task back into its queue, with its counts at zero. Returns False when it is not dead."""
        return self._broker.run(tasks.requeue(self._own_queue(), [self.id])) == ["ok"]

    def _own_queue(self) -> QueueKeys:
        found = self._broker.run(tasks.show(self._keys, self.id, queue=self._queue))
        if found is None:
            if self._queue is None:
                raise gone(self.id)
            return self._keys.queue(self._queue)
        return self._keys.queue(found.queue)

    def _read(self, *, awaited: bool) -> TaskRecord:
        record = self._broker.run(tasks.show(self._keys, self.id, queue=self._queue, awaited=awaited))
        if record is None:
            raise gone(self.id)
        return record

    def _wait(self, limit_s: float | None) -> TaskRecord:
        ends = None if limit_s is None else monotonic() + limit_s
        keys = self._own_queue()
        with _Listener(self._broker, keys.finished + self.id.encode()) as ended:
            while True:
                record = self._read(awaited=True)
                if record.state.is_final:
                    return record
                left = _RECHECK_S if ends is None else min(_RECHECK_S, ends - monotonic())
                if left <= 0:
                    raise timed_out(self.id, limit_s, record)
                ended(left)


class _Listener:
    """Waits for a message on one channel, on a connection of its own."""

    def __init__(self, broker: Broker, channel: bytes) -> None:
        self._connection: Any = broker.open_blocking()
        self._channel = channel

    def __enter__(self) -> Callable[[float], None]:
        self._connection.connect()
        self._connection.send_command("SUBSCRIBE", self._channel)
        self._connection.read_response()
        return self._wait

    def _wait(self, timeout_s: float) -> None:
        if self._connection.can_read(timeout=timeout_s):
            self._connection.read_response()

    def __exit__(self, *_: object) -> None:
        self._connection.disconnect()


def read_result(record: TaskRecord) -> Any:
    """What a finished task returned. Raises TaskFailed or TaskCancelled for one that did not succeed."""
    if record.state is TaskState.DEAD:
        reason = record.error.partition("\n")[0] or "no reason was given"
        raise TaskFailed(f"task {record.id} ({record.type}) is dead: {reason}")
    if record.state is TaskState.CANCELLED:
        raise TaskCancelled(f"task {record.id} ({record.type}) was cancelled")
    return decode(record.result or b"")


def gone(task_id: str) -> TaskGone:
    """The error for a task that is not there."""
    return TaskGone(f"no task {task_id}: it never was, or it finished and is no longer kept; see the option keep")


def timed_out(task_id: str, limit_s: float | None, record: TaskRecord) -> TaskTimeout:
    """The error for a wait that was too short."""
    return TaskTimeout(f"task {task_id} is still {record.state} after {limit_s:g} s; it goes on, ask again later")
