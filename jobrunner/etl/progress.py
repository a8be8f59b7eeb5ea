"""The progress of a pipeline: items by queue, rates, and the time that the open items will take. Reads only.

A reading is one round trip with a fixed number of commands for each queue and partition, however many items it has, and
a second round trip for the last batches of stations on Spark, if any. Rates are the growth of the queues' totals.
The time left is the number of open items divided by the rate at which it falls; it is unknown while that number does
not fall.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.broker.calls.shards import shard_counts
from jobrunner.broker.shards import shard_name
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.errors import ServerError
from jobrunner.etl.graph import Graph, QueueNode
from jobrunner.inspector.batches import batches_of, stopped_by
from jobrunner.inspector.live_rates import Growth
from jobrunner.inspector.snapshot import CAME, ENDED, LEFT
from jobrunner.jobs.registry import held_up

UNDECLARED = "undeclared"
"""The kind of a queue that the pipeline does not declare."""
_ATTEMPTS = 10
"""The number of last attempts at batches to read; while a station is stopped, few attempts end without its error."""
Counts = Mapping[str, QueueCounts]
"""The counts by the full name of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Items per second in and out, and seconds until no item is open; None where unknown."""

    in_per_s: float | None = None
    out_per_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StationView:
    """One queue of a pipeline with its station."""

    queue: str
    """The queue's name within the pipeline."""
    kind: str
    targets: tuple[str, ...]
    waiting: int
    scheduled: int
    pending: int
    dead: int
    done: int
    """The number of finished items that the queue keeps."""
    paused: bool
    totals: Mapping[str, int]
    """Counts since the queue was created: enqueued, moved_in, moved_out, succeeded, dropped, dead, ..."""
    rate: Rate
    is_chained: bool = False
    """Whether a chain includes its station: items that the chain takes do not enter the next queue."""
    stopped: str = ""
    """On Spark: the error, not caused by an item, for which the station stopped. Empty while it works or has no
    item."""

    @property
    def open(self) -> int:
        """The number of items that have not left the queue."""
        return self.waiting + self.scheduled + self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """The state of a pipeline."""

    name: str
    stations: tuple[StationView, ...]
    """In the order in which items pass them."""
    open: int
    dead: int
    succeeded: int
    """The number of items that succeeded since the pipeline was created, including items that fanned out."""
    dropped: int
    rate: Rate


class Progress:
    """Reads one pipeline repeatedly; rates are those of the last ten seconds. `undeclared`: further queues of it, which
    come last."""

    def __init__(self, client: Client, graph: Graph, undeclared: Sequence[QueueNode] = ()) -> None:
        self._client = client
        self._graph = graph
        self._undeclared = undeclared
        self._counts = _WholeCounts(client, [node.queue for node in (*graph.nodes, *undeclared)])
        self._growth = Growth()

    def look(self) -> PipelineView:
        """Reads the state; the first reading has no rates. Raises ServerError."""
        now = self._counts.read()
        self._growth.add(monotonic(), {name: found.totals for name, found in now.items()})
        nodes, stopped = [*self._graph.in_order(), *self._undeclared], self._stopped()
        stations = tuple(self._station(node, now, stopped.get(node.queue, "")) for node in nodes)
        return PipelineView(
            name=self._graph.pipeline,
            stations=stations,
            open=sum(station.open for station in stations),
            dead=sum(station.dead for station in stations),
            succeeded=_total(stations, "succeeded"),
            dropped=_total(stations, "dropped"),
            rate=self._rate([node.queue for node in nodes], now, ["enqueued"], ENDED),
        )

    def _stopped(self) -> dict[str, str]:
        names = [node.queue for node in self._graph.nodes if node.batches]
        if not names:
            return {}
        redaction, logs = self._client.redaction(), batches_of(self._client, names, _ATTEMPTS)
        found = {name: stopped_by(batches) for name, batches in logs.items()}
        return {name: redaction.text(one.cause) for name, one in found.items() if one is not None}

    def _station(self, node: QueueNode, now: Counts, stopped: str) -> StationView:
        found = now[node.queue]
        return StationView(
            queue=node.short,
            kind=node.kind,
            targets=tuple(target.partition("/")[2] for target in node.targets),
            waiting=found.waiting,
            scheduled=found.scheduled,
            pending=found.pending,
            dead=found.dead,
            done=found.done,
            paused=found.paused,
            totals=found.totals,
            rate=self._rate([node.queue], now, CAME, LEFT),
            is_chained=node.is_chained,
            stopped=stopped if found.open else "",
        )

    def _rate(self, names: list[str], now: Counts, coming: Iterable[str], leaving: Iterable[str]) -> Rate:
        is_open = sum(now[name].open for name in names)
        came, left = self._growth.per_s(names, coming), self._growth.per_s(names, leaving)
        shrinks = (left or 0.0) - (came or 0.0)
        until_empty = is_open / shrinks if shrinks > 0 else None
        return Rate(in_per_s=came, out_per_s=left, left_s=until_empty if is_open else 0.0)


def undeclared(client: Client, graph: Graph) -> list[QueueNode]:
    """The queues that hold items of the pipeline and are not declared, as after a deploy that renamed or removed a
    station: nothing takes from them. None when the server does not tell the names of its queues."""
    declared = {node.queue for node in graph.nodes}
    try:
        names = [name for name in client.queues() if name.startswith(f"{graph.pipeline}/") and name not in declared]
        found = _WholeCounts(client, names).read()
    except ServerError:  # one node of a cluster, or a right, is missing: the counts of the declared queues are not
        return []
    return [QueueNode(queue=name, kind=UNDECLARED) for name in names if found[name].open or found[name].dead]


class Emptied:
    """Detects that a pipeline is empty, for a program that waits for that.

    Queues are not counted at one instant, so an item could move from an uncounted queue to a counted queue. So the
    pipeline counts as empty only after two empty counts without a change of the totals in between. Tasks in a paused
    queue do not count, nor items that only a full paused queue holds up, as these may never have room.
    """

    def __init__(self, client: Client, graph: Graph, *, also_scheduled: bool) -> None:
        self._client = client
        self._graph = graph
        self._counts = _WholeCounts(client, [node.queue for node in graph.nodes])
        self._also_scheduled = also_scheduled
        self._before: list[Mapping[str, int]] | None = None

    def __call__(self) -> bool:
        """Counts the items once; returns whether the pipeline is empty. Raises ServerError."""
        found = self._counts.read()
        served = [node.queue for node in self._graph.nodes if node.is_served]
        if any(map(self._left, map(found.__getitem__, served))):
            held_up = self._held_up(found) if any(one.paused for one in found.values()) else []
            if any(self._left(found[queue]) for queue in served if queue not in held_up):
                self._before = None
                return False
        totals: list[Mapping[str, int]] = [found[queue].totals for queue in served]
        is_same, self._before = totals == self._before, totals
        return is_same

    def _held_up(self, found: Counts) -> list[str]:
        """The queues whose items can leave into no target, as all targets are full and paused, or held up as well."""

        @cache
        def is_full(queue: str) -> bool:
            max_size = self._client.queue(queue).settings().max_size or 0
            return 0 < max_size <= found[queue].waiting + found[queue].scheduled

        targets = {node.queue: node.targets for node in self._graph.nodes}
        paused = {queue for queue, one in found.items() if one.paused}
        return held_up(targets, paused, lambda queue, to: self._graph.waits(queue, to) and is_full(to))

    def _left(self, found: QueueCounts) -> int:
        waiting = 0 if found.paused else found.waiting
        return waiting + found.pending + (found.scheduled if self._also_scheduled else 0)


class _WholeCounts:
    """The counts of queues of one pipeline, over all its partitions: one round trip, and another after the number of
    partitions grew."""

    def __init__(self, client: Client, names: Sequence[str]) -> None:
        self._client = client
        self._names = names
        self._partitions = 1

    def read(self) -> Counts:
        """Reads the counts. Raises ServerError."""
        found: dict[str, QueueCounts] = {}
        keys, read = keys_of(self._client), 0
        while self._names and read < self._partitions:
            shards = [(name, shard_name(name, number)) for number in range(read, self._partitions)
                      for name in self._names]  # fmt: skip
            calls = [queues.counts(keys.queue(shard)) for _, shard in shards]
            now, *replies = broker_of(self._client).run_many([shard_counts(keys.queue(self._names[0])), *calls])
            for (name, _), counts in zip(shards, replies, strict=True):
                found[name] = queues.together(found[name], counts) if name in found else counts
            read, self._partitions = self._partitions, max(now.served, self._partitions)
        return found


def _total(stations: Iterable[StationView], name: str) -> int:
    return sum(station.totals.get(name, 0) for station in stations)
