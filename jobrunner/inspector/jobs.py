"""The jobs of a prefix: those that modules declare, that workers publish, and that tasks name, with their totals.

Totals are counted by the scripts that end tasks, so they are exact, also when workers crash. Workers count the last
hour, which includes the running minute up to the last report of each worker.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from jobrunner.broker.call import in_slices
from jobrunner.client.client import Client
from jobrunner.client.records import PeriodicRecord
from jobrunner.errors import JobrunnerError, ServerUnavailable
from jobrunner.inspector.shards import end_totals, known_queues
from jobrunner.inspector.snapshot import or_noted, workers_or_none
from jobrunner.inspector.stats import jobs_of, read_window
from jobrunner.inspector.stats_types import JobStats
from jobrunner.jobs.registry import JobDefinition

_HOUR = timedelta(hours=1)
_QUEUES_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A job on one queue. Totals are of all time; those of the last hour end with `_last_hour`."""

    name: str
    queue: str | None
    """None for a job that only workers know: no module declares it, and none of its tasks ended."""
    max_attempts: int | None = None
    """None: the queue's setting applies, or it is unknown because no module declares the job."""
    schedule: str = ""
    """In words; empty for a job that is not periodic."""
    workers: int = 0
    """The number of live workers that know the job."""
    succeeded: int = 0
    failed: int = 0
    """Attempts that failed, including those of tasks that are dead now."""
    recovered: int = 0
    """Attempts whose lease ended without a report, as their worker crashed."""
    dead: int = 0
    """Tasks that became dead, including tasks that were requeued or deleted since."""
    ended_last_hour: int = 0
    """Attempts that ended, with any outcome."""
    failed_last_hour: int = 0


def job_views(
    client: Client, declared: Iterable[JobDefinition] = (), unread: dict[str, str] | None = None,
    problems: list[str] | None = None,
) -> list[JobView]:  # fmt: skip
    """Every known job on every queue that it is declared on or that its tasks ended on, by name and queue. While a node
    of a cluster is away, `unread` gets the queues whose totals cannot be read, with the error, and `problems` a line
    about workers or schedules that cannot.

    Makes two round trips for each 500 queues, plus those for the last hour. Raises ServerError.
    """
    told: list[str] = [] if problems is None else problems
    jobs = {(one.name, one.options.queue): one for one in declared}
    options = {place: one.options for place, one in jobs.items()}
    schedules = {place: one.periodic.schedule.describe() for place, one in jobs.items() if one.periodic is not None}
    published: list[PeriodicRecord] = or_noted(client, client.periodics, [], "periodic jobs", told)
    schedules |= _in_force(published)
    totals = _totals(client, {} if unread is None else unread)
    window = read_window(client, _HOUR, "minute", may_lack=True)
    lately = {(one.type, one.queue): one for one in jobs_of(window) if one.type}
    known = Counter(name for worker in workers_or_none(client, told) for name in worker.types or ())
    places: set[tuple[str, str | None]] = {*options, *schedules, *totals, *lately}
    named = {name for name, _ in places}
    places |= {(name, None) for name in known if name not in named}
    return [
        JobView(
            name=name,
            queue=queue,
            max_attempts=options[name, queue].max_attempts if queue is not None and (name, queue) in options else None,
            schedule=schedules.get((name, queue or ""), ""),
            workers=known[name],
            **totals.get((name, queue or ""), {}),
            **_of_last_hour(lately.get((name, queue or ""))),
        )
        for name, queue in sorted(places, key=lambda place: (place[0], place[1] or ""))
    ]


def _in_force(periodics: Iterable[PeriodicRecord]) -> dict[tuple[str, str], str]:
    """The schedules in force by job and queue; of several that were added at run time, their number."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in periodics:
        found.setdefault((one.job, one.queue), []).append(one.schedule)
    return {place: words[0] if len(words) == 1 else f"{len(words)} schedules" for place, words in found.items()}


def _totals(client: Client, unread: dict[str, str]) -> dict[tuple[str, str], dict[str, int]]:
    """Totals of ended attempts and tasks by (job, queue)."""
    found: dict[tuple[str, str], dict[str, int]] = {}
    for some in in_slices(known_queues(client, unread), _QUEUES_AT_ONCE):
        for queue, totals in zip(some, end_totals(client, some), strict=True):
            if isinstance(totals, ServerUnavailable):  # its cluster node is unreachable: other queues are shown
                unread[queue] = str(totals)
                continue
            if isinstance(totals, JobrunnerError):
                raise totals
            _add(found, queue, totals.by_type)
    return found


def _add(found: dict[tuple[str, str], dict[str, int]], queue: str, fields: Mapping[str, int]) -> None:
    for field, count in fields.items():
        name, _, outcome = field.rpartition(" ")
        if name:
            of_job = found.setdefault((name, queue), {})
            if outcome in ("succeeded", "failed", "recovered", "dead"):
                of_job[outcome] = count


def _of_last_hour(stats: JobStats | None) -> dict[str, int]:
    return {} if stats is None else {"ended_last_hour": stats.ended, "failed_last_hour": stats.failed}
