"""Calls about single existing tasks: show, cancel, requeue, delete.

The reply is 'unknown' when a call that changes tasks was sent again and may have been applied the first time.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from jobrunner.broker.call import Call, ScriptCommand, command, text, texts
from jobrunner.broker.keys import Keys, QueueKeys, tag_of_id
from jobrunner.broker.resp import Arg
from jobrunner.broker.shards import is_shard, whole_queue

if TYPE_CHECKING:
    from jobrunner.task_record import TaskRecord

_show = ScriptCommand("task_read", lambda reply: reply)
_cancel = ScriptCommand("cancel", text, unsure=(b"gone",))
_requeue = ScriptCommand("requeue", texts, unsure=(b"not_dead", b"gone"))
_delete = ScriptCommand("delete", text, unsure=(b"gone",))
_remove = ScriptCommand("remove", texts, unsure=(b"gone",))
_run_now = ScriptCommand("run_now", texts, unsure=(b"not_scheduled",))


def _record(tag: str, task_id: str, reply: list[bytes]) -> "TaskRecord | None":
    from jobrunner.task_record import read_record  # a program that only enqueues reads none

    if not reply:
        return None
    fields = {name.decode("utf-8", "replace"): value for name, value in zip(reply[2::2], reply[3::2], strict=True)}
    fields["id"] = task_id.encode()  # the key has this id, even if the hash has a damaged one
    return read_record(reply[0].decode(), reply[1].decode(), fields, tag=tag)


def stored_payload(keys: QueueKeys, task_id: str) -> Call[tuple[bytes | None, bytes | None]]:
    """The stored payload and encoding of a task; None for a missing value."""
    return command("HMGET", keys.task(task_id), "payload", "encoding", read=lambda reply: (reply[0], reply[1]))


def how_many_exist(keys: QueueKeys, task_ids: Iterable[str]) -> Call[int]:
    """The number of these tasks that have a hash."""
    return command("EXISTS", *map(keys.task, task_ids), read=int)


def show(keys: Keys, task_id: str, *, queue: str | None = None, awaited: bool = False) -> "Call[TaskRecord | None]":
    """Reads one task with its state; None when there is no such task. `queue` is required for a user-chosen id; an id
    that names a shard of `queue` is read from that shard. `awaited`: the server publishes the end of the task."""
    tag = tag_of_id(task_id)
    if queue is not None and (tag is None or not is_shard(tag) or whole_queue(tag) != keys.queue(queue).tag):
        tag = keys.queue(queue).tag
    assert tag is not None, "the client asks for the queue of an id of the user's own"
    base = keys.tag_base(tag)
    call = _show.with_keys(
        (base + b"task:" + task_id.encode(), base + b"waiters"),
        base=base,
        tag=tag,
        id=task_id,
        **{"await": "1" if awaited else ""},
    )
    return replace(call, read=partial(_record, tag, task_id))


def headers(keys: QueueKeys, task_id: str) -> Call[bytes | None]:
    """The stored headers of a task; None when the task has no headers or is gone."""
    return command("HGET", keys.tasks + task_id.encode(), "headers", read=lambda reply: reply)


Leave = Literal["", "dead", "alive"]
"""The tasks that a cancellation leaves unchanged: none, dead tasks, or tasks that are not dead."""


def cancel(keys: QueueKeys, task_id: str, *, keep_ms: int, leave: Leave = "") -> Call[str]:
    """Cancels a task. Reply: 'ok', 'posted' (ok, and its flow is to be notified), 'reserved' (the task runs and is
    asked to stop) or 'gone', also for a task that `leave` excludes."""
    return _cancel.on(keys, tasks=keys.tasks, finished=keys.finished, id=task_id, keep_ms=max(keep_ms, 1), left=leave)


def requeue(
    keys: QueueKeys,
    task_ids: Sequence[str],
    *,
    start_ms: float = 0,
    step_ms: float = 0,
    fields: Sequence[Arg] = (),
) -> Call[list[str]]:
    """Puts dead tasks back. Reply for each id: 'ok', 'not_dead' or 'gone'.

    The first task is due `start_ms` from now, each further task `step_ms` after the one before; `fields` (field, value,
    ...) are set in the same step.
    """
    return _requeue.on(
        keys,
        rest=[*fields, *task_ids],
        tasks=keys.tasks,
        start_ms=start_ms,
        step_ms=step_ms,
        changed=len(fields),
    )


def delete(keys: QueueKeys, task_id: str) -> Call[str]:
    """Ends the lease of a task, whichever worker holds it, and deletes the task. Reply: 'ok', 'gone' or
    'not_reserved'."""
    return _delete.on(keys, tasks=keys.tasks, id=task_id)


def remove(keys: QueueKeys, task_ids: Sequence[str], *, dead_only: bool = False) -> Call[list[str]]:
    """Deletes tasks without a lease; with `dead_only` only dead tasks. Reply for each id: 'ok', 'reserved' or
    'gone'."""
    return _remove.on(keys, rest=task_ids, tasks=keys.tasks, dead_only="1" if dead_only else "")


def run_now(keys: QueueKeys, task_ids: Sequence[str]) -> Call[list[str]]:
    """Moves scheduled tasks to waiting. Reply for each id: 'ok' or 'not_scheduled'."""
    return _run_now.on(keys, rest=task_ids, tasks=keys.tasks)
