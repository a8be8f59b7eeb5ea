"""Figures over time, read: how many tasks ended how, how long they waited and ran, how deep the queues were.

Workers add what they counted every five seconds, so the newest numbers are that old, and a worker that was killed took
at most that much along. Each function is one round trip; the window is cut by the server's clock. Queues none of whose
tasks a worker counted (leases of bare queues) are counted by how their totals grew in each minute.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any

from jobrunner.broker.calls import stats as stats_calls
from jobrunner.client.client import Client
from jobrunner.clock import from_ms
from jobrunner.inspector.stats_types import (
    Depth,
    JobStats,
    OutcomeCounts,
    QueueStats,
    StatsSeries,
    StatsStep,
    Timings,
    Unit,
)
from jobrunner.inspector.stats_window import Hash, StatsTotal, depth, each, grown, read_window, summed

__all__ = [
    "Depth",
    "JobStats",
    "OutcomeCounts",
    "QueueStats",
    "StatsSeries",
    "StatsStep",
    "Timings",
    "Unit",
    "by_job",
    "by_queue",
    "series",
]  # fmt: skip
_HOUR = timedelta(hours=1)


def series(
    client: Client, *, since: timedelta = _HOUR, step: Unit = "minute", queue: str | None = None,
    type: str | None = None,  # noqa: A002 - the word of this package
) -> StatsSeries:  # fmt: skip
    """The last `since` in steps: of everything, of one queue, of one job, or of one job on one queue.

    Minutes reach back 25 hours at most, hours 32 days. Raises InvalidOption, ServerError.
    """
    window = read_window(client, since, step, queue, type)
    tallied = {name for name, _ in summed(window.hashes)}
    pairs = zip(window.starts, window.hashes, strict=True)
    steps = tuple(_step(start, hash_, tallied, is_whole=type is None) for start, hash_ in pairs)
    total = _together([(hash_, tallied) for hash_ in window.hashes], is_whole=type is None)
    return StatsSeries(
        unit=step, step=timedelta(milliseconds=window.step_ms), steps=steps, total=OutcomeCounts(**_counted(total))
    )


def by_job(
    client: Client, *, since: timedelta = _HOUR, step: Unit = "minute", queue: str | None = None
) -> list[JobStats]:
    """Statistics of each job on each queue over the last `since`, the most attempts first."""
    sums = summed(read_window(client, since, step, queue, None).hashes)
    found = [JobStats(queue=name, type=job, **_counted(one)) for (name, job), one in sums.items()]
    return sorted(found, key=lambda one: (-one.ended, one.queue, one.type))


def by_queue(client: Client, *, since: timedelta = _HOUR, step: Unit = "minute") -> dict[str, QueueStats]:
    """Statistics of each queue over the last `since`, by name; queues without any are left out."""
    hashes = read_window(client, since, step, None, None).hashes
    sums: dict[str, StatsTotal] = {}
    enqueued: dict[str, int] = {}
    stands: list[dict[str, int]] = []
    for hash_ in hashes:
        _add_tallies(hash_, lambda name: sums.setdefault(name, StatsTotal()))
        stands.append(_left(sums))
    tallied = frozenset(sums)
    for hash_, stand in zip(hashes, stands, strict=True):
        _add_growth(hash_, tallied, lambda name: sums.setdefault(name, StatsTotal()))
        stand.update(_left({name: one for name, one in sums.items() if name not in tallied}))
        for name, totals in grown(hash_).items():
            enqueued[name] = enqueued.get(name, 0) + totals.get("enqueued", 0)
    names = sorted({*sums, *(name for name, by in enqueued.items() if by)})
    return {
        name: QueueStats(
            queue=name,
            enqueued=enqueued.get(name),
            course=_course(name, stands),
            **_counted(sums.get(name, StatsTotal())),
        )
        for name in names
    }


def _left(sums: Mapping[str, StatsTotal]) -> dict[str, int]:
    return {name: OutcomeCounts(counts=one.counts).left for name, one in sums.items()}


def _course(name: str, stands: Sequence[Mapping[str, int]]) -> tuple[int, ...]:
    """The differences between consecutive cumulative values."""
    added_up = [0, *(stand.get(name, 0) for stand in stands)]
    return tuple(now - before for before, now in pairwise(added_up))


def _step(start: float, hash_: Hash, tallied: Collection[str], *, is_whole: bool) -> StatsStep:
    counted = _counted(_together([(hash_, tallied)], is_whole=is_whole))
    if not is_whole:
        return StatsStep(start=from_ms(start), **counted)
    came = sum(totals.get("enqueued", 0) for totals in grown(hash_).values())
    return StatsStep(
        start=from_ms(start), enqueued=came if stats_calls.SAMPLED in hash_ else None, depth=depth(hash_), **counted
    )


def _together(hashes: list[tuple[Hash, Collection[str]]], *, is_whole: bool) -> StatsTotal:
    made = StatsTotal()
    for hash_, tallied in hashes:
        _add_tallies(hash_, lambda _: made)
        if is_whole:
            _add_growth(hash_, tallied, lambda _: made)
    return made


def _add_tallies(hash_: Hash, sum_of: Callable[[str], StatsTotal]) -> None:
    for queue, type_, what, by in each(hash_):
        if stats_calls.is_of_attempts(type_, what):
            sum_of(queue).add(what, by)


def _add_growth(hash_: Hash, tallied: Collection[str], sum_of: Callable[[str], StatsTotal]) -> None:
    for name, totals in grown(hash_).items():
        if name not in tallied:
            for counter, outcome in stats_calls.OUTCOMES.items():
                if totals.get(counter):
                    sum_of(name).add(outcome, totals[counter])


def _counted(sum_: StatsTotal) -> dict[str, Any]:
    return {"counts": sum_.counts, "run": sum_.times("run"), "wait": sum_.times("wait")}
