"""Findings that name a cause: a limit that blocks a backlog, workers that take nothing, a task that ended several
workers, a failing job, a queue that no worker serves.

The overview, `jobrunner top`, the pages of queues and `jobrunner doctor` use the same texts, except for a queue without
a worker, which `doctor` reports among the checks of the queue. Nothing here writes.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice

from jobrunner.broker.call import Call
from jobrunner.client.client import Client
from jobrunner.client.records import WorkerRecord
from jobrunner.clock import from_ms
from jobrunner.formatting import counted, duration, listed
from jobrunner.inspector.doctor import Check, fail, warn
from jobrunner.inspector.limit_use import LimitUse, inflight_use
from jobrunner.inspector.shards import queue_of
from jobrunner.inspector.snapshot import QueueView, Shards, holding
from jobrunner.inspector.stats import StatsWindow
from jobrunner.inspector.stats_types import ENDS
from jobrunner.inspector.task_rows import TaskRow, some_lines
from jobrunner.queue_settings import short_rate

_LONG_S = 300.0
"""A limited queue is reported when its waiting tasks take longer than this at its rate, a queue without such a limit
when its oldest task has waited longer than this."""
_WAITS_S = 60.0
"""A queue is also reported when its oldest task has waited longer than this while `max_inflight` tasks are pending, or
while none of its workers takes tasks."""
_OFTEN = 2
"""Expired leases from which a task is reported: a single one may be the fault of the machine or a deploy."""
_QUEUES, _PENDING, _WAITING, _NAMED = 3, 50, 20, 3
_UNSERVED_NAMED, _LIMITS_NAMED, _UNREAD_NAMED = 3, 5, 5
_RECENTLY = timedelta(minutes=15)
_FEWEST = 5
_DEPLOY = timedelta(minutes=5)
"""Workers of a release start within this time, so failures that began within it may be due to that release."""


def limit_checks(queue: QueueView, uses: Iterable[LimitUse] = (), strays: int = 0) -> Iterator[Check]:
    """Limits of one queue that block its backlog, with their use; `uses`: the result of `limit_uses`, for the tokens
    left of its rate; `strays`: how many of its leases no worker holds."""
    if not queue.waiting or queue.paused or not queue.workers:
        return
    waits = _backlog(queue)
    inflight = inflight_use(queue)
    if inflight is not None and inflight.is_spent and (queue.oldest_s or 0.0) > _WAITS_S:
        found = f"{queue.name}: max_inflight is used up, {inflight.used:,} of {inflight.most:,}, while {waits}"
        advice = f"jobrunner queues limit {queue.name} --max-inflight {2 * inflight.most}, or none"
        if strays:
            theirs = counted(strays, "of these leases is", "of these leases are")
            found += f"; {theirs} held by no worker, but by a program or by a worker that is gone"
            advice = f"jobrunner tasks list {queue.name} --state pending has the time at which they end; or {advice}"
        yield warn("limit", found, advice, queue=queue.name)
    if queue.rate is not None:
        takes_s = queue.waiting / queue.rate.max_tokens * queue.rate.seconds
        if takes_s > _LONG_S:
            rate = short_rate(queue.rate)
            left = "".join(f", {use.left:,} of {use.most:,} tokens left" for use in uses if use.name == "rate")
            found = f"{queue.name}: at its rate of {rate}{left}, the backlog takes {duration(takes_s)}: {waits}"
            advice = f"jobrunner queues limit {queue.name} --rate TASKS/1m, or none"
            yield warn("limit", found, advice, queue=queue.name)


def problem_checks(workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """The problems that workers report of themselves."""
    for worker in workers:
        if worker.problem:
            yield warn("worker", f"{worker.id}: {worker.problem}", "the log of this worker has the remedy")


def stall_checks(queues: Iterable[QueueView], workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Queues whose tasks wait although workers serve them, and the cause by the last heartbeats of these workers.
    Leaves out queues that a limit of `limit_checks` blocks, and queues of pipelines, where items wait for batches and
    for capacity."""
    serving: dict[str, list[WorkerRecord]] = {}
    for worker in workers:
        for name in worker.queues:
            serving.setdefault(name, []).append(worker)
    for queue in queues:
        waited_s = queue.oldest_s or 0.0
        its = serving.get(queue.name, [])
        if not its or not queue.waiting or queue.paused or "/" in queue.name or waited_s <= _WAITS_S:
            continue
        if next(limit_checks(queue), None) is not None:
            continue
        taking = [one for one in its if not (one.quiet or one.gate or one.stopping)]
        if not taking:
            yield _idle_check(queue, its)
        elif waited_s > _LONG_S:
            free = sum(max(one.concurrency - one.in_hand, 0) for one in taking)
            yield _blocked_check(queue, free) if free else _busy_check(queue, taking)


def _idle_check(queue: QueueView, workers: Sequence[WorkerRecord]) -> Check:
    reasons = [
        f"{one.id} {'stops' if one.stopping else 'is quiet' if one.quiet else f'has a closed gate ({one.gate})'}"
        for one in workers
    ]
    found = f"{queue.name}: {_backlog(queue)}, and no worker takes them: {listed(reasons, most=_NAMED)}"
    advice = f"start a worker: jobrunner work MODULE -q {queue.name}"
    if quiet := [one.id for one in workers if one.quiet and not one.stopping]:
        advice = f"jobrunner workers resume {quiet[0]}"
    elif any(not one.stopping for one in workers):
        advice = "a gate opens by itself when its reason is gone"
    return warn("workers", found, advice, queue=queue.name)


def _busy_check(queue: QueueView, workers: Sequence[WorkerRecord]) -> Check:
    running = [(worker, one) for worker in workers for one in worker.running]
    jobs = Counter(one.type or f"a batch of {one.queue}" for _, one in running)
    found = f"{queue.name}: {_backlog(queue)}, and no slot of its {counted(len(workers), 'worker')} is free"
    if running:
        ages = [(worker.at - one.began).total_seconds() for worker, one in running if worker.at is not None]
        names = listed([f"{job} ({count:,})" for job, count in jobs.most_common()], most=_NAMED)
        found += f": they run {names}, the longest for {duration(max(ages, default=0.0))}"
    advice = "jobrunner workers list; add workers, or set a timeout for what hangs"
    return warn("slots", found, advice, queue=queue.name)


def _blocked_check(queue: QueueView, free: int) -> Check:
    slots = f"{counted(free, 'slot')} of its workers {'is' if free == 1 else 'are'} free"
    found = f"{queue.name}: {_backlog(queue)}, although {slots}"
    advice = (
        f"a limit of its partitions or of each worker may hold them: jobrunner queues settings {queue.name}; else see "
        "the workers' logs"
    )
    return warn("queue", found, advice, queue=queue.name)


def _backlog(queue: QueueView) -> str:
    return f"{queue.waiting:,} wait, the oldest for {duration(queue.oldest_s or 0.0)}"


def lines_of_lost(
    client: Client, queues: Iterable[QueueView], shards: Mapping[str, Shards]
) -> list[Call[list[TaskRow]]]:
    """Calls that read the positions where a task that ends its workers can be: pending, or first in the queue, as it
    keeps its position. Only for the three queues with the most expired leases."""
    some = [queue for queue in queues if queue.totals.get("recovered") and queue.open]
    some = sorted(some, key=lambda queue: -queue.totals["recovered"])[:_QUEUES]
    counts = {"pending": _PENDING, "waiting": _WAITING}
    # A lease that ended counts as waiting, and is in the set of pending tasks until maintenance moves it: read both.
    return [
        call
        for queue in some
        for state, count in counts.items()
        for call in some_lines(client, holding(shards[queue.name], "waiting", "pending"), state, count=count)
    ]


def lost_rows(rows: Iterable[TaskRow]) -> list[TaskRow]:
    """The tasks whose leases ended without a report more than once, the most often first."""
    found = {(row.queue, row.id): row for row in rows if row.lost >= _OFTEN}
    return sorted(found.values(), key=lambda row: (-row.lost, row.queue, row.id))


def lost_checks(rows: Sequence[TaskRow], workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Tasks that ended several workers. Those with executor="processes" run no task alone."""
    executors: dict[str, set[str]] = {}
    for worker in workers:
        for name in worker.queues:
            executors.setdefault(name, set()).add(worker.executor)
    for row in rows[:_NAMED]:
        queue = queue_of(row.queue)
        found = f"{row.id}, {row.type or 'an item'} of {queue}, was lost by its worker {row.lost} times"
        fate = "it runs alone now" if row.is_suspect and executors.get(queue) != {"processes"} else "it is tried again"
        advice = f"{'it is dead' if row.state == 'dead' else fate}; jobrunner tasks show {row.id} --queue {queue}"
        yield warn("suspect", found, advice, queue=queue, job=row.type, task=row.id)


def unserved_check(queue: QueueView) -> Check:
    """The check result for a queue with open tasks that no worker serves."""
    advice = f"start one: jobrunner work MODULE -q {queue.name}"
    return warn("workers", f"no worker serves {queue.name}, with {queue.open:,} to do", advice, queue=queue.name)


def unserved_checks(unserved: Iterable[QueueView]) -> Iterator[Check]:
    """Queues without a worker; the queues with most open tasks are named."""
    worst = sorted(unserved, key=lambda queue: -queue.open)
    yield from map(unserved_check, worst[:_UNSERVED_NAMED])
    if rest := worst[_UNSERVED_NAMED:]:
        undone = sum(queue.open for queue in rest)
        found = f"no worker serves {counted(len(rest), 'more queue')}, with {undone:,} to do"
        yield warn("workers", found, "see the page Queues")


def urgent_checks(
    lost: Sequence[TaskRow],
    unserved: Iterable[QueueView],
    queues: Iterable[QueueView],
    workers: Iterable[WorkerRecord],
) -> Iterator[Check]:
    """Findings for a live view, the most urgent first: tasks that end workers, problems that workers report, queues
    without a worker, limits, queues whose workers take nothing."""
    queues, workers = list(queues), list(workers)
    yield from lost_checks(lost, workers)
    yield from islice(problem_checks(workers), _LIMITS_NAMED)
    yield from unserved_checks(unserved)
    yield from islice((check for queue in queues for check in limit_checks(queue)), _LIMITS_NAMED)
    yield from islice(stall_checks(queues, workers), _LIMITS_NAMED)


def unread_checks(queues: Iterable[QueueView]) -> Iterator[Check]:
    """The queues that cannot be counted, as one check result: an unreachable cluster node may have a third of them."""
    unread = [queue for queue in queues if queue.problem]
    if unread:
        names = listed([queue.name for queue in unread], most=_UNREAD_NAMED)
        yield fail("queues", f"{counted(len(unread), 'queue')} cannot be read: {names}", unread[0].problem)


def statistics_checks(window: StatsWindow) -> Iterator[Check]:
    """Whether statistics can be read: on a cluster they are on one node."""
    if window.problem:
        yield fail("statistics", "cannot be read, so failing jobs are not named", window.problem)


def failing_checks(
    window: StatsWindow,
    releases: Mapping[str, datetime],
    *,
    share: float,
    errors: Mapping[tuple[str, str], str] | None = None,
) -> Iterator[Check]:
    """Jobs with more than this share of failed attempts in the last quarter of an hour, the begin of the failures, and
    the release that was new then. `errors`: the latest error by (job, queue)."""
    steps = [_outcomes(figures) for figures in window.figures]
    last = max(round(_RECENTLY / timedelta(milliseconds=window.step_ms)), 1)
    jobs = {job for step in steps[-last:] for job in step}
    found = [(job, [step.get(job, (0, 0)) for step in steps]) for job in jobs]
    for (queue, job), course in sorted(found, key=lambda one: -sum(failed for _, failed in one[1][-last:])):
        ended, failed = (sum(one[place] for one in course[-last:]) for place in (0, 1))
        if failed < _FEWEST or failed <= share * ended:
            continue
        began, release = _beginning(window, course, releases, share)
        text = f"{job or 'items'} of {queue}: {failed:,} of {ended:,} attempts failed lately"
        if began:
            text += f", for {duration((from_ms(_end_ms(window)) - began).total_seconds())}"
        if release:
            text += f", since release {release}"
        error = (errors or {}).get((job, queue), "")
        text += f"; latest error: {error}" if error else ""
        yield warn("failing", text, f"jobrunner dead groups {queue}", queue=queue, job=job)


def _outcomes(figures: Collection[tuple[tuple[str, str, str], int]]) -> dict[tuple[str, str], tuple[int, int]]:
    """(ended, failed) by (queue, job)."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for (queue, job, what), by in figures:
        if what in ENDS:
            ended, failed = found.get((queue, job), (0, 0))
            found[queue, job] = (ended + by, failed + (by if what == "failed" else 0))
    return found


def _beginning(
    window: StatsWindow, course: Sequence[tuple[int, int]], releases: Mapping[str, datetime], share: float
) -> tuple[datetime | None, str]:
    """When the failures began, and the release that was new then; None when failures fill the whole window, and when
    they are over."""
    first = len(course)
    for place in range(len(course) - 1, -1, -1):
        ended, failed = course[place]
        if ended and failed <= share * ended:
            break
        first = place if failed else first
    if first == len(course):  # the last step with ended attempts has no failures
        return None, ""
    if all(not ended for ended, _ in course[:first]):  # no attempts before, so the begin is unknown
        return None, ""
    began = from_ms(window.starts[first])
    ends = began + timedelta(milliseconds=window.step_ms)
    new = [(at, name) for name, at in releases.items() if began - _DEPLOY <= at < ends]
    return began, max(new)[1] if new else ""


def _end_ms(window: StatsWindow) -> float:
    return window.starts[-1] + window.step_ms
