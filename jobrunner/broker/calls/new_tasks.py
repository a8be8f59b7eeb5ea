"""Calls that add tasks: a single plain task, many tasks into one queue, or a unique task under its lock."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from jobrunner.broker.call import NOTED_S, Call, ScriptCommand, resp_args
from jobrunner.broker.keys import QueueKeys, split_queue
from jobrunner.broker.resp import Arg, packed_head
from jobrunner.broker.shards import is_shard, whole_queue
from jobrunner.errors import DuplicateTask, QueueFull
from jobrunner.settings import DEFAULT_RESULT_TTL_S
from jobrunner.task import Task

T = TypeVar("T")


class EnqueueReply(list[bool]):
    """Whether each task is new. `is_first`: the queue is new, or was deleted since it was last used."""

    is_first = False


_ONE_NEW = EnqueueReply([True])
_TAG_AT = 28
"""Position of the hyphen in an id that jobrunner generated; the hash tag follows."""
_enqueue: ScriptCommand[list[bool]] = ScriptCommand("enqueue", lambda reply: reply, repeat_s=NOTED_S)
_unique = ScriptCommand("enqueue_unique", lambda reply: reply, repeat_s=NOTED_S)
_TAIL = 3
"""The number of arguments of a plain task: id, payload, and '' for priority and due time."""
_MOST_KINDS = 1000
_last_calls: dict[tuple[object, ...], Call[list[bool]]] = {}
"""The last call for a plain task, by queue and kind of task."""


class UniqueReply(NamedTuple):
    """The outcome for a unique task, and id and queue of the task that now has the lock. `is_first`: see
    EnqueueReply."""

    word: str
    id: str
    queue: str
    is_first: bool = False


def enqueue(keys: QueueKeys, tasks: Iterable[Task], *, clash: str = "existing") -> Call[list[bool]]:
    """Adds all tasks to one queue, or none. Reply: for each task whether it is new (False: its id exists).

    Reading the reply raises QueueFull when the tasks exceed the capacity of the queue, and with `clash` "raise"
    DuplicateTask when an id exists. Sent again after a lost reply, the call adds nothing and gets the same reply.
    """
    sent = list(tasks)
    name = _name_of_call(sent)
    alike = len(sent) == 1 or len(set(map(_traits_of, sent))) == 1
    shared = task_fields(sent[0]) if alike else []
    words: list[Arg] = ["queue", keys.name, *shared]
    if alike:
        are_later = any([task.delay_ms is not None or task.at_ms is not None for task in sent])  # noqa: C419  faster
        has_wishes = are_later or sent[0].priority is not None
        for task in sent:
            words += (task.id, task.payload, _wishes(task, 0) if has_wishes else "")
    else:
        for task in sent:
            own = task_fields(task)
            words += (task.id, task.payload, _wishes(task, len(own)), *own)
    read = partial(_are_new, keys.name, [task.id for task in sent] if clash == "raise" else len(sent))
    clash = clash if clash == "raise" else ""
    shares = 2 + len(shared)
    call = _enqueue.on(keys, rest=words, read=read, tasks=keys.tasks, call=name, clash=clash, shared=shares)
    return call if name else _known_for(call, sent)


def _name_of_call(sent: Sequence[Task]) -> str:
    """The idempotency key of an enqueue, derived from its tasks: the same tasks, sent again, have the same key.

    A user-chosen id without a `sending` does not identify one enqueue, so the key is then random. Empty for tasks whose
    ids stay known after they finish.
    """
    if len(sent) == 1:
        return "" if sent[0].kept_s else _name_of_one(sent[0])
    if all([task.kept_s for task in sent]):  # noqa: C419
        return ""
    if not all(map(_tells_when_sent, sent)):
        return os.urandom(16).hex()
    names = "".join([task.id for task in sent]), "".join([task.sending for task in sent])
    return hashlib.sha256("\0".join(names).encode()).hexdigest()


def _name_of_one(task: Task) -> str:
    return task.id + task.sending if _tells_when_sent(task) else os.urandom(16).hex()


def _known_for(call: Call[T], sent: Sequence[Task]) -> Call[T]:
    """The call for tasks whose ids stay known for longer than the note of a call, even when they finish at once. It may
    be repeated for the shortest of these times, and no longer than a task stays that a consumer took with `pop` or
    `delete`."""
    known_s = min([task.kept_s for task in sent], default=0.0)
    return replace(call, repeat_s=max(min(known_s, DEFAULT_RESULT_TTL_S) - 1.0, NOTED_S))


def _tells_when_sent(task: Task) -> bool:
    return task.sending != "" or task.id[_TAG_AT : _TAG_AT + 1] == "-"


def _wishes(task: Task, own: int) -> str:
    """Priority, due time and the number of the task's own words; '' for most tasks, which have none of these."""
    if not own and task.priority is None and task.delay_ms is None and task.at_ms is None:
        return ""
    priority, due = "" if task.priority is None else task.priority, due_word(task)
    return f"{priority} {due} {own}" if own or priority != "" or due != "" else ""


def is_plain(task: Task) -> bool:
    """Whether a task is due at once, needs no note of its enqueue, and has the default priority and no partition,
    headers or joins."""
    return (
        task.kept_s > 0 and task.delay_ms is None and task.at_ms is None and task.priority is None and task.key is None
        and task.headers is None and task.then is None
    )  # fmt: skip


def enqueue_plain(keys: QueueKeys, task: Task) -> Call[list[bool]]:
    """`enqueue` for a single plain task without a lock, made from the last call for a task of the same kind.

    Most programs enqueue few kinds of tasks, one task at a time. Making and packing the same words for each task took a
    third of the client's time.
    """
    kind = keys.waiting, task.kept_s, _traits_of(task)
    like = _last_calls.get(kind)
    if like is None:
        if len(_last_calls) >= _MOST_KINDS:
            _last_calls.clear()
        call = enqueue(keys, [task])
        like = _last_calls[kind] = replace(call, head=packed_head(resp_args(call, b""), _TAIL))
    return replace(like, words=[*like.words[:-_TAIL], task.id, task.payload, ""])


def enqueue_unique(keys: QueueKeys, task: Task, *, bound_to: tuple[str, str] | None = None) -> Call[UniqueReply]:
    """Adds a task under its lock. Reply: 'new', 'exists', 'replaced', 'rescheduled' or 'clash', and the task that now
    has the lock.

    `bound_to` is the id and the full queue name of the task that the payload is encrypted or signed for; None for a
    plain payload. The new payload of a replaced task has to be encrypted for that task, whose id and queue only the
    server knows: the reply 'encrypt_for' names them and changes nothing, and the caller makes the call again.
    """
    lock = task.lock
    assert lock is not None, "a unique task has a lock"
    changes_another = lock.on_clash in ("replace", "reschedule")
    call = _unique.with_keys(
        (keys.waiting, keys.scheduled, keys.settings, keys.counters, keys.arrival, keys.wake, keys.unique(lock.digest)),
        rest=["payload", task.payload, "lock", lock.digest, *task_fields(task)],
        tasks=keys.tasks,
        base=keys.base,
        tag=keys.tag,
        queue=keys.name,
        call=_name_of_one(task) if changes_another else _name_of_call([task]),
        id=task.id,
        priority="" if task.priority is None else task.priority,
        due=due_word(task),
        lasts=lock.lasts,
        ttl_ms=lock.ttl_ms,
        on_clash=lock.on_clash if changes_another else "",
        bound_to="" if bound_to is None else " ".join(bound_to),
    )
    call = replace(call, read=partial(_placed, keys.name))
    return call if changes_another else _known_for(call, [task])  # only the note proves a change of another task


def _placed(queue: str, reply: list[Any]) -> UniqueReply:
    if reply[0] == b"full":
        raise full(queue, 1, reply[1])
    word, task_id, *its_queue = (part.decode("utf-8", "replace") for part in reply)
    return UniqueReply(word, task_id, its_queue[0] if its_queue else queue, len(its_queue) > 1)


_MORE = ("keepalive_ms", "max_attempts", "max_stalled", "expires_in_ms", "encoding", "headers", "then")
"""Optional fields that a reserve must read: the field `more` marks a hash with any of them."""
_PLAIN = ("priority", "key")
_of_more, _of_plain = attrgetter(*_MORE), attrgetter(*_PLAIN)
_NO_MORE = _of_more(Task(id="", queue="", payload=b""))
_traits_of = attrgetter("type", *_MORE, *_PLAIN)
"""The fields of the hash besides the payload, which most batches have in common and send once."""


def task_fields(task: Task) -> list[Arg]:
    """The fields of a task's hash that the enqueue script does not set itself, as field, value, ..."""
    return ["type", task.type, *task_options(task)]


def _are_new(queue: str, sent: int | list[str], known: list[Any]) -> EnqueueReply:
    if not known and sent == 1:
        return _ONE_NEW
    total = sent if isinstance(sent, int) else len(sent)
    if not known:
        return EnqueueReply([True] * total)
    if known[0] == b"full":
        raise full(queue, total, known[1])
    if known[0] == b"exists" and isinstance(sent, list):
        raise clashing(queue, [sent[position - 1] for position in known[1:]])
    flags = EnqueueReply([True] * total)
    for position in known:
        if position:
            flags[int(position) - 1] = False
        else:
            flags.is_first = True
    return flags


def clashing(queue: str, ids: list[str]) -> DuplicateTask:
    """The error for ids that exist already, or were passed twice."""
    more = f" and {len(ids) - 1} others" if len(ids) > 1 else ""
    return DuplicateTask(
        f"queue {queue!r}: id {ids[0]!r}{more} exists already, or is given twice; nothing was added", ids[0], ids
    )


def locked(queue: str, task_id: str) -> DuplicateTask:
    """The error for a unique task while `task_id` holds its lock. Of a pipeline it may be at any station."""
    tag, _ = split_queue(queue)
    where = f"queue {queue!r}" if tag == queue else f"pipeline {tag!r}"
    return DuplicateTask(f"a task like this one, {task_id}, is in {where} already", task_id)


WAIT_ADVICE = ", wait for room (wait=…)"
"""In the error for a full queue, for callers that can wait."""


def full(queue: str, more: int, bound: int) -> QueueFull:
    """The error for `more` tasks beyond the capacity of a queue, which is `bound`."""
    part = "part of " if is_shard(queue) else ""
    never = f"send at most {bound} at once" if more > bound > 0 else f"try again later{WAIT_ADVICE}"
    return QueueFull(
        f"queue {queue!r} has no room for {more} more: it may hold {bound} (its {part}max_size), and nothing was added"
        f"; {never}, or raise max_size",
        wanted=more,
        queue=whole_queue(queue),
        max_size=bound,
    )


def task_options(task: Task) -> list[Arg]:
    """The optional fields of a task's hash, as field, value, ..."""
    words: list[Arg] = []
    if (more := _of_more(task)) != _NO_MORE:
        for field, value in zip(_MORE, more, strict=True):
            if value is not None and value != "":
                words += (field, value)
        words += ("more", 1)
    for field, value in zip(_PLAIN, _of_plain(task), strict=True):
        if value is not None:
            words += (field, value)
    return words


def due_word(task: Task) -> str:
    """The due time of a task as an argument of scripts: '+' and ms from now, Unix ms, or '' for at once."""
    if task.delay_ms is not None:
        return f"+{task.delay_ms!r}" if task.delay_ms > 0 else ""
    return "" if task.at_ms is None else repr(task.at_ms)
