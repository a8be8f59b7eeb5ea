"""Checks of the workload: workers, queues, unknown jobs, and programs with different prefixes."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

from jobrunner.broker.broker import run_each_or_errors
from jobrunner.broker.call import Call
from jobrunner.broker.calls.leader import heartbeats
from jobrunner.broker.calls.server import ServerFacts, server_time
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.records import WorkerRecord
from jobrunner.clock import from_ms
from jobrunner.errors import NO_ANSWER, JobrunnerError, ServerRefused, ServerUnavailable
from jobrunner.formatting import counted, duration
from jobrunner.inspector.attempts import stray_leases
from jobrunner.inspector.doctor import Check, fail, ok, warn
from jobrunner.inspector.doctor.attention import (
    failing_checks,
    limit_checks,
    lines_of_lost,
    lost_checks,
    lost_rows,
    problem_checks,
    stall_checks,
    statistics_checks,
    unserved_check,
)
from jobrunner.inspector.doctor.other_prefixes import OtherPrefix, neighbour_checks, other_prefixes
from jobrunner.inspector.doctor.unknown_jobs import lines_in_doubt, unknown_type_check, unknown_types
from jobrunner.inspector.limit_use import inflight_use
from jobrunner.inspector.shards import queue_of, with_shards
from jobrunner.inspector.snapshot import QueueView, Shards, holding, leader, views_and_shards
from jobrunner.inspector.stats import read_window, releases_since
from jobrunner.inspector.task_rows import TaskRow, first_lines, some_lines
from jobrunner.jobs.declared_queues import cap_advice

_UNREAD = "cannot be read"
_ASK_AS = "ask as a viewer or a worker, see Roles in docs/security.md"
_SILENT_MS = 15_000
"""More than the ten seconds between heartbeats: a worker that starts during the checks is not silent."""
_SILENT_COUNTED = 100
_QUEUES_IN_DOUBT = 3
_QUEUES_SAMPLED = 20
_TASKS_SAMPLED = 20
_WARNED_OF = 10
_HOUR = timedelta(hours=1)
_FAILED_SHARE = 0.2
"""A job is reported above this share of failed attempts; equal to the default threshold of the dashboard."""


def no_worker_check(url: str, silent: Sequence[tuple[str, float]] = ()) -> Check:
    """The check result for a server without workers. With an embedded server they may run in another folder. `silent`:
    workers whose heartbeats ended without a stop, and the seconds since the last one."""
    if silent:
        worker, since_s = silent[0]
        others = f", nor of {counted(len(silent) - 1, 'other')}" if silent[1:] else ""
        found = f"none; {worker} did not stop, and there is no heartbeat of it for {duration(since_s)}{others}"
        return warn("workers", found, "look whether it was killed, is suspended or cut off; jobrunner work MODULE")
    if url.startswith("embedded:"):
        advice = "jobrunner work MODULE, in this folder: without a URL each folder has a server of its own"
        return warn("workers", "none on the server of this folder", advice)
    return warn("workers", "none", "jobrunner work MODULE")


def _silent_workers(client: Client) -> list[tuple[str, float]]:
    """The workers of the last day whose heartbeats ended without a stop, the last first. While a worker leads, it takes
    them off the list."""
    heard, now_ms = broker_of(client).run_many([heartbeats(keys_of(client), most=_SILENT_COUNTED), server_time()])
    return [(worker, (now_ms - at_ms) / 1000) for worker, at_ms in heard if now_ms - at_ms > _SILENT_MS]


def work_checks(client: Client, facts: ServerFacts | None = None) -> Iterator[Check]:
    """Checks of workers, their leader, queues without a worker, dead tasks, jobs that no worker knows, other
    set-ups. What cannot be read, as the node of a cluster that has it is away, is a failed check; what this user may
    not read, as producers have no right to the list of workers, is a warning, and the other checks go on."""
    workers: list[WorkerRecord] | None = None
    is_refused = False
    try:
        workers = client.workers()
    except NO_ANSWER as error:
        yield fail("workers", _UNREAD, str(error))
    except ServerRefused as error:
        is_refused = True
        yield unchecked("workers", error)
        yield warn("jobs", "not checked, nor queues without a worker and other prefixes: workers are unknown", _ASK_AS)
    else:
        yield from _attempted("workers", _checks_of_workers(client, workers))
    try:
        found, shards = views_and_shards(client, workers or [])
    except NO_ANSWER as error:
        yield fail("queues", _UNREAD, str(error))
        return
    except ServerRefused as error:
        yield unchecked("queues", error)
        return
    yield from _attempted("queues", _checks_of_queues(client, workers, found, shards))
    yield from _attempted("statistics", _checks_of_statistics(client, found, shards))
    if workers is not None:
        yield from _attempted("jobs", _checks_of_jobs(client, workers, found, shards))
    if workers is not None or is_refused:
        yield from _attempted("periodic", _checks_of_periodics(client))
    if workers is None:
        return
    undone = sum(queue.open for queue in found)
    here = OtherPrefix(prefix=keys_of(client).prefix, database=None, undone=undone, workers=len(workers))
    yield from neighbour_checks(here, other_prefixes(client, facts))


def _attempted(what: str, checks: Iterable[Check]) -> Iterator[Check]:
    """The checks, up to one whose data cannot be read or that this user has no right to."""
    try:
        yield from checks
    except NO_ANSWER as error:
        yield fail(what, _UNREAD, str(error))
    except ServerRefused as error:
        yield unchecked(what, error)


def unchecked(what: str, error: ServerRefused) -> Check:
    """The warning in the place of checks that the server refused."""
    found, _, advice = str(error).rpartition("; ")
    return warn(what, f"not checked: {found or advice}", advice if found else "")


def _checks_of_workers(client: Client, workers: list[WorkerRecord]) -> Iterator[Check]:
    silent = [] if workers else _silent_workers(client)
    yield ok("workers", f"{len(workers)} at work") if workers else no_worker_check(client.settings.url, silent)
    if workers:
        yield leader_check(leader(client))
    yield from foremost(problem_checks(workers))
    yield from (slots_check(worker) for worker in workers if worker.held_by)


def _checks_of_queues(
    client: Client, known_workers: list[WorkerRecord] | None, found: Sequence[QueueView], shards: Mapping[str, Shards]
) -> Iterator[Check]:
    """Without the workers, which None stands for, nothing that depends on them is checked."""
    workers = known_workers or []
    by_work = sorted(found, key=lambda queue: -(queue.open + queue.dead))
    strays = Counter[str]() if known_workers is None else _stray_leases(client, by_work, shards, workers)
    checks = (
        check
        for queue in by_work
        for check in (*queue_checks(queue), *limit_checks(queue, strays=strays[queue.name]))
    )
    yield from foremost(check for check in checks if known_workers is not None or check.what != "workers")
    yield from foremost(stall_checks(by_work, workers))
    yield from lost_checks(lost_rows(_read(client, lines_of_lost(client, found, shards))), workers)


def _checks_of_statistics(
    client: Client, found: Sequence[QueueView], shards: Mapping[str, Shards]
) -> Iterator[Check]:
    window = read_window(client, _HOUR, "minute", may_lack=True)
    yield from statistics_checks(window)
    new = releases_since(client, from_ms(window.starts[0]))
    yield from failing_checks(window, new, share=_FAILED_SHARE, errors=_latest_errors(client, found, shards))


def _checks_of_jobs(
    client: Client, workers: list[WorkerRecord], found: Sequence[QueueView], shards: Mapping[str, Shards]
) -> Iterator[Check]:
    calls = lines_in_doubt(client, found, workers, shards, most=_QUEUES_SAMPLED)
    yield from (unknown_type_check(one) for one in unknown_types(_read(client, calls), workers))


def _checks_of_periodics(client: Client) -> Iterator[Check]:
    for job in client.periodics():
        if not job.served:
            yield warn("periodic", f"{job.name} is not fired: no worker knows it", "start a worker with its module")


def _stray_leases(
    client: Client, queues: Iterable[QueueView], shards: Mapping[str, Shards], workers: list[WorkerRecord]
) -> Counter[str]:
    """How many leases no worker holds, for the first queues whose `max_inflight` is used up."""
    spent = [one.name for one in queues if (use := inflight_use(one)) is not None and one.waiting and use.is_spent]
    asked = [shard for name in spent[:_QUEUES_IN_DOUBT] for shard in holding(shards[name], "pending")]
    found = run_each_or_errors(broker_of(client), [stray_leases(client, shard, workers) for shard in asked])
    strays: Counter[str] = Counter()
    for shard, one in zip(asked, found, strict=True):
        strays[queue_of(shard)] += one if isinstance(one, int) else 0
    return strays


def _latest_errors(
    client: Client, queues: Iterable[QueueView], shards: Mapping[str, Shards]
) -> dict[tuple[str, str], str]:
    """The latest error of a dead task by (job, queue), in the queues with most dead tasks."""
    some = sorted((queue for queue in queues if queue.dead), key=lambda queue: -queue.dead)[:_QUEUES_IN_DOUBT]
    calls = [
        call
        for one in some
        for call in some_lines(client, holding(shards[one.name], "dead"), "dead", count=_TASKS_SAMPLED, newest=True)
    ]
    rows = sorted(_read(client, calls), key=lambda row: row.when or row.enqueued)
    return {(row.type, queue_of(row.queue)): row.error for row in rows}


def _read(client: Client, calls: list[Call[list[TaskRow]]]) -> list[TaskRow]:
    """The rows that these calls find, without queues on an unreachable cluster node or that this user may not read,
    which another check reports."""
    lines: list[TaskRow] = []
    for found in run_each_or_errors(broker_of(client), calls):
        if isinstance(found, (ServerUnavailable, ServerRefused)):
            continue
        if isinstance(found, JobrunnerError):
            raise found
        lines += found
    return lines


def slots_check(worker: WorkerRecord) -> Check:
    """The check result for a worker whose slots are all held by one queue."""
    found = f"{worker.held_by} holds all {worker.slots} slots of {worker.id} while other queues wait"
    return warn("slots", found, cap_advice(worker.held_by, worker.concurrency), queue=worker.held_by)


def leader_check(leads: str | None) -> Check:
    """Whether a worker coordinates."""
    if leads is not None:
        return ok("leader", leads)
    advice = "it should come within 10 s; if not, look at the workers' logs"
    return warn("leader", "none: scheduled tasks do not become due and periodic jobs do not fire", advice)


def foremost(checks: Iterable[Check]) -> Iterator[Check]:
    """The first ten warnings of each kind and the number of further ones, as a thousand queues may lack a worker; all
    failures."""
    told: Counter[str] = Counter()
    for check in checks:
        if check.verdict == "warn":
            told[check.what] += 1
        if check.verdict != "warn" or told[check.what] <= _WARNED_OF:
            yield check
    for what, count in told.items():
        if count > _WARNED_OF:
            yield warn(what, f"{count - _WARNED_OF:,} more such warnings", "jobrunner queues list names all queues")


def queue_checks(queue: QueueView) -> Iterator[Check]:
    """Problems of one queue."""
    if queue.problem:
        yield fail("queue", f"{queue.name}: cannot be read", queue.problem)
    if queue.is_unserved:
        yield unserved_check(queue)
    if queue.paused and queue.waiting and queue.paused_until is None:
        found = f"{queue.name}: paused without an end, and {queue.waiting} wait"
        yield warn("queue", found, f"jobrunner queues resume {queue.name}")
    elif queue.paused:
        yield warn("queue", f"{queue.name}: paused", f"jobrunner queues resume {queue.name}")
    if queue.dead:
        yield warn("queue", f"{queue.name}: {queue.dead} dead", f"jobrunner dead list {queue.name}")


def types_checks(client: Client, known: Collection[str]) -> Iterator[Check]:
    """Checks the first tasks of the first queues for jobs that are not among the `known` names; nothing while the list
    of queues cannot be read, which another check reports."""
    try:
        names = with_shards(client, client.queues()[:_QUEUES_SAMPLED])
    except (*NO_ANSWER, ServerRefused):
        return
    calls = [
        first_lines(client, name, state, count=_TASKS_SAMPLED) for name in names for state in ("waiting", "scheduled")
    ]
    found = _read(client, calls)
    strange = {(queue_of(line.queue), line.type) for line in found if line.type and line.type not in known}
    for queue, job in sorted(strange):
        problem = f"{queue}: tasks of job {job!r}, which the modules do not declare"
        advice = "load its module in the worker, or correct the job's name: workers hand its tasks back, for a day"
        yield warn("job", problem, advice)
