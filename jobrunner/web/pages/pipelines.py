"""Pipelines: a list, and a page for each with its graph and the counts of its queues."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from jobrunner.etl.graph import Graph, QueueNode
from jobrunner.inspector.snapshot import QueueView
from jobrunner.inspector.stats import QueueStats, by_queue
from jobrunner.web.errors import NotThere
from jobrunner.web.graph import Box, draw
from jobrunner.web.live import DashboardSnapshot
from jobrunner.web.routing import Context, Page, Values

_WINDOW = timedelta(minutes=2)
_OVER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRow:
    """A pipeline as one row: the sums of its queues."""

    name: str
    stations: int
    waiting: int
    scheduled: int
    pending: int
    dead: int
    succeeded: int
    dropped: int
    paused: int
    workers: int
    known: bool
    """Whether its graph was published."""


def _pipelines(context: Context) -> tuple[str, Values]:
    seen = context.snapshot()
    graphs = _graphs(seen)
    return "pipelines.html", {
        "nav": seen.nav,
        "pipelines": [_line(name, graph, _views(name, seen), seen) for name, graph in graphs.items()],
    }


def _pipeline(context: Context) -> tuple[str, Values]:
    name, seen = context.path("pipeline"), context.snapshot()
    graphs = _graphs(seen)
    if name not in graphs:
        raise NotThere(f"there is no pipeline {name!r}: none was ever used under this name")
    graph, views = graphs[name], _views(name, seen)
    figures = by_queue(context.client, since=_WINDOW, may_lack=True)
    nodes = graph.in_order() if graph else [QueueNode(queue=queue, kind="queue") for queue in sorted(views)]
    boxes = [_box(context, node, views.get(node.queue), figures.get(node.queue)) for node in nodes]
    return "pipeline.html", {
        "nav": seen.nav,
        "name": name,
        "line": _line(name, graph, views, seen),
        "drawing": draw(boxes, label=f"Stations of pipeline {name}"),
        "stations": [(node, views.get(node.queue), figures.get(node.queue)) for node in nodes],
        "per_s": {node.queue: _per_s(figures.get(node.queue)) for node in nodes},
    }


def _graphs(seen: DashboardSnapshot) -> dict[str, Graph | None]:
    """The graph of every pipeline by name; None when only its queues are known."""
    found: dict[str, Graph | None] = dict(seen.graphs)
    for queue in seen.look.queues:
        name, slash, _ = queue.name.partition("/")
        if slash:
            found.setdefault(name, None)
    return dict(sorted(found.items()))


def _views(name: str, seen: DashboardSnapshot) -> dict[str, QueueView]:
    return {queue.name: queue for queue in seen.look.queues if queue.name.startswith(f"{name}/")}


def _line(name: str, graph: Graph | None, views: Mapping[str, QueueView], seen: DashboardSnapshot) -> PipelineRow:
    def of(state: str) -> int:
        return sum(getattr(view, state) for view in views.values())

    def total(what: str) -> int:
        return sum(view.totals.get(what, 0) for view in views.values())

    return PipelineRow(
        name=name,
        stations=sum(node.is_served for node in graph.nodes) if graph else len(views),
        waiting=of("waiting"),
        scheduled=of("scheduled"),
        pending=of("pending"),
        dead=of("dead"),
        succeeded=total("succeeded"),
        dropped=total("dropped"),
        paused=sum(view.paused for view in views.values()),
        workers=sum(any(queue in views for queue in worker.queues) for worker in seen.look.workers),
        known=graph is not None,
    )


def _box(context: Context, node: QueueNode, view: QueueView | None, figures: QueueStats | None) -> Box:
    return Box(
        name=node.queue.partition("/")[2],
        kind="not served" if node.kind == "queue" else node.kind,
        href=context.url("queue", queue=node.queue),
        waiting=view.waiting + view.scheduled if view else 0,
        pending=view.pending if view else 0,
        dead=view.dead if view else 0,
        rate=_per_s(figures) if node.is_served else None,
        paused=view.paused if view else False,
        targets=tuple(target.partition("/")[2] for target in node.targets),
        dead_letter_queue=node.dead_letter_queue.partition("/")[2] if node.dead_letter_queue else None,
    )


def _per_s(figures: QueueStats | None) -> float:
    """The rate over the last whole minute and the running one; too low in the first seconds of a minute, never too
    high."""
    return figures.ended / (2 * _OVER_S) if figures else 0.0


pages: list[Page] = [
    Page(path="/pipelines", name="pipelines", endpoint=_pipelines),
    Page(path="/pipelines/{pipeline}", name="pipeline", endpoint=_pipeline),
]
