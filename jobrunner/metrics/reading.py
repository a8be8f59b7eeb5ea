"""Reads the server for a scrape. Scripts count totals in the step that ends a task, so crashes do not distort them."""

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TypeVar

from jobrunner.broker.call import in_slices
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.calls.server import ServerFacts
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.client.records import TOO_MANY, PeriodicRecord, WorkerRecord
from jobrunner.errors import NO_ANSWER, JobrunnerError
from jobrunner.inspector.lag import StationLag, lags_of
from jobrunner.inspector.shards import EndTotals, end_totals, known_queues
from jobrunner.inspector.snapshot import QueueView, leader, queue_views, server_facts
from jobrunner.inspector.stats import StatsTotal, each
from jobrunner.inspector.stats_types import Timings
from jobrunner.inspector.streams import StreamProgress, read_streams

T = TypeVar("T")
PARTS = ("queues", "workers", "stats", "leader", "periodic", "streams")
"""The parts of a reading. On a cluster each may be on a node of its own."""
UNKNOWN = "unknown"
"""The type label of all types beyond the limit."""
_MOST = (100, 50, 20, 10, 5, 2, 1)
"""Limits of types per queue with series of their own; types that workers know come first. The first limit applies that
keeps all queues within `_MOST_IN_ALL`. Steps keep changes rare: a type that joins or leaves UNKNOWN shows as a jump."""
_MOST_IN_ALL = 5000
"""Types of all queues that have series of their own: some 60 series each, 30 MB together. Rendering them takes 5 s of
processor time; Prometheus waits for 10 s."""
MOST_QUEUES = 2000
"""Queues that have series of their own: first queues that workers serve, then the others, by name."""
_AT_ONCE = 500
_MOST_LAGS = 200
"""Pipeline queues with suggestions for autoscaling in a scrape. The limit is low because a suggestion reads statistics
of five minutes."""
_MOST_ZEROS = 500
"""Known types of all queues up to which a type has series (of zeros) before its first task ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReading:
    """All figures of a scrape, read at one moment."""

    queues: list[QueueView]
    others: list[QueueView]
    """Queues beyond the first 2 000, which have no series of their own."""
    ended: Mapping[tuple[str, str, str], int]
    """Ends of attempts by queue, type and outcome. Type '': attempts without a type, or not counted by type."""
    measured: Mapping[tuple[str, str], StatsTotal]
    """Counts and times that workers reported since the prefix exists, by queue and type."""
    stations: Mapping[str, StatsTotal]
    """Counts that the drivers of stations reported for their batches since the prefix exists, by queue."""
    lags: list[StationLag]
    """Lags of at most 200 queues of pipelines; queues with a worker or with items come first."""
    streams: list[StreamProgress]
    """Progress of streaming queries that programs watch."""
    round_trip: Timings
    workers: list[WorkerRecord]
    leader: str | None
    periodics: list[PeriodicRecord]
    server: ServerFacts | None
    is_list_unread: bool
    """Whether the list of queues cannot be read, so that there may be others than those known here."""
    unread: Mapping[str, str]
    """The parts that cannot be read, wholly or partly, as the node of a cluster that has them is away, each with the
    error. They are empty here, and have no series: zeros would look like a reset of counters, or fire alerts."""


class _PartialReads:
    """Reads the parts of a reading. A part whose node of a cluster is away becomes `unread`, with the error."""

    def __init__(self, client: Client) -> None:
        self._broker = broker_of(client)
        self.unread: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """The result of `read`, or `otherwise`. Raises ServerError when no node answers."""
        try:
            return read()
        except NO_ANSWER as error:
            if self._broker.is_away(error):
                raise
            self.unread[name] = str(error)
            return otherwise


def take(client: Client) -> MetricsReading:
    """Takes a reading, in a handful of round trips and four for each 500 queues. Raises ServerError; on a cluster only
    when no node answers."""
    parts, unlisted = _PartialReads(client), dict[str, str]()
    names = known_queues(client, unlisted)
    workers = parts.read("workers", client.workers, list[WorkerRecord]())
    totals = _end_totals(client, workers, names)
    views = queue_views(client, workers, names)
    for problem in (*unlisted.values(), *(one.problem for one in views if one.problem)):
        parts.unread.setdefault("queues", problem)
    queues = [one for one in views if one.name in totals]
    others = [one for one in views if one.name not in totals]
    known = {one.name: _known(workers, one.name) for one in queues}
    left_out = {one.name for one in others}
    counts = parts.read("stats", lambda: _totals(client, left_out), dict[str, str]())
    measured, round_trip, most = _measured(counts, known)
    stations = {queue: measured.pop((queue, type_)) for queue, type_ in list(measured) if type_ == "-"}
    has_lags = not {"stats", "workers"} & parts.unread.keys()
    return MetricsReading(
        queues=queues,
        others=others,
        ended=_all_ended(queues, totals, known, most),
        measured=measured,
        stations=stations,
        lags=parts.read("stats", lambda: _lags(client, queues, workers), []) if has_lags else [],
        streams=parts.read("streams", lambda: read_streams(client), []),
        round_trip=round_trip,
        workers=workers,
        leader=parts.read("leader", lambda: leader(client), None),
        periodics=parts.read("periodic", client.periodics, []),
        server=server_facts(client),
        is_list_unread=bool(unlisted),
        unread=parts.unread,
    )


def _end_totals(
    client: Client, workers: list[WorkerRecord], names: Iterable[str]
) -> dict[str, EndTotals | JobrunnerError]:  # fmt: skip
    """The totals of the queues that have series of their own, or the errors in their place."""
    served = {queue for worker in workers for queue in worker.queues}
    shown = sorted(names, key=lambda name: (name not in served, name))[:MOST_QUEUES]
    return {
        name: one
        for some in in_slices(shown, _AT_ONCE)
        for name, one in zip(some, end_totals(client, some), strict=True)
    }


def _lags(client: Client, queues: list[QueueView], workers: list[WorkerRecord]) -> list[StationLag]:
    of_pipelines = [one for one in queues if "/" in one.name]
    some = sorted(of_pipelines, key=lambda one: not (one.workers or one.open))[:_MOST_LAGS]
    return lags_of(client, some, workers) if some else []


def _totals(client: Client, left_out: AbstractSet[str]) -> dict[str, str]:
    """Statistics since the prefix exists, without the queues in `left_out`."""
    found: dict[str, str] = {}
    cursor = 0
    while True:
        cursor, some = broker_of(client).run(stats_calls.some_totals(keys_of(client), cursor))
        found.update((field, by) for field, by in some.items() if field.partition(" ")[0] not in left_out)
        if not cursor:
            return found | _failures(client, found)


def _failures(client: Client, totals: Mapping[str, str]) -> dict[str, str]:
    """The counts of failed attempts and of those that were the last, both of a queue and type from one moment. The
    retries are their difference: of two moments, it would be too high or too low, and fall at a later scrape."""
    pairs = [(field, f"{field.rpartition(' ')[0]} dead") for field in totals if field.endswith(" failed")]
    calls = [
        stats_calls.totals_of(keys_of(client), [field for pair in some for field in pair])
        for some in in_slices(pairs, _AT_ONCE)
    ]
    return {field: by for some in broker_of(client).run_many(calls) for field, by in some.items()} if calls else {}


def _known(workers: list[WorkerRecord], queue: str) -> set[str]:
    """Job types that the workers of a queue report to know."""
    types = {type_ for worker in workers if queue in worker.queues for type_ in worker.types or ()}
    return types - {TOO_MANY, ""}


def _all_ended(
    queues: list[QueueView], totals: Mapping[str, EndTotals | JobrunnerError], known: Mapping[str, AbstractSet[str]],
    most: int,
) -> dict[tuple[str, str, str], int]:  # fmt: skip
    """Ends of attempts by queue, type and outcome, of the queues that could be read."""
    begins = sum(map(len, known.values())) <= _MOST_ZEROS
    found: dict[tuple[str, str, str], int] = {}
    for one in queues:
        counted = totals[one.name]
        if not one.problem and not isinstance(counted, JobrunnerError):
            found |= _ended(one.name, counted, known[one.name], most, begins=begins)
    return found


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
    # Zeros for outcomes without a task yet: a series that begins with its first dead task would show no increase.
    types = {type_ for _, type_, _ in found} | (known if begins else set()) or {""}
    zeros = {(queue, type_, outcome): 0 for type_ in types for outcome in rest}
    return zeros | found


def _shown(types: AbstractSet[str], known: AbstractSet[str], most: int) -> set[str]:
    """The types of a queue that have series of their own."""
    return set(sorted(types, key=lambda one: (one not in known, one))[:most])


def _most(types: Iterable[AbstractSet[str]]) -> int:
    """The number of types per queue that have series of their own."""
    sizes = [len(some) for some in types]
    return next((most for most in _MOST if sum(min(size, most) for size in sizes) <= _MOST_IN_ALL), _MOST[-1])


def _measured(
    totals: Mapping[str, str], known: Mapping[str, AbstractSet[str]]
) -> tuple[dict[tuple[str, str], StatsTotal], Timings, int]:
    """Returns the statistics of workers by queue and type, the round trips, and the number of types shown per queue."""
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
