"""Reads statistics over time: outcomes, waits and run times of tasks, and depths of queues.

Workers add their counts every five seconds, so the newest numbers are that old, and a killed worker loses at most that
much. Each function makes one round trip; the window is cut by the server's clock. Queues whose tasks no worker counted
(leases of bare queues) are counted by the growth of their totals in each minute. Deaths that no worker reported, as of
expired tasks and of those whose worker was killed, are counted by that growth in every queue; they are of no job.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobrunner.broker.calls import events
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.server import server_time
from jobrunner.broker.calls.stats import COUNTED, DEPTH, HOUR_MS, MINUTE_MS, attempt_field, parts_of
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import whole_queue
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import from_ms, unix_ms
from jobrunner.errors import InvalidOption, ServerUnavailable
from jobrunner.inspector.stats_types import (
    LEFT,
    Depth,
    JobStats,
    OutcomeCounts,
    QueueStats,
    StatsSeries,
    StatsStep,
    Timings,
    Unit,
)

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
    "jobs_of",
    "read_window",
    "releases_since",
    "series",
    "series_of",
]  # fmt: skip
Hash = Mapping[str, str]
Figure = tuple[tuple[str, str, str], int]
"""((queue, type, name), number), as counted by workers."""
Growths = Mapping[str, Mapping[str, int]]
"""The growth of totals in a step, by queue and name of the total."""
_MARGIN = 2
"""Extra steps read on either side, in case this machine's clock differs from the server's."""
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsWindow:
    """The hashes of some steps, oldest first, the workers' counts in each, and the begin of the window, Unix ms."""

    starts: list[float]
    step_ms: int
    hashes: list[dict[str, str]]
    figures: list[list[Figure]]
    before: Sequence[Figure] = ()
    """The workers' counts in the minute before, of which the first samples tell; none where steps are hours."""
    problem: str = ""
    """The reason why nothing was read, where that is allowed."""


def read_window(
    client: Client, since: timedelta, unit: Unit, queue: str | None = None, type_: str | None = None, *,
    may_lack: bool = False,
) -> StatsWindow:  # fmt: skip
    """The steps up to now by the server's clock, in one round trip; two where this machine's clock differs by more than
    the margin. `may_lack`: returns no figures while the server, on a cluster the node with the statistics, does not
    answer. Raises InvalidOption, ServerError."""
    if unit not in ("minute", "hour") or since <= timedelta(0):
        raise InvalidOption(f"since={since!r}, step={unit!r}: give a time above zero, and minute or hour")
    step_ms, kept = (MINUTE_MS, stats_calls.MINUTES_KEPT) if unit == "minute" else (HOUR_MS, stats_calls.HOURS_KEPT)
    count = min(-(-round(since.total_seconds() * 1000) // step_ms), kept)
    given = broker_of(client).now_ms()
    here = int((float(given) if given else unix_ms()) // step_ms)

    def read(last: int) -> tuple[int, int, list[dict[str, str]]]:
        first = last - count + 1 - _MARGIN
        hashes = [_key(keys_of(client), unit, number) for number in range(first, last + _MARGIN + 1)]
        calls = [server_time(), *stats_calls.read(hashes, queue or "", type_ or "")]
        now_ms, *replies = broker_of(client).run_many(calls)
        return last if given else int(now_ms // step_ms), first, [one for reply in replies for one in reply]

    problem = ""
    try:
        there, first, found = read(here)
        if abs(there - here) > _MARGIN:
            there, first, found = read(there)
    except ServerUnavailable as error:
        if not may_lack:
            raise
        there, first, found, problem = here, here - count + 1, [{}] * count, str(error)
    begin, end = there - count + 1 - first, there + 1 - first
    starts = [float((first + place) * step_ms) for place in range(begin, end)]
    before = _figures(found[begin - 1]) if begin and unit == "minute" else []
    found = found[begin:end]
    figures = [_figures(hash_) for hash_ in found]
    return StatsWindow(
        starts=starts, step_ms=step_ms, hashes=found, figures=figures, before=before, problem=problem
    )  # fmt: skip


def _key(keys: Keys, unit: Unit, number: int) -> bytes:
    return keys.stats_of_minute(number) if unit == "minute" else keys.stats_of_hour(number)


class StatsTotal:
    """Counts and times, added up."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._sums_us: dict[str, int] = {}
        self._buckets: dict[str, dict[int, int]] = {}

    def add(self, what: str, by: int) -> None:
        """Adds one figure."""
        kind, colon, number = what.partition(":")
        if colon:
            buckets = self._buckets.setdefault(kind, {})
            buckets[whole(number)] = buckets.get(whole(number), 0) + by
        elif what.endswith("_us"):
            self._sums_us[what[:-3]] = self._sums_us.get(what[:-3], 0) + by
        else:
            self.counts[what] = self.counts.get(what, 0) + by

    def times(self, kind: str) -> Timings:
        """The times of a kind: run, wait, late, round_trip."""
        buckets = self._buckets.get(kind, {})
        return Timings(count=sum(buckets.values()), total_ms=self._sums_us.get(kind, 0) / 1000, buckets=buckets)


def added_up(figures: Iterable[Iterable[Figure]]) -> dict[tuple[str, str, str], int]:
    """Counters by (queue, type, name) over all steps, so that a field in sixty minutes is parsed once."""
    sums: dict[tuple[str, str, str], int] = {}
    for step in figures:
        for parts, by in step:
            sums[parts] = sums.get(parts, 0) + by
    return sums


def _figures(hash_: Hash) -> list[Figure]:
    return [(parts, whole(value)) for field, value in hash_.items() if (parts := attempt_field(field)) is not None]


def each(hash_: Hash) -> Iterator[tuple[str, str, str, int]]:
    """(queue, type, what, number) of every figure."""
    for field, value in hash_.items():
        if (parts := parts_of(field)) is not None:
            yield *parts, whole(value)


def depth(hash_: Hash) -> Depth | None:
    """The sum of all queues; None where no sample exists."""
    if stats_calls.SAMPLED not in hash_:
        return None
    sums = [0] * len(DEPTH)
    for field, value in hash_.items():
        if field.endswith(" - depth"):
            for place, word in enumerate(value.split()[: len(DEPTH)]):
                sums[place] += whole(word)
    return Depth(**dict(zip(DEPTH, sums, strict=True)))


def grown(hash_: Hash) -> dict[str, dict[str, int]]:
    """The growth of the totals of each sampled queue, with its shards added up."""
    found: dict[str, dict[str, int]] = {}
    for field, value in hash_.items():
        if field.endswith(" - to"):
            queue = field.removesuffix(" - to")
            before = hash_.get(f"{queue} - from", "").split()
            bases = [*before, *["0"] * len(COUNTED)]
            pairs = zip(COUNTED, value.split(), bases, strict=False)
            growth = {name: max(whole(to) - whole(from_), 0) for name, to, from_ in pairs}
            known = found.get(whole_queue(queue), {})
            found[whole_queue(queue)] = {name: by + known.get(name, 0) for name, by in growth.items()}
    return found


def whole(text: str) -> int:
    """A number from the server; 0 when it is damaged."""
    try:
        return int(text)
    except ValueError:
        return 0


def series(
    client: Client, *, since: timedelta = _HOUR, step: Unit = "minute", queue: str | None = None,
    type: str | None = None,  # noqa: A002 - the word of this package
) -> StatsSeries:  # fmt: skip
    """Statistics of the last `since` in steps: of all tasks, of one queue, of one job, or of one job on one queue.

    Minutes reach back 25 hours at most, hours 32 days. Raises InvalidOption, ServerError.
    """
    return series_of(read_window(client, since, step, queue, type), is_whole=type is None)


def series_of(window: StatsWindow, *, is_whole: bool = True) -> StatsSeries:
    """The series of a window; `is_whole`: the window has more than one job."""
    growth: list[Growths] = [grown(hash_) if is_whole else {} for hash_ in window.hashes]
    found = [_StepSums(*one) for one in zip(window.figures, growth, uncounted(window, growth), strict=True)]
    pairs = zip(window.starts, found, window.hashes, strict=True)
    steps = tuple(_step(start, sums, hash_, is_whole=is_whole) for start, sums, hash_ in pairs)
    total = StatsTotal()
    for sums in found:
        sums.add_to(total)
    return StatsSeries(
        unit="minute" if window.step_ms == MINUTE_MS else "hour",
        step=timedelta(milliseconds=window.step_ms),
        steps=steps,
        total=OutcomeCounts(**_counted(total)),
    )


def by_job(
    client: Client, *, since: timedelta = _HOUR, step: Unit = "minute", queue: str | None = None
) -> list[JobStats]:
    """Statistics of each job on each queue over the last `since`, as workers counted them, the most attempts first.

    Deaths that no worker reported are of no job; `series` and `by_queue` have them.
    """
    return jobs_of(read_window(client, since, step, queue, None))


def jobs_of(window: StatsWindow) -> list[JobStats]:
    """The statistics of each job of a window, the most attempts first."""
    sums: dict[tuple[str, str], StatsTotal] = {}
    for (queue, type_, what), by in added_up(window.figures).items():
        sums.setdefault((queue, type_), StatsTotal()).add(what, by)
    found = [JobStats(queue=name, type=job, **_counted(one)) for (name, job), one in sums.items()]
    return sorted(found, key=lambda one: (-one.ended, one.queue, one.type))


def by_queue(
    client: Client, *, since: timedelta = _HOUR, step: Unit = "minute", may_lack: bool = False
) -> dict[str, QueueStats]:
    """Statistics of each queue over the last `since`, by name; queues without any are omitted. `may_lack`: as in
    `read_window`."""
    window = read_window(client, since, step, may_lack=may_lack)
    sums: dict[str, StatsTotal] = {}
    for (name, _, what), by in added_up(window.figures).items():
        sums.setdefault(name, StatsTotal()).add(what, by)
    growths = [grown(hash_) for hash_ in window.hashes]
    enqueued: dict[str, int] = {}
    stands: list[dict[str, int]] = []
    for growth, figures, more in zip(growths, window.figures, uncounted(window, growths), strict=True):
        left: dict[str, int] = {}
        for (name, _, what), by in figures:
            if what in LEFT:
                left[name] = left.get(name, 0) + by
        for name, outcome, by in more:
            sums.setdefault(name, StatsTotal()).add(outcome, by)
            if outcome in LEFT:
                left[name] = left.get(name, 0) + by
        stands.append(left)
        for name, totals in growth.items():
            enqueued[name] = enqueued.get(name, 0) + totals.get("enqueued", 0)
    names = sorted({*sums, *(name for name, by in enqueued.items() if by)})
    return {
        name: QueueStats(
            queue=name,
            enqueued=enqueued.get(name),
            course=tuple(left.get(name, 0) for left in stands),
            **_counted(sums.get(name, StatsTotal())),
        )
        for name in names
    }


class _StepSums:
    """The figures of one step over all queues and jobs, and the growth of the totals of queues in it."""

    def __init__(
        self, figures: Iterable[Figure], growth: Growths, more: Iterable[tuple[str, str, int]]
    ) -> None:
        self._sums: dict[str, int] = {}
        self.growth = growth
        for (_, _, what), by in figures:
            self._sums[what] = self._sums.get(what, 0) + by
        for _, outcome, by in more:
            self._sums[outcome] = self._sums.get(outcome, 0) + by

    def add_to(self, total: StatsTotal) -> StatsTotal:
        """Adds the figures to a total, and returns it."""
        for what, by in self._sums.items():
            total.add(what, by)
        return total


def _step(start: float, sums: _StepSums, hash_: Hash, *, is_whole: bool) -> StatsStep:
    counted = _counted(sums.add_to(StatsTotal()))
    if not is_whole:
        return StatsStep(start=from_ms(start), **counted)
    came = sum(totals.get("enqueued", 0) for totals in sums.growth.values())
    return StatsStep(
        start=from_ms(start), enqueued=came if stats_calls.SAMPLED in hash_ else None, depth=depth(hash_), **counted
    )


def uncounted(window: StatsWindow, growths: Sequence[Growths]) -> list[list[tuple[str, str, int]]]:
    """(queue, outcome, number) of what workers did not count, for each step, from the growth of totals: all outcomes in
    queues that no worker counted, and in the others the deaths that no worker reported."""
    tallied = frozenset(parts[0] for parts in added_up(window.figures))
    unreported = _unreported(window, growths, tallied)
    return [[*_outcomes_of(growth, tallied), *more] for growth, more in zip(growths, unreported, strict=True)]


def _outcomes_of(growth: Growths, tallied: Collection[str]) -> Iterator[tuple[str, str, int]]:
    for name, totals in growth.items():
        if name not in tallied:
            for counter, outcome in stats_calls.OUTCOMES.items():
                if totals.get(counter):
                    yield name, outcome, totals[counter]


def _unreported(
    window: StatsWindow, growths: Sequence[Growths], tallied: Collection[str]
) -> Iterator[list[tuple[str, str, int]]]:
    """The deaths that no worker reported, for each step.

    A sample tells mostly of the minute before, so a reported death is counted a step before the total is seen to grow,
    or, by a late flush, a step behind. `ahead` is by how much the reports of a queue exceed the growth; below zero are
    deaths that no report has matched. What neither this step nor the next matches stays so.
    """
    dying = sorted({name for growth in growths for name, totals in growth.items() if totals.get("dead")} & set(tallied))
    ahead = _deaths(window.before, dying)
    for figures, growth in zip(window.figures, growths, strict=True):
        reported = _deaths(figures, dying)
        more: list[tuple[str, str, int]] = []
        for name in dying:
            grew = growth[name].get("dead", 0) if name in growth else 0
            before, after = ahead[name], ahead[name] + reported[name] - grew
            if unmatched := min(before, 0) - min(after, 0):
                more.append((name, "dead", unmatched))
            ahead[name] = max(min(after, reported[name]) if name in growth else after, -grew)
        yield more


def _deaths(figures: Iterable[Figure], queues: Collection[str]) -> Counter[str]:
    """The deaths that workers reported, of these queues."""
    found: Counter[str] = Counter()
    for (queue, _, what), by in figures if queues else ():
        if what == "dead" and queue in queues:
            found[queue] += by
    return found


def _counted(sum_: StatsTotal) -> dict[str, Any]:
    return {"counts": sum_.counts, "run": sum_.times("run"), "wait": sum_.times("wait")}


def releases_since(client: Client, since: datetime) -> dict[str, datetime]:
    """Releases of workers first seen after `since`, each with that time, oldest first; empty while the cluster node
    with the releases is unreachable."""
    try:
        seen = broker_of(client).run(events.releases(keys_of(client), since_ms=since.timestamp() * 1000))
    except ServerUnavailable:
        return {}
    return {name: from_ms(at_ms) for name, at_ms in seen.items()}
