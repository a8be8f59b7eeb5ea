"""`jobrunner status`: everything at one glance."""

import click

from jobrunner.cli.options import CommonOptions, connected, with_shared_options
from jobrunner.cli.output import answer_json, echo, facts, table, when
from jobrunner.client.records import PeriodicRecord, WorkerRecord
from jobrunner.formatting import duration
from jobrunner.inspector.snapshot import QueueView, Snapshot, overview

_EXAMPLES = """\b
Examples:
  jobrunner status
  jobrunner status --url redis://localhost --json | jq '.queues[].waiting'
"""


@click.command(epilog=_EXAMPLES)
@with_shared_options
def status(shared: CommonOptions) -> None:
    """Show the server, queues, workers, leader and periodic jobs."""
    with connected(shared) as client:
        seen = overview(client)
    if shared.as_json:
        answer_json(seen)
        return
    echo(facts(_head(seen)))
    for title, part in (
        ("queues", queue_table(seen.queues)),
        ("workers", worker_table(seen.workers)),
        ("periodic jobs", periodic_table(seen.periodics)),
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


def queue_table(queues: list[QueueView]) -> str:
    """One line per queue; empty without queues. The column HISTORY is left out when no queue keeps one."""
    keeps = any(queue.done for queue in queues)
    history = ("HISTORY",) if keeps else ()
    columns = ("QUEUE", "WAITING", "SCHEDULED", "PENDING", "DEAD", *history, "SUCCEEDED", "WORKERS", "STATE")
    rows = [
        (
            *(queue.name, queue.waiting, queue.scheduled, queue.pending, queue.dead),
            *((queue.done,) if keeps else ()),
            *(queue.totals.get("succeeded", 0), queue.workers),
            queue.problem or _switch(queue),
        )
        for queue in queues
    ]
    return table(columns, rows) if rows else ""


def _switch(queue: QueueView) -> str:
    if not queue.paused:
        return "open"
    return f"paused, ends {when(queue.paused_until)}" if queue.paused_until else "paused"


def worker_table(workers: list[WorkerRecord]) -> str:
    """One line per worker; empty without workers."""
    columns = ("WORKER", "STARTED", "EXECUTOR", "SLOTS", "RUNNING", "FETCHED", "FINISHED", "RELEASE", "QUEUES")
    rows = [
        (
            *(worker.id, when(worker.started), worker.executor, worker.slots),
            *(worker.executing, worker.fetched, worker.finished, worker.release, worker.queues),
        )
        for worker in workers
    ]
    return table(columns, rows) if rows else ""


def periodic_table(periodics: list[PeriodicRecord]) -> str:
    """One line per periodic job; empty without them."""
    columns = ("PERIODIC JOB", "SCHEDULE", "LAST", "NEXT", "FIRED", "SKIPPED", "QUEUE")
    rows = [
        (
            *(job.name, job.schedule, when(job.last), _next_of(job)),
            *(job.fired, job.skipped, job.queue),
        )
        for job in periodics
    ]
    return table(columns, rows) if rows else ""


def _next_of(job: PeriodicRecord) -> str:
    if not job.enabled:
        return "disabled"
    return when(job.next) if job.served else "no worker knows it"
