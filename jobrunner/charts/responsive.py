"""Charts of the dashboard, rendered on the server: bars and lines over time, sparklines, shares of a whole.

Invariants: the SVG has classes of `app.css` and no colour, font or inline style, so that it follows both themes and
passes the page's security policy; text stands beside the plot and never inside it, so that a plot stretches to any
width and stays readable; every text from outside is escaped.

The style follows Tufte, "The Visual Display of Quantitative Information" (1983): little ink that shows no data.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from markupsafe import Markup

from jobrunner.charts import ChartScale, ChartSeries, Values, curve, filled, halves, rect, round_step, rule, runs
from jobrunner.formatting import number

_WIDTH, _HEIGHT = 600.0, 160.0
_SPARK_WIDTH, _SPARK_HEIGHT = 96.0, 24.0
_SPARK_LOOK = "waiting"
_DAY_S = 86_400
_MOST_TICKS = 7


Marks = Sequence[tuple[datetime, str]]
"""Instants to mark in a chart, each with the event at that time."""


def bars(
    starts: Sequence[datetime], lines: Sequence[ChartSeries], *, title: str, unit: str = "", marks: Marks = ()
) -> Markup:
    """Stacked bars over time. All of `lines` are as long as `starts`."""
    totals = [sum(line.values[at] or 0.0 for line in lines) for at in range(len(starts))]
    y = halves(max(totals, default=0.0), _HEIGHT, 0.0)
    parts = []
    width = _WIDTH / max(len(starts), 1)
    for at in range(len(starts)):
        below = 0.0
        for line in lines:
            if value := line.values[at] or 0.0:
                tall = max(value / y.high * _HEIGHT, 1.0)
                parts.append(rect(f"fill {line.look}", (at + 0.1) * width, y.at(below + value), width * 0.8, tall))
                below += value
    return _with_axes(starts, lines, parts, y, title=title, unit=unit, marks=marks)


def lines(
    starts: Sequence[datetime], drawn: Sequence[ChartSeries], *, title: str, unit: str = "", marks: Marks = ()
) -> Markup:
    """Lines over time on one linear axis from zero, with gaps where a value is None. The area below the first line is
    filled."""
    found = [value for line in drawn for value in line.values if value is not None]
    y = halves(max(found, default=0.0), _HEIGHT, 0.0)
    xs = _middles(len(starts))
    parts = []
    for nth, line in enumerate(drawn):
        for points in runs(xs, line.values, y):
            if nth == 0:
                parts.append(filled(line.look, points, _HEIGHT))
            parts.append(curve(line.look, points))
    return _with_axes(starts, drawn, parts, y, title=title, unit=unit, marks=marks)


def sparkline(values: Values, *, label: str) -> Markup:
    """A line of the size of a word; without values, an empty plot of the same size."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    y = ChartScale(0.0, top, _SPARK_HEIGHT - 1, 1.0)  # half the width of the line stays free at both ends
    xs = [at * _SPARK_WIDTH / max(len(values) - 1, 1) for at in range(len(values))]
    parts = []
    for points in runs(xs, values, y):
        parts += [filled(_SPARK_LOOK, points, _SPARK_HEIGHT), curve(_SPARK_LOOK, points)]
    return safe(
        f'<svg class="sparkline" viewBox="0 0 {_SPARK_WIDTH:.0f} {_SPARK_HEIGHT:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def shares(parts: Sequence[tuple[str, str, float]], *, label: str) -> Markup:
    """One bar divided by (name, look, size), the parts of a whole. A whole of size zero is an empty bar."""
    whole = sum(size for _, _, size in parts)
    drawn, left = [], 0.0
    for name, look, size in parts:
        if size:
            width = size / whole * 100
            drawn.append(rect(f"fill {look}", left, 0, max(width, 0.6), 4, title=f"{name}: {number(size)}"))
            left += width
    said = ", ".join(f"{name} {number(size)}" for name, _, size in parts if size) or "nothing"
    return safe(
        f'<svg class="shares" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}: {escape(said)}">{"".join(drawn)}</svg>'
    )


def safe(drawn: str) -> Markup:
    """Marks text as HTML, so that templates do not escape it. Only for SVG made here, with every name escaped."""
    return Markup(drawn)  # noqa: S704


def _with_axes(
    starts: Sequence[datetime], drawn: Sequence[ChartSeries], parts: list[str], y: ChartScale, *, title: str, unit: str,
    marks: Marks,
) -> Markup:  # fmt: skip
    legend = "".join(f'<span class="key"><i class="dot {line.look}"></i>{escape(line.name)}</span>' for line in drawn)
    placed = _placed(starts, marks)
    if placed:
        names = ", ".join(text for _, text in placed.values())
        legend += f'<span class="key"><i class="dot mark"></i>{escape(names)}</span>'
    peaks = ", ".join(f"{line.name} up to {_amount(_most(line), unit)}" for line in drawn)
    axis = "".join(f"<span>{escape(_mark(tick, unit))}</span>" for tick in y.ticks[:0:-1]) + "<span>0</span>"
    xs, labels = _middles(len(starts)), ticks(starts)
    grid = [rule("grid", 0, y.at(tick), _WIDTH, y.at(tick)) for tick in y.ticks]
    grid += [rule("grid upright", xs[at], 0, xs[at], _HEIGHT) for at, _ in labels]
    parts += [rule("mark", xs[at], 0, xs[at], _HEIGHT) for at in placed]
    below = "".join(
        f'<text x="{xs[at] / _WIDTH:.2%}" y="14" text-anchor="middle" data-at="{_iso(starts[at])}" '
        f'data-form="{"day" if _is_day(label) else "clock"}">{escape(label)}</text>'
        for at, label in labels
    )
    none = "" if parts else '<p class="plot-none">Nothing was measured in this time.</p>'
    return safe(
        f'<div class="legend">{legend}</div><div class="plot"><div class="plot-y" aria-hidden="true">{axis}</div>'
        f'<svg class="plot-area" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}: {escape(peaks)}">{"".join(grid)}{"".join(parts)}'
        f'{_spots(starts, drawn, unit, placed)}</svg><svg class="plot-x" aria-hidden="true">{below}</svg>{none}</div>'
    )


def ticks(starts: Sequence[datetime]) -> list[tuple[int, str]]:
    """(index, label) of the round times among the starts of steps, in UTC: at most eight."""
    if len(starts) < 2:
        return []
    apart_s = round_step((starts[-1] - starts[0]).total_seconds(), _MOST_TICKS)
    form = "%H:%M" if apart_s < _DAY_S else "%b %d"
    return [
        (at, start.astimezone(UTC).strftime(form))
        for at, start in enumerate(starts)
        if start.timestamp() % apart_s == 0
    ]


def _placed(starts: Sequence[datetime], marks: Marks) -> dict[int, tuple[datetime, str]]:
    """The marks by step; several marks in one step become one, with the last instant and all texts."""
    if len(starts) < 2:
        return {}
    step_s = (starts[1] - starts[0]).total_seconds()
    found: dict[int, tuple[datetime, str]] = {}
    for at, text in marks:
        step = int((at - starts[0]).total_seconds() // step_s)
        if 0 <= step < len(starts):
            found[step] = (at, f"{found[step][1]}, {text}" if step in found else text)
    return found


def _spots(
    starts: Sequence[datetime], drawn: Sequence[ChartSeries], unit: str, placed: Mapping[int, tuple[datetime, str]]
) -> str:
    """An invisible rectangle for each step, which shows the step's values under the pointer."""
    width = _WIDTH / max(len(starts), 1)
    found = []
    for at, start in enumerate(starts):
        tip = _tip(start, drawn, at, unit) + (f" · {placed[at][1]}" if at in placed else "")
        until = {"until": _iso(starts[at + 1])} if at + 1 < len(starts) else {}
        data = {"at": _iso(start), **until, "tip": tip}
        found.append(rect("hot", at * width, 0, width, _HEIGHT, title=tip, data=data))
    return "".join(found)


def _iso(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _is_day(label: str) -> bool:
    return ":" not in label


def _tip(start: datetime, drawn: Sequence[ChartSeries], at: int, unit: str) -> str:
    values = [f"{line.name} {_amount(value, unit)}" for line in drawn if (value := line.values[at]) is not None]
    return " · ".join([start.astimezone(UTC).strftime("%b %d %H:%M"), *values])


def _amount(value: float, unit: str) -> str:
    """A number with its unit; a second and more of milliseconds as seconds."""
    return f"{number(value / 1000)} s" if unit == " ms" and value >= 1000 else f"{number(value)}{unit}"


def _mark(value: float, unit: str) -> str:
    """The label of a tick; empty for a fraction of a task."""
    return "" if not unit and value != int(value) else _amount(value, unit)


def _most(line: ChartSeries) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _middles(count: int) -> list[float]:
    return [(at + 0.5) * _WIDTH / count for at in range(count)]
