"""Reads a snapshot of all changing state. No writes.

A snapshot is seven round trips, however many queues and tasks there are; tasks are read by rank and without their
payloads, at most a few dozen of them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from jobrunner.broker.call import Call
from jobrunner.broker.calls.server import ServerFacts, facts, server_time
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.records import WorkerRecord
from jobrunner.clock import from_ms, monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.inspector.attempts import lease_checks, still_running, with_beginnings
from jobrunner.inspector.doctor.attention import lines_of_lost, lost_rows
from jobrunner.inspector.doctor.unknown_jobs import UnknownType, lines_in_doubt, unknown_types
from jobrunner.inspector.error_groups import DeadOfJob, dead_by_job
from jobrunner.inspector.shards import OTHERS
from jobrunner.inspector.snapshot import (
    WENT_WRONG,
    QueueView,
    Shards,
    holding,
    latency_ms,
    leader_call,
    shown_url,
    views_and_shards,
    workers_or_none,
)
from jobrunner.inspector.stats import jobs_of, read_window
from jobrunner.inspector.stats_types import JobStats
from jobrunner.inspector.task_rows import TaskRow, some_lines

_RECENTLY = timedelta(minutes=15)
_QUEUES_LOOKED_INTO = 5
_TASKS_OF_EACH = 10
_TO_DO = ("waiting", "scheduled")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingJob:
    """A failing job of one queue. `dead`: the number of its dead tasks; `error`: the newest of their errors, without
    its variable parts."""

    type: str
    queue: str
    failed: int = 0
    """Attempts that failed recently, as counted by workers."""
    dead: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot:
    """The state at one instant; `at_s` is of the monotonic clock."""

    at_s: float
    now: datetime
    """By the server's clock."""
    url: str
    prefix: str
    server: ServerFacts | None
    latency_ms: float
    leader: str | None
    queues: tuple[QueueView, ...]
    workers: tuple[WorkerRecord, ...]
    running: tuple[TaskRow, ...]
    """A few pending tasks of each queue, ordered by the end of their leases; `started` where a worker reports that they
    began."""
    failing: tuple[FailingJob, ...]
    """Failing jobs, the most frequent first."""
    lost: tuple[TaskRow, ...] = ()
    """Tasks whose leases ended without a report more than once, the most often first, as far as rows were read."""
    unknown: tuple[UnknownType, ...] = ()
    """Jobs that no worker of their queue knows, among the tasks that were read."""
    problems: tuple[str, ...] = ()
    """What cannot be read, as the node of a cluster that has it is away: the workers, none of which is here then."""

    @property
    def slots(self) -> int:
        """The number of tasks that the workers can run at once."""
        return sum(worker.slots for worker in self.workers)

    @property
    def executing(self) -> int:
        """The number of attempts that the workers run, by their last heartbeats, without those that ended since."""
        return sum(worker.executing for worker in self.workers)

    @property
    def fetched(self) -> int:
        """The number of tasks that the workers had reserved and not begun at their last heartbeats."""
        return sum(worker.fetched for worker in self.workers)

    @property
    def pending_shares(self) -> dict[str, int]:
        """The pending tasks by the state that workers reported at their last heartbeats; the numbers add up to all.

        `unreported` are those that no live worker reported: reserved since, under a lease of a worker that died, or
        reserved by a program itself. Reported tasks that ended since are omitted.
        """
        batched = sum(one.items for worker in self.workers for one in worker.running)
        left, shares = self.total("pending"), {}
        for name, reported in (("running", self.executing), ("batched", batched), ("fetched", self.fetched)):
            shares[name] = min(reported, left)
            left -= shares[name]
        return shares | {"unreported": left}

    def total(self, state: str) -> int:
        """Tasks of all queues in one state."""
        return sum(getattr(queue, state) for queue in self.queues)

    @property
    def with_failures(self) -> list[str]:
        """The queues that can have groups of errors, or cannot be read: mostly a few of thousands."""
        return [
            queue.name
            for queue in self.queues
            if queue.name != OTHERS and (queue.problem or queue.dead or any(map(queue.totals.get, WENT_WRONG)))
        ]


def look(client: Client, failed: Mapping[tuple[str, str], int] | None = None) -> LiveSnapshot:
    """Reads a snapshot; `failed`: the result of `recent_failures` of some seconds ago. Raises ServerError."""
    took_ms = latency_ms(client)
    problems: list[str] = []
    workers = workers_or_none(client, problems)
    seen, shards = views_and_shards(client, workers)
    checks = lease_checks(client, workers)
    server, now_ms, leads, *found = broker_of(client).run_each(
        [facts(), server_time(), leader_call(client), *checks, *_some_lines(client, seen, shards, workers)]
    )
    if isinstance(now_ms, JobrunnerError):
        raise now_ms
    checked, found = found[: len(checks)], found[len(checks) :]
    ended = {one for some in checked if not isinstance(some, JobrunnerError) for one in some}
    workers = [still_running(worker, ended) for worker in workers]
    answered = [one for some in found if not isinstance(some, JobrunnerError) for one in some]
    # Some calls read the same tasks for different purposes.
    rows = {(one.queue, one.state, one.id): one for one in answered if isinstance(one, TaskRow)}.values()
    pending = sorted((row for row in rows if row.state == "pending"), key=_moment)
    dead = _added_up(one for one in answered if isinstance(one, DeadOfJob))
    return LiveSnapshot(
        at_s=monotonic(),
        now=from_ms(now_ms),
        url=shown_url(client),
        prefix=keys_of(client).prefix,
        server=None if isinstance(server, JobrunnerError) else server,
        latency_ms=took_ms,
        leader=None if isinstance(leads, JobrunnerError) else leads,
        queues=tuple(seen),
        workers=tuple(workers),
        running=tuple(with_beginnings(pending, workers)),
        lost=tuple(lost_rows(rows)),
        unknown=tuple(unknown_types((row for row in rows if row.state in _TO_DO), workers)),
        failing=most_failing(map(_failing, dead), failed or {}),
        problems=tuple(problems),
    )


def recent_failures(client: Client) -> dict[tuple[str, str], int]:
    """Attempts that failed in the last quarter of an hour, by job and queue; none while the cluster node with the
    statistics is unreachable. One round trip, with a large reply."""
    return failures_by_job(jobs_of(read_window(client, _RECENTLY, "minute", may_lack=True)))


def failures_by_job(jobs: Iterable[JobStats]) -> dict[tuple[str, str], int]:
    """Failed attempts by (job, queue); jobs without any are omitted."""
    return {(one.type, one.queue): one.failed for one in jobs if one.failed}


def most_failing(failing: Iterable[FailingJob], failed: Mapping[tuple[str, str], int]) -> tuple[FailingJob, ...]:
    """Failing jobs with their failed attempts, given by (job, queue), the most frequent first."""
    known = {(one.type, one.queue): one for one in failing}
    found = [
        replace(known.get(job) or FailingJob(type=job[0], queue=job[1]), failed=failed.get(job, 0))
        for job in known.keys() | failed.keys()
    ]
    return tuple(sorted(found, key=lambda one: (-one.failed, -one.dead, one.type, one.queue)))


def _some_lines(
    client: Client, seen: list[QueueView], shards: Mapping[str, Shards], workers: list[WorkerRecord]
) -> list[Call[Any]]:
    pending = [
        call
        for queue in _fullest(seen, "pending")
        for call in some_lines(client, holding(shards[queue.name], "pending"), "pending", count=_TASKS_OF_EACH)
    ]
    dead = dead_by_job(client, [name for queue in seen if queue.dead for name in shards[queue.name]])
    return [*pending, *lines_of_lost(client, seen, shards), *lines_in_doubt(client, seen, workers, shards), *dead]


def _fullest(seen: list[QueueView], state: str) -> list[QueueView]:
    some = [queue for queue in seen if getattr(queue, state)]
    return sorted(some, key=lambda queue: -getattr(queue, state))[:_QUEUES_LOOKED_INTO]


def _added_up(dead: Iterable[DeadOfJob]) -> Iterable[DeadOfJob]:
    """One entry for each job and queue: shards of one queue may be in the replies to several calls."""
    found: dict[tuple[str, str], DeadOfJob] = {}
    for one in dead:
        had = found.get((one.job, one.queue))
        found[one.job, one.queue] = one if had is None else replace(had, dead=had.dead + one.dead)
    return found.values()


def _failing(one: DeadOfJob) -> FailingJob:
    return FailingJob(type=one.job, queue=one.queue, dead=one.dead, error=one.error)


def _moment(line: TaskRow) -> datetime:
    return line.when or line.enqueued
