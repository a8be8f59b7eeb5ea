"""Checks of the workload: workers, unserved queues, unknown jobs, and programs with different prefixes."""

from collections.abc import Collection, Iterator

from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.inspector.doctor.check import Check, fail, ok, warn
from jobrunner.inspector.doctor.other_prefixes import OtherPrefix, other_prefixes
from jobrunner.inspector.doctor.unknown_types import lines_in_doubt, unknown_type_check, unknown_types
from jobrunner.inspector.snapshot import QueueView, leader, queue_views
from jobrunner.inspector.task_rows import first_lines

_QUEUES_SAMPLED = 20
_TASKS_SAMPLED = 20


def work_checks(client: Client, facts: ServerFacts | None = None) -> Iterator[Check]:
    """Workers, their leader, queues without a worker, dead tasks, jobs that no worker knows, other set-ups."""
    workers = client.workers()
    found = queue_views(client, workers)
    yield ok("workers", f"{len(workers)} at work") if workers else warn("workers", "none", "jobrunner work MODULE")
    if workers:
        yield leader_check(leader(client))
    yield from (check for queue in found for check in queue_checks(queue))
    calls = lines_in_doubt(client, found, workers, most=_QUEUES_SAMPLED)
    lines = [line for some in broker_of(client).run_many(calls) for line in some] if calls else []
    yield from (unknown_type_check(one) for one in unknown_types(lines, workers))
    for job in client.periodics():
        if not job.served:
            yield warn("periodic", f"{job.name} is not fired: no worker knows it", "start a worker with its module")
    undone = sum(queue.waiting + queue.scheduled + queue.pending for queue in found)
    here = OtherPrefix(prefix=keys_of(client).prefix, database=None, undone=undone, workers=len(workers))
    yield from neighbour_checks(here, other_prefixes(client, facts))


def leader_check(leads: str | None) -> Check:
    """Whether a worker coordinates."""
    if leads is not None:
        return ok("leader", leads)
    advice = "it should come within 10 s; if not, look at the workers' logs"
    return warn("leader", "none: scheduled tasks do not become due and periodic jobs do not fire", advice)


def queue_checks(queue: QueueView) -> Iterator[Check]:
    """Problems of one queue."""
    undone = queue.waiting + queue.scheduled + queue.pending
    if queue.problem:
        yield fail("queue", f"{queue.name}: cannot be read", queue.problem)
    if undone and not queue.workers:
        yield warn("queue", f"{queue.name}: {undone} to do and no worker", f"jobrunner work MODULE -q {queue.name}")
    if queue.paused and queue.waiting and queue.paused_until is None:
        told = f"{queue.name}: paused without an end, and {queue.waiting} wait"
        yield warn("queue", told, f"jobrunner queues resume {queue.name}")
    elif queue.paused:
        yield warn("queue", f"{queue.name}: paused", f"jobrunner queues resume {queue.name}")
    if queue.dead:
        yield warn("queue", f"{queue.name}: {queue.dead} dead", f"jobrunner dead list {queue.name}")


def types_checks(client: Client, known: Collection[str]) -> Iterator[Check]:
    """Tasks of jobs that are not among the `known` names, of the first ones of the first queues."""
    names = client.queues()[:_QUEUES_SAMPLED]
    calls = [
        first_lines(client, name, state, count=_TASKS_SAMPLED) for name in names for state in ("waiting", "scheduled")
    ]
    found = [line for some in broker_of(client).run_many(calls) for line in some] if calls else []
    for queue, job in sorted({(line.queue, line.type) for line in found if line.type and line.type not in known}):
        told = f"{queue}: tasks of job {job!r}, which the modules do not declare"
        yield warn("job", told, "load its module in the worker, or correct the job's name; such tasks fail and die")


def neighbour_checks(here: OtherPrefix, others: Collection[OtherPrefix]) -> Iterator[Check]:
    """Whether who enqueues and who works look at different prefixes or databases."""
    for other in others:
        idle, busy = sorted((here, other), key=lambda one: one.undone and not one.workers)
        if busy.undone and not busy.workers and idle.workers:
            told = f"{busy} has {busy.undone} to do and no worker, while {idle} has {idle.workers} at work"
            yield warn("prefix", told, "if the two should be one, use the same --url and --prefix everywhere")
        elif other.undone or other.workers:
            yield ok("prefix", f"{other} is in use too: {other.undone} to do, {other.workers} at work")
