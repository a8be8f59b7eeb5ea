"""Reads the groups of failed attempts: counts, first time and release, and the number of dead tasks.

All counts are exact: the server counts in the step that applies a report.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from msgspec.structs import replace

from jobrunner.broker.call import Call
from jobrunner.broker.calls.error_groups import (
    BUCKET_MS,
    BUCKETS_KEPT,
    QUEUES_AT_ONCE,
    QueueErrors,
    StoredGroup,
    error_groups,
)
from jobrunner.broker.calls.server import server_time
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms
from jobrunner.inspector.shards import queue_of, with_shards
from jobrunner.redaction import Redaction

_SHOWN_MS = 7 * 86_400_000
_OTHER = "other"
_ASKED_EACH = 4
"""Up to this many queues are queried for their shards; for more, the registry of all queues costs less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroupView:
    """Failed attempts of a queue with the same job, class of the error, message and place in the code."""

    queue: str
    id: str
    job: str
    error_type: str
    message: str
    """Without numbers, ids and quoted values."""
    place: str
    """File and function of the innermost frame of the user's code; empty where no exception was raised."""
    release: str
    """The release that reported the first of these attempts; empty when the worker named none."""
    count: int
    """Attempts that failed, including those that were retried."""
    dead: int
    """Tasks that are dead now and whose last attempt is in this group."""
    first: datetime
    last: datetime
    trend: tuple[int, ...]
    """Failed attempts in each half hour of the last day, oldest first."""
    task: str
    """The id of a task as an example; it may be gone."""

    @property
    def title(self) -> str:
        """Class and message on one line."""
        return title_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorGroups:
    """The groups of one queue or of all queues: those with most dead tasks first, then by last failure, latest
    first."""

    groups: tuple[ErrorGroupView, ...]
    dead: int
    """All dead tasks of these queues."""
    problems: tuple[tuple[str, str], ...] = ()
    """Queues that cannot be read, with the server's error."""

    @property
    def ungrouped(self) -> int:
        """Dead tasks without a group, which died before groups were counted."""
        return max(self.dead - sum(group.dead for group in self.groups), 0)


def read_groups(client: Client, queues: Iterable[str] | None = None) -> ErrorGroups:
    """The groups of these queues, or of all. Omits groups without dead tasks and without a failure for a week. Raises
    InvalidName, ServerError."""
    unread: dict[str, str] = {}
    asked = None if queues is None else sorted(queues)
    found, now_ms = _read(client, _shards_of(client, asked, unread))
    redaction = client.redaction()
    views = [
        _view(name, group, now_ms, redaction)
        for name, one in found.items()
        for group in one.groups
        if group.dead or group.last_ms >= now_ms - _SHOWN_MS
    ]
    return ErrorGroups(
        groups=tuple(sorted(views, key=lambda one: (-one.dead, -one.last.timestamp(), one.queue, one.id))),
        dead=sum(one.dead for one in found.values()),
        problems=(*((name, one.problem) for name, one in found.items() if one.problem), *unread.items()),
    )


def _shards_of(client: Client, queues: Sequence[str] | None, unread: dict[str, str]) -> list[str]:
    if queues is None or len(queues) <= _ASKED_EACH:
        return with_shards(client, queues, unread)
    wanted = set(queues)
    registered = [name for name in with_shards(client, None, unread) if queue_of(name) in wanted]
    return [*registered, *wanted.difference(registered)]


def find_group(client: Client, queue: str, group_id: str) -> ErrorGroupView | None:
    """One group of a queue; None when it was removed or never existed. Raises InvalidName, ServerError."""
    if not group_id:
        return None  # to the server, an empty id means all groups
    found, now_ms = _read(client, with_shards(client, [queue]), group_id)
    groups = found[queue_of(queue)].groups
    return next((_view(queue, group, now_ms, client.redaction()) for group in groups), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadOfJob:
    """The number of dead tasks of a job of one queue, and the newest of their errors."""

    job: str
    queue: str
    dead: int
    error: str


def dead_by_job(client: Client, queues: Sequence[str]) -> list[Call[list[DeadOfJob]]]:
    """Calls that count the dead tasks of each job of these queues or shards; jobs without any are omitted. Counts of
    one queue may be in the replies to several calls."""
    redaction = client.redaction()

    def reader(names: Sequence[str], call: Call[list[QueueErrors]]) -> Call[list[DeadOfJob]]:
        return replace(call, read=lambda reply: _dead_of_jobs(names, call.read(reply), redaction))  # type: ignore[arg-type]

    calls = error_groups([keys_of(client).queue(name) for name in queues], brief=True)
    return [reader(queues[at * QUEUES_AT_ONCE :], call) for at, call in enumerate(calls)]


def _dead_of_jobs(names: Sequence[str], found: Sequence[QueueErrors], redaction: Redaction) -> list[DeadOfJob]:
    sums: dict[tuple[str, str], list[StoredGroup]] = {}
    for name, one in zip(names, found, strict=False):
        for group in one.groups:
            if group.dead:
                sums.setdefault((group.job, queue_of(name)), []).append(group)
    return [
        DeadOfJob(
            job=job, queue=queue, dead=sum(group.dead for group in groups),
            error=redaction.text(title_of(max(groups, key=lambda group: group.last_ms))),
        )
        for (job, queue), groups in sums.items()
    ]  # fmt: skip


def title_of(group: "StoredGroup | ErrorGroupView") -> str:
    """Class and message of a group on one line."""
    if group.id.startswith(_OTHER):
        return "all further errors"
    return ": ".join(part for part in (group.error_type, group.message) if part) or "(no text)"


def no_such_group(queue: str, group_id: str) -> str:
    """The message for a missing group."""
    return (
        f"queue {queue} has no group {group_id[:60]!r} of errors; it may have left: a group without dead tasks is "
        f"forgotten a week after its last failed attempt"
    )


def _read(client: Client, names: Sequence[str], group: str = "") -> tuple[dict[str, QueueErrors], float]:
    """The groups by queue, with its shards added up, and the server's time."""
    calls = error_groups([keys_of(client).queue(name) for name in names], group=group)
    now_ms, *replies = broker_of(client).run_many([server_time(), *calls])
    of_queues: dict[str, list[QueueErrors]] = {}
    for name, one in zip(names, chain.from_iterable(replies), strict=True):
        of_queues.setdefault(queue_of(name), []).append(one)
    return {name: _together(some) for name, some in of_queues.items()}, now_ms


def _together(shards: Sequence[QueueErrors]) -> QueueErrors:
    if len(shards) == 1:
        return shards[0]
    found: dict[str, list[StoredGroup]] = {}
    for shard in shards:
        for group in shard.groups:
            found.setdefault(group.id, []).append(group)
    return QueueErrors(
        dead=sum(shard.dead for shard in shards),
        groups=tuple(map(_of_shards, found.values())),
        problem=next((shard.problem for shard in shards if shard.problem), ""),
    )


def _of_shards(groups: Sequence[StoredGroup]) -> StoredGroup:
    """Merges the groups of several shards: the first release is from the earliest, the example task from the latest."""
    first, last = min(groups, key=lambda one: one.first_ms), max(groups, key=lambda one: one.last_ms)
    buckets: Counter[int] = Counter()
    for group in groups:
        buckets.update(group.buckets)
    return dataclasses.replace(
        first, last_ms=last.last_ms, task=last.task, dead=sum(group.dead for group in groups),
        before=sum(group.before for group in groups), buckets=buckets,
    )  # fmt: skip


def _view(queue: str, group: StoredGroup, now_ms: float, redaction: Redaction) -> ErrorGroupView:
    return ErrorGroupView(
        queue=queue, id=group.id, job=group.job, error_type=group.error_type, message=redaction.text(group.message),
        place=group.place, release=group.release, count=group.count, dead=group.dead,
        first=from_ms(group.first_ms), last=from_ms(group.last_ms), trend=_trend(group, now_ms), task=group.task,
    )  # fmt: skip


def _trend(group: StoredGroup, now_ms: float) -> tuple[int, ...]:
    end = int(now_ms // BUCKET_MS) + 1
    return tuple(group.buckets.get(at, 0) for at in range(end - BUCKETS_KEPT, end))
