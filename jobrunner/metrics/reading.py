"""Reads of a scrape. Totals are counted by scripts in the step that ends a task, so they stay exact through crashes."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.records import TOO_MANY, PeriodicRecord, WorkerRecord
from jobrunner.errors import JobrunnerError
from jobrunner.inspector.lag import StationLag, lags_of
from jobrunner.inspector.shards import EndTotals, end_totals
from jobrunner.inspector.snapshot import QueueView, leader, queue_views, server_facts
from jobrunner.inspector.stats import StatsTotal, each
from jobrunner.inspector.stats_types import Timings
from jobrunner.inspector.streams import StreamProgress, read_streams

UNKNOWN = "unknown"
"""The type of what there are too many types for."""
_MOST = (100, 50, 20, 10, 5, 2, 1)
"""Types of one queue that have series of their own; those that workers know come first. It is the first number by which
all queues together stay below the next: in steps, as types that are shown as one or no longer so seem to jump."""
_MOST_IN_ALL = 5000
"""Types of all queues that have series of their own. They have some 60 series each, 30 MB together, which take 5 s of
processor time; Prometheus waits for 10 s."""
MOST_QUEUES = 2000
"""Queues that have series of their own; those that workers serve come first, then by name."""
_AT_ONCE = 500
_MOST_LAGS = 200
"""Queues of pipelines up to which a scrape has suggestions for autoscaling: they read five minutes of figures."""
_MOST_ZEROS = 500
"""Queues and types that have series before anything happened to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """Everything a scrape shows, as of one moment."""

    queues: list[QueueView]
    others: list[QueueView]
    """Queues beyond the first 2 000, which have no series of their own."""
    ended: Mapping[tuple[str, str, str], int]
    """By queue, type and outcome; of type '' is what is of no type, or not known by it."""
    measured: Mapping[tuple[str, str], StatsTotal]
    """Counts and times that workers reported since the prefix exists, by queue and type."""
    stations: Mapping[str, StatsTotal]
    """What the drivers of stations counted of their batches since the prefix exists, by queue."""
    lags: list[StationLag]
    """Of queues of pipelines; empty when there are more than 200 of them."""
    streams: list[StreamProgress]
    """Streaming queries that programs watch."""
    round_trip: Timings
    workers: list[WorkerRecord]
    leader: str | None
    periodics: list[PeriodicRecord]
    server: ServerFacts | None


def take(client: Client) -> MetricsReading:
    """Reads it: a handful of round trips, and four for each 500 queues. Raises ServerError."""
    names = client.queues()
    workers = client.workers()
    served = {queue for worker in workers for queue in worker.queues}
    shown = sorted(names, key=lambda name: (name not in served, name))[:MOST_QUEUES]
    totals = {
        name: one
        for some in in_slices(shown, _AT_ONCE)
        for name, one in zip(some, end_totals(client, some), strict=True)
    }
    views = queue_views(client, workers, names)
    queues = [one for one in views if one.name in totals]
    others = [one for one in views if one.name not in totals]
    known = {one.name: _known(workers, one.name) for one in queues}
    measured, round_trip, most = _measured(_totals(client, {one.name for one in others}), known)
    stations = {queue: measured.pop((queue, type_)) for queue, type_ in list(measured) if type_ == "-"}
    begins = sum(map(len, known.values())) <= _MOST_ZEROS
    ended = [
        _ended(one.name, counted, known[one.name], most, begins=begins)
        for one in queues
        if not one.problem and not isinstance(counted := totals[one.name], JobrunnerError)
    ]
    return MetricsReading(
        queues=queues,
        others=others,
        ended={key: by for some in ended for key, by in some.items()},
        measured=measured,
        stations=stations,
        lags=_lags(client, [one for one in queues if "/" in one.name], workers),
        streams=read_streams(client),
        round_trip=round_trip,
        workers=workers,
        leader=leader(client),
        periodics=client.periodics(),
        server=server_facts(client),
    )


def _lags(client: Client, views: list[QueueView], workers: list[WorkerRecord]) -> list[StationLag]:
    some = sorted(views, key=lambda one: not (one.workers or one.open))[:_MOST_LAGS]
    return lags_of(client, some, workers) if some else []


def _totals(client: Client, left_out: AbstractSet[str]) -> dict[str, str]:
    """The figures since the prefix exists, but for those of some queues."""
    found: dict[str, str] = {}
    cursor = 0
    while True:
        cursor, some = broker_of(client).run(stats_calls.some_totals(keys_of(client), cursor))
        found.update((field, by) for field, by in some.items() if field.partition(" ")[0] not in left_out)
        if not cursor:
            return found


def _known(workers: list[WorkerRecord], queue: str) -> set[str]:
    """The types that those who serve a queue know, where they say so."""
    types = {type_ for worker in workers if queue in worker.queues for type_ in worker.types or ()}
    return types - {TOO_MANY, ""}


def _ended(
    queue: str, totals: EndTotals, known: AbstractSet[str], most: int, *, begins: bool
) -> dict[tuple[str, str, str], int]:
    found: dict[tuple[str, str, str], int] = {}
    rest = {outcome: totals.together.get(counter, 0) for counter, outcome in stats_calls.OUTCOMES.items()}
    shown = _shown({field.rpartition(" ")[0] for field in totals.by_type}, known, most)
    for field, value in totals.by_type.items():
        type_, _, outcome = field.rpartition(" ")
        if outcome in rest:
            key = (queue, type_ if type_ in shown else UNKNOWN, outcome)
            found[key] = found.get(key, 0) + value
            rest[outcome] -= value
    found |= {(queue, "", outcome): by for outcome, by in rest.items() if by > 0}
    # With zeros for what has not happened yet: a series that begins with its first death has no increase at it.
    types = {type_ for _, type_, _ in found} | (known if begins else set()) or {""}
    zeros = {(queue, type_, outcome): 0 for type_ in types for outcome in rest}
    return zeros | found


def _shown(types: AbstractSet[str], known: AbstractSet[str], most: int) -> set[str]:
    """Those of the types of a queue that have series of their own."""
    return set(sorted(types, key=lambda one: (one not in known, one))[:most])


def _most(types: Iterable[AbstractSet[str]]) -> int:
    """How many types of each queue have series of their own."""
    sizes = [len(some) for some in types]
    return next((most for most in _MOST if sum(min(size, most) for size in sizes) <= _MOST_IN_ALL), _MOST[-1])


def _measured(
    totals: Mapping[str, str], known: Mapping[str, AbstractSet[str]]
) -> tuple[dict[tuple[str, str], StatsTotal], Timings, int]:
    """What workers measured, the round trips, and how many types of each queue are shown."""
    found = list(each(totals))
    types: dict[str, set[str]] = {}
    for queue, type_, _, _ in found:
        types.setdefault(queue, set()).add(type_)
    most = _most(types.values())
    shown = {queue: _shown(some, known.get(queue, set()), most) for queue, some in types.items()}
    sums: dict[tuple[str, str], StatsTotal] = {}
    for queue, type_, what, by in found:
        sums.setdefault((queue, type_ if type_ in shown[queue] else UNKNOWN), StatsTotal()).add(what, by)
    return sums, sums.pop(("-", "-"), StatsTotal()).times("round_trip"), most
