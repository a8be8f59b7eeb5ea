"""Reads the lag of pipeline stations, and suggests how many workers would keep up.

The suggestion, for people and autoscalers: items arrive at the rate at which they left plus the growth of the queue,
and waiting items shall be gone within a target time. Each item occupies a worker for the mean run time that workers
measured. So with arrivals a, waiting w, target t, run time r and s concurrent items in one worker,

    workers = ceil((a + w / t) * r / s)

On Spark s is 1, and r is the time in which a driver ran batches, of the larger ones in the batch log, divided by their
items: concurrent batches share that time. Without waiting and arriving items the result is 0 workers; it is 1 for
waiting items whose run time was never measured.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.stats import SAMPLED
from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, broker_of
from jobrunner.client.records import WorkerRecord
from jobrunner.inspector.batches import batches_of, stopped_by
from jobrunner.inspector.shards import known_queues
from jobrunner.inspector.snapshot import QueueView, queue_views, workers_or_none
from jobrunner.inspector.stats import StatsTotal, added_up, grown, read_window, uncounted, whole
from jobrunner.inspector.stats_types import LEFT
from jobrunner.jobs.batch_record import BatchRecord

OVER = timedelta(minutes=5)
"""The time over which rates are measured."""
WITHIN_S = 60.0
"""The target in seconds: waiting items shall be gone within this time."""
_DEPTH = " - depth"


@dataclass(frozen=True, slots=True, kw_only=True)
class StationLag:
    """The lag of one station."""

    queue: str
    """Full name."""
    waiting: int
    """Items that are due and waiting."""
    pending: int
    oldest_s: float
    """Seconds for which the oldest waiting item has been due; 0 without one."""
    arrivals_per_s: float | None
    """Items per second that came, over the last minutes. This and `throughput_per_s`, `drain_s`, `run_s` and
    `suggested_workers` are None while the statistics cannot be read."""
    throughput_per_s: float | None
    """Items per second that left the queue, with any outcome, over the last minutes; between the first and the last
    sample of these minutes when no worker counted any, as with programs that `pop`."""
    drain_s: float | None
    """Seconds until nothing waits, at the throughput of the last minutes and without arrivals; None when no item
    left."""
    run_s: float | None
    """Mean time for which an item occupies a slot of a worker; None when not measured."""
    workers: int
    """Workers that serve the queue now."""
    slots: int
    """Items that one worker runs at once; 1 on Spark, where `run_s` is the item's share of a driver's time."""
    suggested_workers: int | None
    paused: bool
    stopped: bool
    """Whether a station on Spark waits and tries again, because the error of its batches is no item's: more workers do
    not help."""


def read_lags(
    client: Client, pipeline: str | None = None, *, within_s: float = WITHIN_S, unread: dict[str, str] | None = None,
    problems: list[str] | None = None,
) -> list[StationLag]:  # fmt: skip
    """The lag of every queue of a pipeline, or of all pipelines, by name: a handful of round trips. While a node of a
    cluster is away, `unread` gets the queues that cannot be read, with the error, and `problems` a line about workers
    or statistics that cannot. Raises ServerError."""
    told: list[str] = [] if problems is None else problems
    missing: dict[str, str] = {} if unread is None else unread
    beginning = f"{pipeline}/" if pipeline else ""
    names = [name for name in known_queues(client, missing) if name.startswith(beginning) and "/" in name]
    workers = workers_or_none(client, told)
    views = queue_views(client, workers, names)
    missing.update({view.name: view.problem for view in views if view.problem})
    return lags_of(client, views, workers, within_s=within_s, problems=told)


def lags_of(
    client: Client, views: Sequence[QueueView], workers: Sequence[WorkerRecord], *, within_s: float = WITHIN_S,
    problems: list[str] | None = None,
) -> list[StationLag]:  # fmt: skip
    """The lag of each of these queues that could be counted, in three round trips. With `problems`, the node of a
    cluster that has the statistics may be away: it gets a line that says so. Raises ServerError."""
    counted, may_lack = [view for view in views if not view.problem], problems is not None
    now_ms, window = broker_of(client).run(server_time()), read_window(client, OVER, "minute", may_lack=may_lack)
    if window.problem and problems is not None:
        problems.append(f"the statistics cannot be read: {window.problem}")
    first = next((at for at, hash_ in enumerate(window.hashes) if hash_), len(window.hashes) - 1)
    elapsed_s = max((now_ms - window.starts[first]) / 1000, 1.0)
    sums: dict[str, StatsTotal] = {}
    for (queue, _, what), by in added_up(window.figures).items():
        sums.setdefault(queue, StatsTotal()).add(what, by)
    tallied = frozenset(sums)
    samples = [(at, whole(hash_[SAMPLED])) for at, hash_ in enumerate(window.hashes) if SAMPLED in hash_]
    first_at, between_s = (samples[0][0], (samples[-1][1] - samples[0][1]) / 1000) if samples else (0, 0.0)
    for at, more in enumerate(uncounted(window, [grown(hash_) for hash_ in window.hashes])):
        for queue, outcome, by in more:
            if queue in tallied or at > first_at:  # the first sample tells of a time before it
                sums.setdefault(queue, StatsTotal()).add(outcome, by)
    batches = batches_of(client, [view.name for view in counted])
    sampled = next((hash_ for hash_ in window.hashes if SAMPLED in hash_), {})
    depths, sampled_s = _depths(sampled), (now_ms - whole(sampled.get(SAMPLED, "0"))) / 1000 if sampled else 0.0
    return [
        _lag(
            view, None if window.problem else sums.get(view.name, StatsTotal()), batches[view.name],
            elapsed_s if view.name in tallied else max(between_s, 1.0),
            growth_per_s=(view.waiting - depths[view.name]) / sampled_s if sampled_s >= 1 else 0.0,
            slots=_slots(view.name, workers), within_s=within_s,
        )
        for view in counted
    ]  # fmt: skip


def _lag(
    view: QueueView, sums: StatsTotal | None, batches: Sequence[BatchRecord], elapsed_s: float, *,
    growth_per_s: float, slots: int, within_s: float,
) -> StationLag:  # fmt: skip
    throughput = arrivals = drain_s = run_s = suggested = None
    if sums is not None:
        throughput = sum(sums.counts.get(outcome, 0) for outcome in LEFT) / elapsed_s
        run = sums.times("run")
        run_s = run.total_ms / 1000 / run.count if run.count else None
        if batches:
            run_s, slots = run_s_of(batches), 1
        arrivals = max(throughput + growth_per_s, 0.0)
        drain_s = 0.0 if not view.waiting else view.waiting / throughput if throughput else None
        suggested = 0 if view.paused else suggested_workers(view, arrivals, run_s, slots, within_s)
    return StationLag(
        queue=view.name,
        waiting=view.waiting,
        pending=view.pending,
        oldest_s=view.oldest_s or 0.0,
        arrivals_per_s=arrivals,
        throughput_per_s=throughput,
        drain_s=drain_s,
        run_s=run_s,
        workers=view.workers,
        slots=slots,
        suggested_workers=suggested,
        paused=view.paused,
        stopped=bool(view.waiting or view.pending or view.scheduled) and stopped_by(batches) is not None,
    )


def suggested_workers(
    view: QueueView, arrivals_per_s: float, run_s: float | None, slots: int, within_s: float
) -> int:
    """The number of workers that keep up and clear the waiting items within `within_s` seconds."""
    if not (view.waiting or view.pending or arrivals_per_s):
        return 0
    needed_per_s = arrivals_per_s + view.waiting / within_s
    return max(math.ceil(needed_per_s * (run_s or 0.0) / slots - 1e-9), 1)


def run_s_of(batches: Sequence[BatchRecord]) -> float | None:
    """Seconds that an item costs a driver, from batches with at least half as many items as the largest: small batches,
    such as the parts of a failed batch, are nearly all overhead."""
    largest = max((one.items for one in batches), default=0)
    large = [one for one in batches if 2 * one.items >= largest]
    items = sum(one.items for one in large)
    return _busy_s(large) / items if items else None


def _busy_s(batches: Sequence[BatchRecord]) -> float:
    """Seconds in which drivers ran any of these batches; overlapping times of one driver count once."""
    total, busy_until = 0.0, dict[str, float]()
    spans = [(one.began_ms / 1000 + one.fill_s, one.run_s, one.driver or one.id) for one in batches]
    for began, run_s, driver in sorted(spans):
        until = busy_until.get(driver, 0.0)
        total += max(began + run_s - max(began, until), 0.0)
        busy_until[driver] = max(began + run_s, until)
    return total


def _slots(queue: str, workers: Sequence[WorkerRecord]) -> int:
    found = [worker.slots for worker in workers if queue in worker.queues]
    return max(round(sum(found) / len(found)), 1) if found else 1


def _depths(sample: Mapping[str, str]) -> Counter[str]:
    """The number of waiting items in each queue, with its shards added up, at a sample. The leader takes one a
    minute."""
    found: Counter[str] = Counter()
    for field, value in sample.items():
        if field.endswith(_DEPTH):
            found[whole_queue(field.removesuffix(_DEPTH))] += whole((value.split() or ["0"])[0])
    return found
