"""`jobrunner status`: an overview of the server, queues, workers and periodic jobs."""

from collections.abc import Iterable, Mapping

import click

from jobrunner.cli.options import CommonOptions, connected, with_shared_options, with_wide
from jobrunner.cli.output import answer_json, echo, facts, prints_all_columns, table, talk, when
from jobrunner.client.client import Client
from jobrunner.client.records import PeriodicRecord, WorkerRecord
from jobrunner.client.settings_hash import SettingOrigin
from jobrunner.formatting import duration, listed
from jobrunner.inspector.snapshot import QueueView, Snapshot, overview, workers_or_none

_EXAMPLES = """\b
Examples:
  jobrunner status
  jobrunner status --url redis://localhost --json | jq '.queues[].waiting'
"""
_NAMED = 8


@click.command(epilog=_EXAMPLES)
@with_wide
@with_shared_options
def status(shared: CommonOptions, wide: bool) -> None:
    """Show the server, queues, workers, leader and periodic jobs."""
    with connected(shared) as client:
        seen = overview(client)
    for problem in seen.problems:
        talk(problem)
    tell_unread(unread_queues(seen.queues))
    if shared.as_json:
        answer_json(seen)
        return
    echo(facts(_head(seen)))
    for title, part in (
        ("queues", queue_table(seen.queues, wide=wide)),
        ("workers", worker_table(seen.workers, wide=wide)),
        ("periodic jobs", periodic_table(seen.periodics, wide=wide)),
    ):
        echo(f"\n{part}" if part else f"\nno {title}")


def _head(seen: Snapshot) -> list[tuple[str, object]]:
    server = seen.server
    known = f"{server.name} {server.version}" if server else "version unknown"
    return [
        ("server", f"{known} at {seen.url}, answers in {duration(seen.latency_ms / 1000)}"),
        ("prefix", seen.prefix),
        ("leader", seen.leader or "none"),
    ]


def queue_table(
    queues: list[QueueView], *, wide: bool = False, changed: Mapping[str, Mapping[str, SettingOrigin]] | None = None
) -> str:
    """One row per queue; empty without queues. A terminal shows totals only with `wide`; the column HISTORY appears
    when a queue keeps history. `changed`: the declared settings that were changed by hand, by queue."""
    is_wide = prints_all_columns(wide=wide)
    keeps = any(queue.done for queue in queues)
    history, total = ("HISTORY",) if keeps else (), ("SUCCEEDED",) if is_wide else ()
    columns = ("QUEUE", "WAITING", "SCHEDULED", "PENDING", "DEAD", *history, *total, "WORKERS", "STATE")
    rows = [
        (
            *(queue.name, queue.waiting, queue.scheduled, queue.pending, queue.dead),
            *((queue.done,) if keeps else ()),
            *((queue.totals.get("succeeded", 0),) if is_wide else ()),
            *(queue.workers, _state(queue) + _changes((changed or {}).get(queue.name, {}))),
        )
        for queue in queues
    ]
    return table(columns, rows, tail=True, wide=wide) if rows else ""


def unread_queues(queues: Iterable[QueueView]) -> dict[str, str]:
    """The reasons of the queues that cannot be read, by name."""
    return {queue.name: queue.problem for queue in queues if queue.problem}


def _state(queue: QueueView) -> str:
    if queue.problem:
        return "cannot be read"
    if not queue.paused:
        return "open"
    return f"paused, ends {when(queue.paused_until)}" if queue.paused_until else "paused"


def _changes(changed: Mapping[str, SettingOrigin]) -> str:
    changes = "; ".join(f"{name} changed by {one.changed_by} {when(one.changed_at)}" for name, one in changed.items())
    return f"; {changes}" if changes else ""


def workers_or_warning(client: Client) -> list[WorkerRecord]:
    """The live workers; none, and a line on stderr, while the node of a cluster that lists them is away."""
    problems: list[str] = []
    found = workers_or_none(client, problems)
    for problem in problems:
        talk(problem)
    return found


def tell_unread(problems: Mapping[str, str]) -> None:
    """A line on stderr for the queues that cannot be read for the same reason: a node of a cluster has many."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in problems.items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        talk(f"queue{'s' if names[1:] else ''} {listed(names, _NAMED)} cannot be read: {reason}")


def worker_table(workers: list[WorkerRecord], *, wide: bool = False) -> str:
    """One row per worker; empty without workers."""
    is_wide = prints_all_columns(wide=wide)
    columns = (
        *("WORKER", "STATE", "STARTED"),
        *(("EXECUTOR",) if is_wide else ()),
        *("SLOTS", "RUNNING", "FETCHED"),
        *(("FINISHED", "RELEASE") if is_wide else ()),
        "QUEUES",
    )
    rows = [
        (
            *(worker.id, _worker_state(worker), when(worker.started)),
            *((worker.executor,) if is_wide else ()),
            *(worker.slots, worker.executing, worker.fetched),
            *((worker.finished, worker.release) if is_wide else ()),
            worker.queues,
        )
        for worker in workers
    ]
    return table(columns, rows, tail=True, wide=wide) if rows else ""


def _worker_state(worker: WorkerRecord) -> str:
    if worker.stopping:
        return "stopping"
    if worker.gate:
        return f"gate closed ({worker.gate})"
    return "quiet" if worker.quiet else "open"


def periodic_table(periodics: list[PeriodicRecord], *, wide: bool = False) -> str:
    """One row per periodic job; empty without them."""
    is_wide = prints_all_columns(wide=wide)
    more = ("FIRED", "SKIPPED") if is_wide else ()
    of_jobs = ("JOB",) if any(job.added for job in periodics) else ()  # others have the name of their job
    columns = ("PERIODIC JOB", "LAST", "NEXT", *more, "QUEUE", *of_jobs, "SCHEDULE")
    rows = [
        (
            *(job.name, when(job.last), _next_of(job)),
            *((job.fired, job.skipped) if is_wide else ()),
            job.queue,
            *((job.job,) if of_jobs else ()),
            job.schedule,
        )
        for job in periodics
    ]
    return table(columns, rows, names=("QUEUE",), whole_tail=True, wide=wide) if rows else ""


def _next_of(job: PeriodicRecord) -> str:
    if job.problem:
        return "unknown: its queue cannot be read"
    if not job.enabled:
        return "disabled"
    if job.next is None:
        return "ended"
    return when(job.next) if job.served else "no worker knows it"
