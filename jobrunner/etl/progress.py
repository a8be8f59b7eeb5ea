"""Where the items of a pipeline are, how fast they go, and how long what is left will take. Reads only.

A look is one round trip with a fixed number of commands for each queue, whatever is in them. Rates come from two looks:
what the totals of the queues grew by. The time left is what is open, by the pace at which it becomes less; there is
none to tell when it does not.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jobrunner.broker.calls import queues
from jobrunner.broker.calls.queues import QueueCounts
from jobrunner.client.client import Client
from jobrunner.clock import monotonic
from jobrunner.etl.graph import Graph, Node

_WINDOW_S = 10.0
_IN = ("enqueued", "moved_in")
_ENDS = ("succeeded", "dropped", "cancelled", "dead", "orphaned")
_OUT = (*_ENDS, "moved_out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
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
    pace: Pace

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
    pace: Pace


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    counts: dict[str, QueueCounts]


class Progress:
    """Looks at one pipeline again and again; rates are those of the last ten seconds."""

    def __init__(self, client: Client, graph: Graph) -> None:
        self._client = client
        self._graph = graph
        self._samples: deque[_Sample] = deque()

    def look(self) -> PipelineView:
        """Takes a look; the first one has no rates. Raises ServerError."""
        now = self._sample()
        self._samples.append(now)
        while len(self._samples) > 2 and self._samples[1].at_s <= now.at_s - _WINDOW_S:
            self._samples.popleft()
        nodes = self._graph.in_order()
        stations = tuple(self._station(node, now) for node in nodes)
        every = [node.queue for node in nodes]
        return PipelineView(
            name=self._graph.pipeline,
            stations=stations,
            open=sum(station.open for station in stations),
            dead=sum(station.dead for station in stations),
            succeeded=_total(now, every, ["succeeded"]),
            dropped=_total(now, every, ["dropped"]),
            pace=self._pace(every, now, ["enqueued"], _ENDS),
        )

    def _sample(self) -> _Sample:
        names = [node.queue for node in self._graph.nodes]
        keys = self._client.keys
        found = self._client.broker.run_many([queues.counts(keys.queue(name)) for name in names])
        return _Sample(monotonic(), dict(zip(names, found, strict=True)))

    def _station(self, node: Node, now: _Sample) -> StationView:
        found = now.counts[node.queue]
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
            pace=self._pace([node.queue], now, _IN, _OUT),
        )

    def _pace(self, names: list[str], now: _Sample, entering: Iterable[str], leaving: Iterable[str]) -> Pace:
        is_open = sum(_open(now.counts[name]) for name in names)
        first = self._samples[0]
        length_s = now.at_s - first.at_s
        if length_s <= 0:
            return Pace(left_s=None if is_open else 0.0)
        entered = (_total(now, names, entering) - _total(first, names, entering)) / length_s
        left = (_total(now, names, leaving) - _total(first, names, leaving)) / length_s
        shrinks = left - entered
        until_empty = is_open / shrinks if shrinks > 0 else None
        return Pace(in_per_s=entered, out_per_s=left, left_s=until_empty if is_open else 0.0)


class Emptied:
    """Answers whether nothing is left to do in a pipeline, for those who wait for that from outside.

    Its queues are not counted at one instant, so an item could pass behind the one who counts. It has found nothing
    only when it finds nothing twice and nothing happened in between.
    """

    def __init__(self, client: Client, graph: Graph, *, also_scheduled: bool) -> None:
        self._client = client
        self._keys = [client.keys.queue(node.queue) for node in graph.nodes if node.is_served]
        self._also_scheduled = also_scheduled
        self._before: list[Mapping[str, int]] | None = None

    def __call__(self) -> bool:
        """Counts once. Raises ServerError."""
        found = self._client.broker.run_many([queues.counts(keys) for keys in self._keys])
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


def _total(sample: _Sample, names: Iterable[str], totals: Iterable[str]) -> int:
    wanted = list(totals)
    return sum(sample.counts[name].totals.get(total, 0) for name in names for total in wanted)
