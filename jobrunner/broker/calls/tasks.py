"""Calls about single tasks: enqueue, show, cancel, requeue, delete."""

from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter

from msgspec.structs import replace

from jobrunner.attempt import due_ms
from jobrunner.broker.call import Call, Verb, Word, command
from jobrunner.broker.keys import Keys, QueueKeys, tag_of_id
from jobrunner.broker.replies import text, texts
from jobrunner.errors import QueueFull
from jobrunner.seal import Bound, Seal
from jobrunner.task import Task, TaskRecord, read_record


def _record(seal: Seal | None, tag: str, task_id: str, reply: list[bytes]) -> TaskRecord | None:
    if not reply:
        return None
    fields = {name.decode("utf-8", "replace"): value for name, value in zip(reply[2::2], reply[3::2], strict=True)}
    fields["id"] = task_id.encode()  # whatever the hash says: by this one it is found
    return read_record(reply[0].decode(), reply[1].decode(), fields, seal=seal, tag=tag)


_enqueue: Verb[list[bool]] = Verb("enqueue", lambda reply: reply)
_unique = Verb("unique", lambda reply: reply)
_show = Verb("show", lambda reply: reply)
_cancel = Verb("cancel", text)
_requeue = Verb("requeue", texts)
_delete = Verb("delete", text)
_remove = Verb("remove", texts)
_hasten = Verb("hasten", texts)


def enqueue(keys: QueueKeys, tasks: Iterable[Task]) -> Call[list[bool]]:
    """All tasks into one queue, or none. Reply: beside the tasks, whether each is new (False: its id exists).

    The reply is read as QueueFull when the queue may not hold so many more.
    """
    sent = list(tasks)
    if keys.seal is not None:
        sent = [sealed(keys, task) for task in sent]
    alike = len(sent) == 1 or len(set(map(_traits, sent))) == 1
    shared = task_fields(sent[0]) if alike else []
    words: list[Word] = ["queue", keys.name, *shared]
    for task in sent:
        own = [] if alike else task_fields(task)
        words += (task.id, task.payload, _wishes(task, len(own)), *own)
    read = partial(_are_new, keys.name, len(sent))
    return _enqueue.on(keys, rest=words, read=read, tasks=keys.tasks, shared=2 + len(shared))


def _wishes(task: Task, own: int) -> str:
    """Priority, due time and the number of words of its own; '' for a task that has none of these, as most."""
    priority, due = "" if task.priority is None else task.priority, due_word(task)
    return f"{priority} {due} {own}" if own or priority != "" or due != "" else ""


def enqueue_unique(keys: QueueKeys, task: Task) -> Call[tuple[str, str]]:
    """One task under its lock. Reply: ('new', 'replaced', 'rescheduled' or 'clash', id of the task that is there)."""
    lock = task.lock
    assert lock is not None, "only a task with a lock is enqueued so"
    task = sealed(keys, task)
    call = _unique.with_keys(
        (keys.waiting, keys.scheduled, keys.settings, keys.counters, keys.arrival, keys.wake, keys.unique(lock.digest)),
        rest=["payload", task.payload, *task_fields(task)],
        tasks=keys.tasks,
        base=keys.base,
        tag=keys.tag,
        queue=keys.name,
        id=task.id,
        priority="" if task.priority is None else task.priority,
        due=due_word(task),
        lasts=lock.lasts,
        ttl_ms=lock.ttl_ms,
        on_clash=lock.on_clash if lock.on_clash in ("replace", "reschedule") else "",
    )
    return replace(call, read=partial(_placed, keys.name))


def sealed(keys: QueueKeys, task: Task) -> Task:
    """The task as it is stored. One that may take the place of another, under that one's id, is bound to their lock."""
    if keys.seal is None:
        return task
    replaces = task.lock is not None and task.lock.on_clash == "replace"
    instead = f"lock:{task.lock.digest}" if replaces and task.lock is not None else ""
    bound = Bound(task.id, task.type, keys.tag)
    payload, encoding = keys.seal.close(task.payload, task.encoding, bound, instead=instead)
    return replace(task, payload=payload, encoding=encoding)


def _placed(queue: str, reply: list[bytes] | bytes) -> tuple[str, str]:
    if isinstance(reply, bytes):
        raise full(queue, 1)
    return reply[0].decode("utf-8", "replace"), reply[1].decode("utf-8", "replace")


_MORE = ("keepalive_ms", "max_attempts", "max_expiries", "expires_in_ms", "encoding", "headers", "then")
"""Optional fields that a hand-out must look at: the hash says with `more` that it has some."""
_PLAIN = ("priority", "key")
_traits = attrgetter("type", *_MORE, *_PLAIN)
"""All that becomes a field of the hash beside the payload; most batches have it in common and send it once."""


def task_fields(task: Task) -> list[Word]:
    """The fields of a task's hash that its script does not set itself, as field, value, ..."""
    return ["type", task.type, *task_options(task)]


def _are_new(queue: str, total: int, known: list[int] | bytes) -> list[bool]:
    if known == b"full":
        raise full(queue, total)
    flags = [True] * total
    for position in known:
        flags[int(position) - 1] = False
    return flags


def full(queue: str, more: int) -> QueueFull:
    """The error for tasks that a queue has no room for."""
    return QueueFull(
        f"queue {queue!r} has no room for {more} more: its max_size is reached and nothing was added; try again later, "
        "or raise max_size"
    )


def task_options(task: Task) -> list[Word]:
    """The optional fields of a task's hash, as field, value, ..."""
    words: list[Word] = []
    for field in _MORE:
        value = getattr(task, field)
        if value is not None and value != "":
            words += (field, value)
    if words:
        words += ("more", 1)
    for field in _PLAIN:
        value = getattr(task, field)
        if value is not None:
            words += (field, value)
    return words


def due_word(task: Task) -> str:
    """When a task is due, as scripts read it."""
    if task.delay_ms is not None:
        return f"+{task.delay_ms!r}" if task.delay_ms > 0 else ""
    return "" if task.at_ms is None else repr(task.at_ms)


def show(keys: Keys, task_id: str, *, queue: str | None = None, awaited: bool = False) -> Call[TaskRecord | None]:
    """One task as it stands, or None. `queue` is needed for an id of the user's own. `awaited`: publish its end."""
    tag = tag_of_id(task_id) if queue is None else keys.queue(queue).tag
    assert tag is not None, "the client asks for the queue of an id of the user's own"
    base = keys.tag_base(tag)
    call = _show.with_keys(
        (base + b"task:" + task_id.encode(), base + b"awaited"),
        base=base,
        tag=tag,
        id=task_id,
        **{"await": "1" if awaited else ""},
    )
    return replace(call, read=partial(_record, keys.seal, tag, task_id))


def headers(keys: QueueKeys, task_id: str) -> Call[bytes | None]:
    """The headers of a task as they are stored; None when it has none or is gone."""
    return command("HGET", keys.tasks + task_id.encode(), "headers", read=lambda reply: reply)


def due_since(keys: QueueKeys, task_id: str) -> Call[float]:
    """When a task that is handed out was due, Unix ms; 0 when it is gone or damaged."""

    def read(reply: list[bytes | None]) -> float:
        enqueue_time, place, priority = reply
        if place is not None:
            return due_ms(place, priority)
        return float(enqueue_time) if enqueue_time and enqueue_time.replace(b".", b"", 1).isdigit() else 0.0

    return command("HMGET", keys.tasks + task_id.encode(), "enqueue_time", "place", "priority", read=read)


def cancel(keys: QueueKeys, task_id: str, *, keep_ms: int) -> Call[str]:
    """Reply: 'ok', 'posted' (ok, of a flow that has to be told), 'reserved' (it runs: asked to stop) or 'gone'."""
    return _cancel.on(keys, tasks=keys.tasks, finished=keys.finished, id=task_id, keep_ms=max(keep_ms, 1))


def requeue(
    keys: QueueKeys,
    task_ids: Sequence[str],
    *,
    start_ms: float = 0,
    step_ms: float = 0,
    fields: Sequence[Word] = (),
) -> Call[list[str]]:
    """Reply beside the ids: 'ok', 'not_dead' or 'gone'.

    The first is due `start_ms` from now, each further one `step_ms` behind the one before; `fields` (field, value, ...)
    are set in the same step.
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
    """Reply: 'ok', 'gone' or 'not_reserved'."""
    return _delete.on(keys, tasks=keys.tasks, id=task_id)


def remove(keys: QueueKeys, task_ids: Sequence[str]) -> Call[list[str]]:
    """Deletes tasks that no worker has. Reply beside the ids: 'ok', 'reserved' or 'gone'."""
    return _remove.on(keys, rest=task_ids, tasks=keys.tasks)


def hasten(keys: QueueKeys, task_ids: Sequence[str]) -> Call[list[str]]:
    """Has scheduled tasks wait at once. Reply beside the ids: 'ok' or 'not_scheduled'."""
    return _hasten.on(keys, rest=task_ids, tasks=keys.tasks)
