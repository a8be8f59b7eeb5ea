"""Draws the results as SVGs whose colours work on light and dark pages."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.board import Board
from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import MEASURES, OURS, PEERS
from benchmarks.results import Summary
from jobrunner.charts import ChartScale, band, curve, dot, logarithmic, picture, quarters, rect, rule, text
from jobrunner.charts.axes import PlotArea, plain
from jobrunner.formatting import number

_WIDTH, _COLUMNS = 1200, 3
_BAR_LABELS, _COST_LABELS = 132, 64
_BAR_HEIGHT, _CURVE_HEIGHT = 375, 325
_TITLE, _BELOW = 30, 34
_WIDE = 8
"""Costs that differ by more than this factor get a logarithmic axis."""
_BARS = {
    "drain": "no-op tasks drained a second",
    "waits": "5 ms waits, 50 at once, a second",
    "bulk": "enqueued in bulk a second",
    "start": "idle worker: enqueue to start, ms",
    "cpu_us": "server CPU a task, µs",
    "client_us": "worker CPU a task, µs",
}
# Text and axes are of a grey between black and white, and the background is transparent: GitHub and the documentation
# show the same file on light and on dark pages.
_STYLE = """\
svg{font:12px sans-serif}text{fill:#7a8699}.title{font-size:13px}.value{font-size:10px}.axis{font-size:11px}
.grid{stroke:#7a8699;stroke-opacity:.25}.edge,.spread{stroke:#7a8699}.spread{stroke-width:.8}
.line{fill:none!important;stroke-width:2}.area{opacity:.2;stroke:none!important}
.ours{fill:#0d9488;stroke:#0d9488}.peer{fill:#94a3b8}.limit{fill:#cbd5e1}rect{stroke:none!important}"""


def bars(board: Board, path: Path) -> None:
    """Medians of all contenders, the best on top; the thin lines are the spread of the rounds."""
    parts = _grid(_BARS, _BAR_HEIGHT, _BAR_LABELS, lambda name, plot: _ranked(board, name, plot))
    _save(parts, len(_BARS), _BAR_HEIGHT, "Bars of all contenders, each plot on a logarithmic scale", path)


def growth(points: Sequence[GrowthPoint], path: Path) -> None:
    """The server's time for a task in each series, by size; the band is the spread of the rounds."""
    series = {point.series: point.series for point in points}

    def draw(name: str, plot: PlotArea) -> list[str]:
        return _cost([point for point in points if point.series == name], plot)

    parts = _grid(series, _CURVE_HEIGHT, _COST_LABELS, draw)
    _save(parts, len(series), _CURVE_HEIGHT, "What a task costs the server by size, a curve for each series", path)


def _grid(titles: dict[str, str], height: float, left: float, draw: Callable[[str, PlotArea], list[str]]) -> list[str]:
    parts, width = [], _WIDTH / _COLUMNS
    for nth, (name, title) in enumerate(titles.items()):
        x, y = nth % _COLUMNS * width, nth // _COLUMNS * height
        plot = PlotArea(left=x + left, right=x + width - 14, top=y + _TITLE, floor=y + height - _BELOW)
        parts += [text("title", (plot.left + plot.right) / 2, y + 18, title), *draw(name, plot)]
        parts.append(rule("edge", plot.left, plot.top, plot.left, plot.floor))
        parts.append(rule("edge", plot.left, plot.floor, plot.right, plot.floor))
    return parts


def _save(parts: Sequence[str], plots: int, height: float, label: str, path: Path) -> None:
    rows = -(-plots // _COLUMNS)
    path.write_text(picture(parts, width=_WIDTH, height=rows * height, label=label, style=_STYLE), "utf-8")


def _ranked(board: Board, name: str, plot: PlotArea) -> list[str]:
    measure = MEASURES[name]
    found = {who: one.summary for who, one in board.figures(name).items() if one.values and not one.void}
    ranked = sorted(found, key=lambda who: found[who].median, reverse=measure.most_is_best)
    medians = [one.median for one in found.values()]
    x = logarithmic(min(medians) / 2, max(medians) * 4, plot.left, plot.right)
    parts = [plot.x_axis(x, number if min(x.ticks) >= 1 else plain)]
    row = (plot.floor - plot.top - 8) / max(len(ranked), 1)
    for nth, who in enumerate(ranked):
        y, summary = plot.top + 4 + (nth + 0.5) * row, found[who]
        look = "ours" if who.startswith(OURS) else "peer" if who in PEERS else "limit"
        end = x.at(summary.most)
        parts += [
            text("label", plot.left - 8, y + 4, who, "end"),
            rect(look, plot.left, y - row * 0.4, x.at(summary.median) - plot.left, row * 0.8),
            rule("spread", x.at(summary.least), y, end, y),
            text("value", end + 5, y + 4, measure.format(summary.median), "start"),
        ]
    return parts


def _cost(points: Sequence[GrowthPoint], plot: PlotArea) -> list[str]:
    is_history = points[0].series.startswith("history")
    # "off" has size 0, which a logarithmic axis cannot show.
    sizes = [max(point.size, 100) if is_history else point.size for point in points]
    costs = [Summary.of(point.server_us) for point in points]
    x = logarithmic(min(sizes), max(*sizes, min(sizes) * 10), plot.left + 14, plot.right - 14)
    if is_history:
        x = ChartScale(x.low, x.high, x.start, x.end, tuple(sizes), is_log=True)
    y = _cost_scale(costs, plot)
    xs = [x.at(size) for size in sizes]
    middle, upper, lower = (
        [(at, y.at(value)) for at, value in zip(xs, values, strict=True)]
        for values in zip(*((cost.median, cost.most, cost.least) for cost in costs), strict=True)
    )
    return [
        plot.x_axis(x, lambda size: "off" if is_history and size == sizes[0] else number(size)),
        plot.y_axis(y, title="server, µs a task"),
        band("ours", upper, lower),
        curve("ours", middle),
        *(dot("ours", *point, 4) for point in middle),
    ]


def _cost_scale(costs: Sequence[Summary], plot: PlotArea) -> ChartScale:
    medians = [cost.median for cost in costs]
    if max(medians) > _WIDE * min(medians):
        return logarithmic(min(medians) / 2, max(medians) * 2, plot.floor, plot.top)
    return quarters(max(cost.most for cost in costs), plot.floor, plot.top)
