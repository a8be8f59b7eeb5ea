"""Draws the figures as SVGs whose colours work on light and dark pages."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.board import Board
from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import MEASURES, OURS, PEERS
from benchmarks.results import Summary

mpl.use("svg")

from matplotlib import pyplot as plt

_OURS, _PEER, _LIMIT = "#0d9488", "#94a3b8", "#cbd5e1"
_INK = "#7a8699"
"""Colour of text and axes: a grey between black and white."""
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
_STYLE = {
    "text.color": _INK, "axes.labelcolor": _INK, "xtick.color": _INK, "ytick.color": _INK, "axes.edgecolor": _INK,
    "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "svg.hashsalt": "jobrunner",
}  # fmt: skip


def bars(board: Board, path: Path) -> None:
    """Medians of all contenders, the best on top, with the spread of the rounds as error bars."""
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure, axes = plt.subplots(2, 3, figsize=(12, 7.5), layout="constrained")
        for (name, title), axis in zip(_BARS.items(), axes.flat, strict=True):
            _bars(board, name, axis)
            axis.set_title(title, fontsize=10)
        _save(figure, path)


def growth(points: Sequence[GrowthPoint], path: Path) -> None:
    """The server's time for a task in each series, by size; the band is the spread of the rounds."""
    names = list(dict.fromkeys(point.series for point in points))
    with mpl.rc_context(_STYLE):  # type: ignore[arg-type]
        figure, axes = plt.subplots(2, 3, figsize=(12, 6.5), layout="constrained")
        for name, axis in zip(names, axes.flat, strict=True):
            _curve(name, [point for point in points if point.series == name], axis)
        _save(figure, path)


def _bars(board: Board, name: str, axis: Any) -> None:
    measure = MEASURES[name]
    found = {who: one.summary for who, one in board.figures(name).items() if one.values and not one.void}
    ranked = sorted(found, key=lambda who: found[who].median, reverse=not measure.most_is_best)
    summaries = [found[who] for who in ranked]
    middle = [one.median for one in summaries]
    spread = [[one.median - one.least for one in summaries], [one.most - one.median for one in summaries]]
    colours = [_OURS if who.startswith(OURS) else _PEER if who in PEERS else _LIMIT for who in ranked]
    axis.barh(ranked, middle, xerr=spread, color=colours, ecolor=_INK, error_kw={"elinewidth": 0.8})
    for place, value in enumerate(middle):
        axis.text(value, place, f"  {measure.format(value)}", va="bottom", fontsize=7.5)
    axis.set_xscale("log")
    axis.set_xlim(min(middle) / 2, max(middle) * 4)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _curve(name: str, points: Sequence[GrowthPoint], axis: Any) -> None:
    is_history = name.startswith("history")
    # "off" has size 0, which a logarithmic axis cannot show.
    sizes = [max(point.size, 100) if is_history else point.size for point in points]
    costs = [Summary.of(point.server_us) for point in points]
    middle = [cost.median for cost in costs]
    axis.fill_between(sizes, [cost.least for cost in costs], [cost.most for cost in costs], alpha=0.2, color=_OURS)
    axis.plot(sizes, middle, marker="o", color=_OURS)
    axis.set(xscale="log", ylabel="server, µs a task", ylim=(0, max(max(middle) * 1.3, 1)))
    if max(middle) > _WIDE * min(middle):
        axis.set(yscale="log", ylim=(min(middle) / 2, max(middle) * 2))
    axis.set_title(name, fontsize=10)
    if is_history:
        axis.set_xticks(sizes, ["off", *(f"{point.size:,}" for point in points[1:])])
    axis.grid(alpha=0.3)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)
