"""Calls about tasks under a lease: reserve, commit, fail, release, extend, move, fan_out; and pop.

A report is a tuple that begins with the task's id and the lease's number as text; a call takes many reports and replies
one verdict for each. Lease numbers are random, so that no two leases of a task share one, and are no text, because the
server compares many of them at once in a sorted set. The verdict is 'unknown' where a report was sent again and may
have been taken the first time.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, groupby
from math import isfinite
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.attempt import Attempt, add_rare, number_from
from jobrunner.broker.call import Call, ScriptCommand, command, text, texts
from jobrunner.broker.keys import QueueKeys
from jobrunner.broker.resp import Arg

if TYPE_CHECKING:
    from jobrunner.error_groups import ErrorGroup


class Reservation(msgspec.Struct, frozen=True):
    """The reply of a reserve. `next_event_ms`: the instant to reserve again; None when no task is known to become
    due."""

    now_ms: float
    next_event_ms: float | None
    keepalive_ms: float
    """Length of the leases of tasks without a keepalive of their own."""
    keeps_history: bool
    attempts: list[Attempt]

    @property
    def is_cut_short(self) -> bool:
        """Whether there may be more tasks now: the bytes of the payloads, or a bound on the script, ended it."""
        return self.next_event_ms is not None and self.next_event_ms <= self.now_ms


_BEFORE_TASKS, _WORDS_OF_A_TASK = 6, 5
"""Lengths of the parts of the reply of lua/reserve.lua: its head, and each task."""


def is_full(reply: object, count: int) -> bool:
    """Whether this reply of the server to a reserve has the `count` requested tasks."""
    return isinstance(reply, list) and len(reply) == _BEFORE_TASKS + count * _WORDS_OF_A_TASK


_reserve = ScriptCommand("reserve", lambda reply: reply, repeatable=False, found_nothing=partial(is_full, count=0))
_pop = ScriptCommand("pop", lambda reply: reply, repeatable=False)
_OVER = (b"gone", b"not_reserved", b"lost")
_commit = ScriptCommand("commit", lambda reply: reply, unsure=(b"gone",))
_fail = ScriptCommand("fail", texts, unsure=_OVER)
_release = ScriptCommand("release", texts, unsure=_OVER)
_crash = ScriptCommand("crash", texts, unsure=_OVER)
_extend = ScriptCommand("extend", texts)
_progress = ScriptCommand("progress", text)
_move = ScriptCommand("move", texts, unsure=_OVER)
_fan_out = ScriptCommand("fan_out", lambda reply: [text(reply)], unsure=_OVER)


def _reservation(queue: str, lease: int, reply: list[Any]) -> Reservation:
    next_event_ms = float(reply[1]) if reply[1] else None
    attempts = _read_attempts(queue, lease, reply)
    return Reservation(float(reply[0]), next_event_ms, float(reply[3]), reply[5] == 1, attempts)


def _read_attempts(queue: str, lease: int, reply: list[Any]) -> list[Attempt]:
    """The attempts in a reply of lua/reserve.lua, whose first lease has the number `lease`.

    A damaged number in a task's hash reads as if it were missing, never as an error.
    """
    now_ms, usual_end_ms, usual_keepalive_ms = float(reply[0]), float(reply[2]), float(reply[3])
    usual_limit = int(reply[4])
    attempts, types = [], {b"": "", None: ""}
    words = (reply[at::_WORDS_OF_A_TASK] for at in range(_BEFORE_TASKS, _BEFORE_TASKS + _WORDS_OF_A_TASK))
    tasks = zip(*words, strict=True)
    for token, (raw_id, raw_type, payload, enqueue_time, more) in enumerate(tasks, lease):
        try:
            task_id = raw_id.decode()
        except UnicodeDecodeError:
            task_id = raw_id.decode("utf-8", "replace")
        type_ = types.get(raw_type)
        if type_ is None:
            type_ = types[raw_type] = raw_type.decode("utf-8", "replace")
        try:
            enqueue_ms = float(enqueue_time or 0.0)
        except ValueError:
            enqueue_ms = 0.0
        attempt = Attempt(
            queue, task_id, str(token), usual_end_ms, usual_keepalive_ms, type_, payload, 1, 0,
            enqueue_ms if isfinite(enqueue_ms) else 0.0, usual_limit, None,
        )  # fmt: skip
        if more is not None:
            add_rare(attempt, now_ms, *more)
        attempts.append(attempt)
    return attempts


REPLY_BYTES = 1 << 20
"""Bytes of payloads in one reply to a worker."""
CALL_BYTES = 16 << 20
"""Bytes of payloads that one call by hand takes. With many more the script blocks the server for seconds, and the
client stops waiting for the reply: reserved items would stay under leases without a holder, popped items be lost."""


def reserve(
    keys: QueueKeys, count: int, *, token: str | int, keepalive_ms: int | None = None, most_bytes: int = CALL_BYTES
) -> Call[Reservation]:
    """Reserves up to `count` tasks, first in line. `token` must be new for each call: the number of the first lease,
    from which the others count on, or a text that a number is made from. The reply is full with `most_bytes` of
    payloads, or one task: a worker reserves again at once, and blocks the server for a shorter time per call."""
    lease = token if isinstance(token, int) else number_from(token)
    given = "" if keepalive_ms is None else keepalive_ms
    read = partial(_reservation, keys.name, lease)
    return _reserve.on(
        keys, read=read, tasks=keys.tasks, count=count, first_lease=lease, keepalive_ms=given,
        most_bytes=most_bytes,
    )  # fmt: skip


def pop(keys: QueueKeys, count: int, *, most_bytes: int = CALL_BYTES) -> Call[list[list[Any]] | None]:
    """Takes up to `count` tasks, and `most_bytes` of payloads or one task, out of the queue, at most once. Reply: lists
    of id, type, payload, headers (bytes); None when there may be tasks behind those that the call looked at."""
    return _pop.on(keys, tasks=keys.tasks, count=count, most_bytes=most_bytes)


CommitReport = (
    tuple[str, str, int, str, bytes]
    | tuple[str, str, int, str, bytes, bytes]
    | tuple[str, str, int, str, bytes, bytes, str]
)


CommitGroup = tuple[tuple[Arg, ...], list[str]]
"""The fields that reports have in common (keep_ms, outcome, result, then, type), the run time of each report (ms with
spaces between, or empty), and their ids and lease numbers."""
_NO_MORE, _NO_RUNS = (b"", b""), b""


def commit(keys: QueueKeys, reports: Iterable[CommitReport]) -> Call[list[str]]:
    """Reports: id, token, keep_ms, outcome, result, for a task of a flow its `then`, and the type.

    The outcome is 'succeeded', 'cancelled' or 'dropped'; the last is reported as cancelled and counted on its own.
    Reply: 'ok', or why it was refused.
    """
    groups: list[CommitGroup] = [
        ((*said, *_NO_MORE[len(said) - 3 :], _NO_RUNS), [word for report in group for word in report[:2]])
        for said, group in groupby(reports, itemgetter(slice(2, None)))
    ]
    return commit_groups(keys, groups)


def commit_groups(keys: QueueKeys, groups: Iterable[CommitGroup]) -> Call[list[str]]:
    """As `commit`, for reports that are grouped by the fields they have in common."""
    words: list[Arg] = []
    total = 0
    for said, leases in groups:
        words += (len(leases) // 2, *said, *leases)
        total += len(leases) // 2
    read = partial(_commit_verdicts, total)
    return _commit.on(keys, rest=words, read=read, tasks=keys.tasks, queue=keys.name, finished=keys.finished)


def _commit_verdicts(total: int, reply: list[Any]) -> list[str]:
    verdicts = ["ok"] * total
    for position, word in zip(reply[::2], reply[1::2], strict=True):
        verdicts[position - 1] = word.decode()
    return verdicts


def fail(
    keys: QueueKeys, reports: Iterable[tuple[str, str, int, str, str]], *, worker: str = "",
    groups: "Sequence[ErrorGroup] | None" = None, is_noted: Callable[[str], bool] = lambda _: True,
) -> Call[list[str]]:  # fmt: skip
    """Reports: id, token, delay_ms, 'retry', 'dead' or 'unbegun', error. `worker`: id of the worker that ran them.
    `groups`: the error group of each report; by default the group of its error text. Each group is sent once;
    `is_noted` tells by the group's id whether the server records the instant at which the group was last seen."""
    made = list(reports)
    numbers: dict[str, int] = {}
    defined: list[Arg] = []
    words: list[Arg] = []
    for report, group in zip(made, groups or _groups_of(one[4] for one in made), strict=True):
        if group.id not in numbers:
            numbers[group.id] = len(numbers) + 1
            defined += (*group, "1" if is_noted(group.id) else "")
        words += (*report, numbers[group.id])
    return _fail.on(
        keys, rest=(*defined, *words), tasks=keys.tasks, queue=keys.name, finished=keys.finished, worker=worker,
        groups=len(numbers),
    )  # fmt: skip


def _groups_of(errors: Iterable[str]) -> "list[ErrorGroup]":
    from jobrunner.error_groups import group_of, telling_line  # a program that only enqueues reports no error

    return [group_of("", telling_line(error)) for error in errors]


def release(keys: QueueKeys, reports: Iterable[tuple[str, str, int | str]]) -> Call[list[str]]:
    """Reports: id, token, delay_ms ('' = back to its position)."""
    return _release.on(keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name)


def crash(
    keys: QueueKeys, reports: Iterable[tuple[str, str, bool]], *, reason: str, worker: str = ""
) -> Call[list[str]]:
    """Reports on tasks that had begun when their worker died: id, token, whether the task may be to blame. `reason`:
    how the worker died; `worker`: its id, if that is known."""
    words = chain.from_iterable((task_id, token, "1" if suspect else "") for task_id, token, suspect in reports)
    return _crash.on(keys, rest=words, tasks=keys.tasks, queue=keys.name, reason=reason, worker=worker)


def taken_in(keys: QueueKeys, first: int, last: int) -> Call[list[tuple[str, int]]]:
    """Ids of tasks whose newest lease has a number from `first` to `last`, each with its number."""
    return command("ZRANGEBYSCORE", keys.leases, first, last, "WITHSCORES", read=_read_numbered)


def _read_numbered(reply: list[bytes]) -> list[tuple[str, int]]:
    return [(text(task_id), int(float(number))) for task_id, number in zip(reply[::2], reply[1::2], strict=True)]


def extend(keys: QueueKeys, reports: Iterable[tuple[str, str, float]]) -> Call[list[str]]:
    """Reports: id, token, keepalive_ms. Reply: the new lease end (Unix ms; '!' in front: asked to stop), or why not."""
    return _extend.on(keys, rest=chain.from_iterable(reports), tasks=keys.tasks, queue=keys.name)


def teach_extend() -> Call[bytes]:
    """Loads the script of `extend` into the server, so that the first `extend` costs one round trip."""
    return command("SCRIPT", "LOAD", _extend.script.source, read=bytes)


def progress(keys: QueueKeys, task_id: str, token: str, note: bytes) -> Call[str]:
    """Stores the progress of a running task. Reply: 'ok', 'stop' (asked to stop), or why it was refused."""
    return _progress.on(keys, tasks=keys.tasks, queue=keys.name, id=task_id, lease=token, progress=note)


MoveReport = tuple[str, str, int | str, float, Sequence[Arg]]


def move(
    keys: QueueKeys, to: QueueKeys, reports: Iterable[MoveReport], *, max_hops: int = 0, over: bool = False
) -> Call[list[str]]:
    """Moves tasks into another queue of the same tag, or into the same queue. `over`: also when that queue is full.

    Reports: id, token, priority ('' = as it was), delay_ms, fields to set in the same step (field, value, ...).
    Reply: 'ok', or why it was refused, also 'hops' (the task made `max_hops` moves; 0: no limit) and 'full'.
    """
    leaving = (keys.pending, keys.leases, keys.settings, keys.counters, keys.wake)
    entering = (to.waiting, to.scheduled, to.settings, to.counters, to.arrival, to.wake)
    words: list[Arg] = []
    for *report, fields in reports:
        words += (*report, len(fields), *fields)
    return _move.with_keys(
        leaving + entering,
        rest=words,
        tasks=keys.tasks,
        queue=keys.name,
        to_queue=to.name,
        max_hops=max_hops,
        over=int(over),
    )


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A new task that a task under a lease creates. `fields`: of its hash, without the queue."""

    id: str
    to: QueueKeys
    fields: Sequence[Arg]
    priority: int | None = None
    delay_ms: float = 0
    over: bool = False
    """Whether the task goes in although the queue is full."""


def fan_out(
    keys: QueueKeys, task_id: str, token: str, children: Sequence[Child], *, keep_ms: int = 0, then: bytes = b"",
    max_hops: int = 0,
) -> Call[list[str]]:  # fmt: skip
    """Ends a task as succeeded and creates its children in queues of the same tag, in one step.

    A child whose id exists is left as it is. Reply: one word, 'ok', or why it was refused, also 'hops' and 'full'.
    """
    targets = list({child.to.name: child.to for child in children}.values())
    places = {to.name: place for place, to in enumerate(targets)}
    words: list[Arg] = []
    for child in children:
        fields = ("queue", child.to.name, *child.fields)
        priority = "" if child.priority is None else child.priority
        words += (child.id, places[child.to.name], priority, child.delay_ms, int(child.over), len(fields), *fields)
    leaving = (keys.pending, keys.done, keys.leases, keys.settings, keys.counters, keys.waiters, keys.wake, keys.outbox)
    entering = [(to.waiting, to.scheduled, to.settings, to.counters, to.arrival, to.wake) for to in targets]
    return _fan_out.with_keys(
        (*leaving, *chain.from_iterable(entering)),
        rest=words,
        tasks=keys.tasks,
        queue=keys.name,
        finished=keys.finished,
        id=task_id,
        lease=token,
        keep_ms=keep_ms,
        onward=then,
        max_hops=max_hops,
    )
