"""Where the items of a pipeline are, how fast they go, and how long what is left will take. Reads only.

A look is one round trip with a fixed number of commands for each queue, whatever is in them. Rates are what the totals
of the queues grew by. The time left is what is open, by the pace at which it becomes less; there is none to tell when
it does not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.etl.graph import Graph, QueueNode
from jobrunner.inspector.growth import CAME, ENDED, LEFT, Growth

Counts = Mapping[str, QueueCounts]
"""By the full name of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Items a second in and out, and seconds until nothing is open; None when that cannot be told."""

    in_per_s: float | None = None
    out_per_s: float | None = None
    left_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StationView:
    """One queue of a pipeline and what serves it."""

    queue: str
    """Its name within the pipeline."""
    kind: str
    targets: tuple[str, ...]
    waiting: int
    scheduled: int
    pending: int
    dead: int
    done: int
    """Finished items that it keeps."""
    paused: bool
    totals: Mapping[str, int]
    """Since it exists: enqueued, moved_in, moved_out, succeeded, dropped, dead, ..."""
    pace: Rate

    @property
    def open(self) -> int:
        """Items that are not over here."""
        return self.waiting + self.scheduled + self.pending


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """A pipeline at one glance."""

    name: str
    stations: tuple[StationView, ...]
    """In the order of the way through it."""
    open: int
    dead: int
    succeeded: int
    """Items that ended well since the pipeline exists, those that became others included."""
    dropped: int
    pace: Rate


class Progress:
    """Looks at one pipeline again and again; rates are those of the last ten seconds."""

    def __init__(self, client: Client, graph: Graph) -> None:
        self._client = client
        self._graph = graph
        self._growth = Growth()

    def look(self) -> PipelineView:
        """Takes a look; the first one has no rates. Raises ServerError."""
        now = self._counts()
        self._growth.add(monotonic(), {name: found.totals for name, found in now.items()})
        nodes = self._graph.in_order()
        stations = tuple(self._station(node, now) for node in nodes)
        return PipelineView(
            name=self._graph.pipeline,
            stations=stations,
            open=sum(station.open for station in stations),
            dead=sum(station.dead for station in stations),
            succeeded=_total(stations, "succeeded"),
            dropped=_total(stations, "dropped"),
            pace=self._pace([node.queue for node in nodes], now, ["enqueued"], ENDED),
        )

    def _counts(self) -> Counts:
        names = [node.queue for node in self._graph.nodes]
        keys = keys_of(self._client)
        found = broker_of(self._client).run_many([queues.counts(keys.queue(name)) for name in names])
        return dict(zip(names, found, strict=True))

    def _station(self, node: QueueNode, now: Counts) -> StationView:
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
            pace=self._pace([node.queue], now, CAME, LEFT),
        )

    def _pace(self, names: list[str], now: Counts, coming: Iterable[str], leaving: Iterable[str]) -> Rate:
        is_open = sum(_open(now[name]) for name in names)
        came, left = self._growth.per_s(names, coming), self._growth.per_s(names, leaving)
        shrinks = (left or 0.0) - (came or 0.0)
        until_empty = is_open / shrinks if shrinks > 0 else None
        return Rate(in_per_s=came, out_per_s=left, left_s=until_empty if is_open else 0.0)


class Emptied:
    """Answers whether nothing is left to do in a pipeline, for those who wait for that from outside.

    Its queues are not counted at one instant, so an item could pass behind the one who counts. It has found nothing
    only when it finds nothing twice and nothing happened in between.
    """

    def __init__(self, client: Client, graph: Graph, *, also_scheduled: bool) -> None:
        self._client = client
        self._keys = [keys_of(client).queue(node.queue) for node in graph.nodes if node.is_served]
        self._also_scheduled = also_scheduled
        self._before: list[Mapping[str, int]] | None = None

    def __call__(self) -> bool:
        """Counts once. Raises ServerError."""
        found = broker_of(self._client).run_many([queues.counts(keys) for keys in self._keys])
        if any(self._left(one) for one in found):
            self._before = None
            return False
        totals = [one.totals for one in found]
        is_same, self._before = totals == self._before, totals
        return is_same

    def _left(self, found: QueueCounts) -> int:
        waiting = 0 if found.paused else found.waiting
        return waiting + found.pending + (found.scheduled if self._also_scheduled else 0)


def _open(found: QueueCounts) -> int:
    return found.waiting + found.scheduled + found.pending


def _total(stations: Iterable[StationView], name: str) -> int:
    return sum(station.totals.get(name, 0) for station in stations)
