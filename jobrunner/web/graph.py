"""Draws the graph of a pipeline as SVG, from left to right, with the present counts of its queues.

Layers by the longest way from a start (Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical
System Structures", 1981); within a layer a node is near the mean position of the nodes that lead to it. Links back into
a loop run below the nodes. As in `charts.responsive` there are classes only, no styles; text is escaped.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

from jobrunner.charts.responsive import safe
from jobrunner.formatting import number
from jobrunner.formatting import rate as rate_text

_WIDE, _TALL = 196, 84
_GAP_X, _GAP_Y, _EDGE = 72, 28, 16
_FITS = 27
"""Characters of counts that fit into a node; longer texts are drawn narrower."""
_SHRINKS = 5
"""Up to this many layers shrink to fit a desktop screen and stay readable; wider graphs scroll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One queue with its present figures. `targets` are names of boxes, in the same graph or not."""

    name: str
    kind: str
    href: str
    waiting: int = 0
    pending: int = 0
    dead: int = 0
    rate: float | None = None
    """Items that leave the queue per second."""
    paused: bool = False
    targets: tuple[str, ...] = ()
    dead_letter_queue: str | None = None


def draw(boxes: Sequence[Box], *, label: str) -> Markup:
    """Draws the graph; `boxes` are in topological order (as `Graph.in_order`). Links to missing boxes are omitted."""
    layers = layered(boxes)
    places = _places(layers)
    columns, rows = len(layers), max((len(layer) for layer in layers), default=1)
    loops = any(_is_back(box.name, to, places) for box in boxes for to in _ways(box, places))
    width = columns * _WIDE + max(columns - 1, 0) * _GAP_X + 2 * _EDGE
    height = rows * _TALL + (rows - 1) * _GAP_Y + 2 * _EDGE + (36 if loops else 0)
    links = [_link(box.name, to, "link", places, height) for box in boxes for to in box.targets if to in places]
    links += [
        _link(box.name, box.dead_letter_queue, "link dead", places, height)
        for box in boxes
        if box.dead_letter_queue in places
    ]
    most = max((box.waiting for box in boxes), default=0)
    nodes = [_node(box, places[box.name], box.waiting / most if most else 0.0) for box in boxes]
    return safe(
        f'<svg class="graph{" fits" * (columns <= _SHRINKS)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="group" aria-label="{escape(label)}">'
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z"/></marker></defs>'
        f"{''.join(links)}{''.join(nodes)}</svg>"
    )


def layered(boxes: Sequence[Box]) -> list[list[str]]:
    """Names by layer. A box is right of all boxes that lead to it, except for links that lead back in the given order.

    A link that skips layers has its own position in each, named by `bend`, so that it does not run behind a box.
    """
    order = {box.name: at for at, box in enumerate(boxes)}
    ahead = [(box.name, to) for box in boxes for to in _ways(box, order) if order[to] > order[box.name]]
    depth = dict.fromkeys(order, 0)
    for name, to in sorted(ahead, key=lambda link: order[link[0]]):
        depth[to] = max(depth[to], depth[name] + 1)
    layers: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in order:
        layers[depth[name]].append(name)
    comes_from: dict[str, list[str]] = {}
    for name, to in dict.fromkeys(ahead):
        way = [name, *(bend(name, to, level) for level in range(depth[name] + 1, depth[to])), to]
        for level, (before, after) in enumerate(itertools.pairwise(way), depth[name] + 1):
            comes_from.setdefault(after, []).append(before)
            if after != to:
                layers[level].append(after)
    return _in_rows(layers, comes_from)


def bend(name: str, to: str, level: int) -> str:
    """The name of a position where a link skips a layer; no queue can have such a name."""
    return f"{name} > {to} @ {level}"


def _in_rows(layers: list[list[str]], comes_from: Mapping[str, list[str]]) -> list[list[str]]:
    rank: dict[str, float] = {}
    found = []
    for layer in layers:
        rows = sorted(layer, key=lambda name: _mean([rank[one] for one in comes_from.get(name, [])]))
        rank.update({name: at - (len(rows) - 1) / 2 for at, name in enumerate(rows)})
        found.append(rows)
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _ways(box: Box, known: Mapping[str, object]) -> list[str]:
    ways = [*box.targets, *([box.dead_letter_queue] if box.dead_letter_queue is not None else [])]
    return [to for to in ways if to in known]


def _places(layers: list[list[str]]) -> dict[str, tuple[float, float]]:
    rows = max((len(layer) for layer in layers), default=1)
    places: dict[str, tuple[float, float]] = {}
    for column, layer in enumerate(layers):
        above = (rows - len(layer)) * (_TALL + _GAP_Y) / 2
        for row, name in enumerate(layer):
            places[name] = (_EDGE + column * (_WIDE + _GAP_X), _EDGE + above + row * (_TALL + _GAP_Y))
    return places


def _is_back(name: str, to: str, places: Mapping[str, tuple[float, float]]) -> bool:
    return places[to][0] <= places[name][0]


def _link(name: str, to: str | None, look: str, places: Mapping[str, tuple[float, float]], height: float) -> str:
    if to is None:
        return ""
    (x1, y1), (x2, y2) = places[name], places[to]
    if _is_back(name, to, places):
        low = height - 10
        start, end = x1 + _WIDE * 0.6, x2 + _WIDE * 0.4
        way = f"M{start:.0f} {y1 + _TALL:.0f}C{start:.0f} {low:.0f} {end:.0f} {low:.0f} {end:.0f} {y2 + _TALL + 2:.0f}"
    else:
        x, y = x1 + _WIDE, y1 + _TALL / 2
        way = f"M{x:.0f} {y:.0f}"
        for level in range(1, len(places)):
            if (stop := places.get(bend(name, to, level))) is not None:
                way += _curve(x, y, stop[0], stop[1] + _TALL / 2) + f"h{_WIDE}"
                x, y = stop[0] + _WIDE, stop[1] + _TALL / 2
        way += _curve(x, y, x2 - 2, y2 + _TALL / 2)
    return f'<path class="{look}" d="{way}" marker-end="url(#arrow)"/>'


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    middle = (x1 + x2) / 2
    return f"C{middle:.0f} {y1:.0f} {middle:.0f} {y2:.0f} {x2:.0f} {y2:.0f}"


def _node(box: Box, place: tuple[float, float], backlog: float) -> str:
    """A node; its bar is as long as its share `backlog` of the largest backlog in the graph."""
    bar = f'<rect class="backlog" x="14" y="50" width="{max((_WIDE - 28) * backlog, 3):.0f}" height="4" rx="2"/>'
    look = f"node{' paused' if box.paused else ''}{' troubled' if box.dead else ''}"
    name = box.name if len(box.name) <= 22 else box.name[:21] + "…"
    kind = f"{box.kind}, paused" if box.paused else box.kind
    rate = "" if box.rate is None else rate_text(box.rate)
    counts = f"{number(box.waiting)} waiting · {number(box.pending)} pending"
    dead = f"{number(box.dead)} dead" if box.dead else ""
    fitting = f' textLength="{_WIDE - 28}" lengthAdjust="spacingAndGlyphs"' if len(counts + dead) > _FITS else ""
    dead = f' · <tspan class="dead">{dead}</tspan>' if dead else ""
    label = f"{box.name}, {kind}: {box.waiting} waiting, {box.pending} pending, {box.dead} dead"
    return (
        f'<a href="{escape(box.href)}" class="{look}" aria-label="{escape(label)}" '
        f'transform="translate({place[0]:.0f} {place[1]:.0f})"><title>{escape(label)}</title>'
        f'<rect width="{_WIDE}" height="{_TALL}" rx="8"/>'
        f'<text class="name" x="14" y="25">{escape(name)}</text>'
        f'<text class="kind" x="14" y="43">{escape(kind)}</text>'
        f'<text class="rate" x="{_WIDE - 14}" y="43" text-anchor="end">{escape(rate)}</text>'
        f"{bar if backlog else ''}"
        f'<text class="counts" x="14" y="71"{fitting}>{counts}{dead}</text></a>'
    )
