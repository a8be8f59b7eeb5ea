"""The operations on one task, once for TaskHandle and AsyncTaskHandle, and on many tasks of a queue."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.broker.calls import tasks
from jobrunner.broker.calls.shards import shard_counts
from jobrunner.broker.keys import Keys, QueueKeys, check_id, check_is_text, tag_of_id
from jobrunner.broker.shards import in_partition_of, is_shard, tag_of, whole_queue
from jobrunner.client.encryption import decrypted_record
from jobrunner.client.item import check_known
from jobrunner.client.operations.flow_relay import relaying
from jobrunner.client.operations.operation import InThread, Operation, ask
from jobrunner.clock import monotonic
from jobrunner.codec import decode
from jobrunner.encryption.cipher import PayloadEncryption, is_protected_result
from jobrunner.encryption.envelope import is_stored
from jobrunner.errors import InvalidName, NotEncrypted, TaskCancelled, TaskFailed, TaskGone, TaskTimeout
from jobrunner.formatting import cut, instant
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import TaskState

if TYPE_CHECKING:
    from jobrunner.task_record import TaskRecord

_RECHECK_S = 2.0
_ERROR_WIDTH = 200
_QUEUES_TRIED = 5
KEEP_CANCELLED_MS = 60_000
"""How long a cancelled task stays readable."""
Leave = tasks.Leave


class TaskRef(msgspec.Struct, frozen=True):
    """The reference to a task: `queue` is needed for an id of the user's own."""

    keys: Keys
    encryption: PayloadEncryption | None
    id: str
    queue: str | None


def check_place(task_id: str, queue: str | None) -> None:
    """Raises InvalidName for an id of the user's own without a queue, and for an invalid name of a queue."""
    if queue is not None:
        check_is_text(queue)
    if tag_of_id(check_id(task_id)) is None and queue is None:
        raise InvalidName(f"task id {task_id!r} was not made by jobrunner; give its queue too: task(id, queue=…)")


def find(at: TaskRef, *, awaited: bool = False) -> "Operation[TaskRecord | None]":
    """Returns the record, or None; with `awaited` the server announces the end of the task. A payload in a store is not
    read."""
    record = yield from _shown(at, awaited=awaited)
    return None if record is None else decrypted_record(at.encryption, record, fetches=False)


def read_whole(at: TaskRef) -> "Operation[TaskRecord]":
    """Returns the record; reads a payload in a store, too. Raises TaskGone."""
    record = yield from _shown(at)
    if record is None:
        raise gone(at.id)
    return (yield from opened(at.encryption, record))


def _shown(at: TaskRef, *, awaited: bool = False) -> "Operation[TaskRecord | None]":
    """Reads a task. A task with an id of the user's own may be in any shard of its queue: all shards are asked when it
    is not in the queue itself."""
    record = yield from ask(tasks.show(at.keys, at.id, queue=at.queue, awaited=awaited))
    if record is not None or at.queue is None or is_shard(at.queue) or tag_of_id(at.id) is not None:
        return record
    others = (yield from ask(shard_counts(at.keys.queue(at.queue)))).names(at.queue)[1:]
    found = (yield [tasks.show(at.keys, at.id, queue=name, awaited=awaited) for name in others]) if others else ()
    return next((one for one in found if one is not None), None)


def _is_in_shard_of(queue: str, task_id: str) -> bool:
    """Whether the id has the tag of a shard of this queue other than the first."""
    tag = tag_of_id(task_id)
    return tag is not None and is_shard(tag) and whole_queue(tag) == tag_of(queue)


def opened(encryption: PayloadEncryption | None, record: "TaskRecord") -> "Operation[TaskRecord]":
    """Returns the decrypted record; reads a payload in a store, too."""
    if encryption is not None and is_stored(record.fields.get("encoding")):
        return (yield InThread(partial(decrypted_record, encryption, record)))  # type: ignore[no-any-return]
    return decrypted_record(encryption, record)


def read(at: TaskRef, *, awaited: bool = False) -> "Operation[TaskRecord]":
    """As `find`. Raises TaskGone."""
    record = yield from find(at, awaited=awaited)
    if record is None:
        raise gone(at.id)
    return record


def _meanwhile(record: "TaskRecord") -> str:
    if record.state is TaskState.WAITING:
        return f"no worker has taken it from queue {record.queue!r}: `jobrunner doctor` says why, or ask again later"
    if record.state is not TaskState.SCHEDULED or record.when is None:
        return "it goes on, ask again later"
    if record.fields.get("unknown_since"):
        return (
            f"workers of queue {record.queue!r} hand it back, as they do not know its job {record.type!r} or cannot "
            "read its payload: `jobrunner doctor` says why, or ask again later"
        )
    due = f"is due at {instant(record.when)}; ask again later"
    if record.retry_count and record.error:
        why = cut(record.error.splitlines()[0], _ERROR_WIDTH)
        return f"attempt {record.attempts} failed with {why}, and the next {due}"
    return f"it {due}"


def wait_for_result(at: TaskRef, timeout: Duration | None) -> Operation[Any]:
    """Returns the result of the job. Raises TaskFailed, TaskCancelled, TaskGone, TaskTimeout."""
    from jobrunner.client.operations.hints import TaskEndHint  # most programs wait for no task
    from jobrunner.client.operations.unserved import UNSERVED_AFTER_S, warn_of_unserved

    limit_s = None if timeout is None else seconds(timeout, option="timeout")
    began = monotonic()
    ends = None if limit_s is None else began + limit_s
    record = yield from read(at, awaited=limit_s != 0)
    channel = at.keys.queue(record.queue).finished + at.id.encode()
    while not record.state.is_final:
        left = _RECHECK_S if ends is None else min(_RECHECK_S, ends - monotonic())
        if left <= 0:
            raise TaskTimeout(f"task {at.id} is still {record.state} after {limit_s:g} s; {_meanwhile(record)}")
        if record.state is TaskState.WAITING and monotonic() - began >= UNSERVED_AFTER_S:
            yield from warn_of_unserved(at.keys, [record.queue])
        yield TaskEndHint(channel, left)
        record = yield from read(at, awaited=True)
    return read_result(record)


def cancel(at: TaskRef, *, leave: Leave = "") -> Operation[bool]:
    """Returns False when the task is finished or gone, or left alone as `leave` says. An item that moves meanwhile is
    looked for again in its next queue: it may pass several on its way through a pipeline."""
    queue = yield from _own_queue(at)
    for _ in range(_QUEUES_TRIED):
        word = yield from ask(tasks.cancel(queue, at.id, keep_ms=KEEP_CANCELLED_MS, leave=leave))
        if word == "posted":
            yield from relaying(at.keys, tags=[queue.tag])
        check_known(word, at.id)
        if word != "gone":
            return True
        record = yield from find(at)
        if record is None or record.state in (TaskState.SUCCEEDED, TaskState.CANCELLED) or str(record.state) == leave:
            return False
        queue = at.keys.queue(record.queue)
    return False


def requeue(at: TaskRef) -> Operation[bool]:
    """Returns False when the task is not dead."""
    queue = yield from _own_queue(at)
    (word,) = yield from ask(tasks.requeue(queue, [at.id]))
    check_known(word, at.id)
    return word == "ok"


def run_now(at: TaskRef) -> Operation[bool]:
    """Returns False when the task is not scheduled. Raises TaskGone."""
    record = yield from read(at)
    (word,) = yield from ask(tasks.run_now(at.keys.queue(record.queue), [at.id]))
    check_known(word, at.id)
    return word == "ok"


def requeue_all(
    keys: Keys, queue: str, ids: Sequence[str], *, start_ms: float = 0, step_ms: float = 0
) -> Operation[int]:
    """Puts dead tasks of a queue back, the first due in `start_ms`, the others `step_ms` apart; returns how many. Here
    and below ids are not checked, so that damaged ids can be handled, too."""
    return changed_by((yield from ask(tasks.requeue(keys.queue(queue), ids, start_ms=start_ms, step_ms=step_ms))))


def cancel_all(keys: Keys, queue: str, ids: Sequence[str], *, leave: Leave = "") -> Operation[int]:
    """Cancels tasks of a queue, or asks running tasks to stop; returns how many. `leave` excludes tasks that changed
    since they were found: a dead task would be deleted, a requeued task would not run."""
    at = keys.queue(queue)
    said: list[str] = yield [tasks.cancel(at, one, keep_ms=KEEP_CANCELLED_MS, leave=leave) for one in ids]
    if "posted" in said:
        yield from relaying(keys, tags=[at.tag])
    return len(ids) - said.count("gone")


def delete_all(keys: Keys, queue: str, ids: Sequence[str], *, dead_only: bool = False) -> Operation[int]:
    """Deletes tasks of a queue that no worker holds; returns how many. With `dead_only` a task that was found dead and
    is requeued by now is left."""
    at = keys.queue(queue)
    deleted = changed_by((yield from ask(tasks.remove(at, ids, dead_only=dead_only))))
    yield from relaying(keys, tags=[at.tag])
    return deleted


def changed_by(words: Sequence[str]) -> int:
    """How many tasks a call changed. After a lost reply a task that is not as it was found counts as changed."""
    return words.count("ok") + words.count("unknown")


def read_result(record: "TaskRecord") -> Any:
    """The result of a finished task. Raises TaskFailed or TaskCancelled for a task that did not succeed."""
    if record.state is TaskState.DEAD:
        reason = record.error.partition("\n")[0] or "no reason was given"
        raise TaskFailed(f"task {record.id} ({record.type}) is dead: {reason}")
    if record.state is TaskState.CANCELLED:
        raise TaskCancelled(f"task {record.id} ({record.type}) was cancelled")
    if record.unread is not None and (
        is_protected_result(record.result or b"") or isinstance(record.unread, NotEncrypted)
    ):
        raise record.unread
    return decode(record.result or b"")


def gone(task_id: str) -> TaskGone:
    """The error for a task that the server does not keep."""
    return TaskGone(f"no task {task_id}: it never was, or it finished and is no longer kept; see the option result_ttl")


def _own_queue(at: TaskRef) -> Operation[QueueKeys]:
    record = yield from find(at)
    if record is not None:
        return at.keys.queue(record.queue)
    if at.queue is None:
        raise gone(at.id)
    is_in_shard = _is_in_shard_of(at.queue, at.id)
    return at.keys.queue(in_partition_of(tag_of_id(at.id) or "", at.queue) if is_in_shard else at.queue)
