"""Small charts as SVG text, drawn on the server: bars and lines over time, sparklines, shares of a whole.

What must always hold: no colour, font or style is in here, only classes of `app.css`, so both themes and the page's
policy (no inline style) are served by the same text; text is beside the plot and never inside it, so a plot may be
stretched to any width and stays readable; everything that came from outside is escaped.

Reads best beside Tufte, "The Visual Display of Quantitative Information" (1983): little ink that is no figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from markupsafe import Markup

from jobrunner.charts.scale import Values, area, nice_top, number, path, runs

_WIDTH, _HEIGHT = 600.0, 160.0
_SPARK_WIDTH, _SPARK_HEIGHT = 96.0, 24.0
_DAY_S = 86_400
_APART_S = (60, 300, 600, 1800, 3600, 2 * 3600, 4 * 3600, 12 * 3600, _DAY_S, 7 * _DAY_S)
_MOST_TICKS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartLine:
    """One line, or one colour of stacked bars. `look` is a class of the style sheet; None leaves a gap."""

    name: str
    look: str
    values: Values


def bars(starts: Sequence[datetime], lines: Sequence[ChartLine], *, title: str, unit: str = "") -> Markup:
    """Stacked bars over time. All of `lines` are as long as `starts`."""
    totals = [sum(line.values[at] or 0.0 for line in lines) for at in range(len(starts))]
    top = nice_top(max(totals, default=0.0))
    parts = []
    width = _WIDTH / max(len(starts), 1)
    for at in range(len(starts)):
        below = 0.0
        for line in lines:
            if value := line.values[at] or 0.0:
                y = _HEIGHT - (below + value) / top * _HEIGHT
                tall = max(value / top * _HEIGHT, 1.0)
                parts.append(_rect(line.look, at * width + width * 0.1, y, width * 0.8, tall))
                below += value
    return _figure(starts, lines, parts, title=title, unit=unit, top=top)


def lines(starts: Sequence[datetime], drawn: Sequence[ChartLine], *, title: str, unit: str = "") -> Markup:
    """Lines over time on one linear axis from zero, with gaps where a value is None. The first one is filled."""
    found = [value for line in drawn for value in line.values if value is not None]
    top = nice_top(max(found, default=0.0))
    xs = _middles(len(starts))
    parts = []
    for nth, line in enumerate(drawn):
        for points in runs(xs, line.values, top, _HEIGHT):
            if nth == 0 and len(points) > 1:
                parts.append(f'<path class="area {line.look}" d="{area(points, _HEIGHT)}"/>')
            parts.append(f'<path class="line {line.look}" d="{path(points)}"/>')
    return _figure(starts, drawn, parts, title=title, unit=unit, top=top)


def sparkline(values: Values, *, label: str, look: str = "waiting") -> Markup:
    """A line of the size of a word. Fewer than two values make an empty plot of the same size."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    xs = [at * _SPARK_WIDTH / max(len(values) - 1, 1) for at in range(len(values))]
    parts = []
    for points in runs(xs, values, top, _SPARK_HEIGHT - 2):
        lowered = [(x, y + 1) for x, y in points]
        parts.append(f'<path class="area {look}" d="{area(lowered, _SPARK_HEIGHT)}"/>')
        parts.append(f'<path class="line {look}" d="{path(lowered)}"/>')
    return safe(
        f'<svg class="sparkline" viewBox="0 0 {_SPARK_WIDTH:.0f} {_SPARK_HEIGHT:.0f}" preserveAspectRatio="none" '
        f'role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def shares(parts: Sequence[tuple[str, str, float]], *, label: str) -> Markup:
    """One bar cut into (name, look, size): how a whole is made up. An empty whole is an empty bar."""
    whole = sum(size for _, _, size in parts)
    drawn, left = [], 0.0
    for name, look, size in parts:
        if size:
            width = size / whole * 100
            drawn.append(
                f'<rect class="fill {look}" x="{left:.2f}" y="0" width="{max(width, 0.6):.2f}" height="4">'
                f"<title>{escape(name)}: {number(size)}</title></rect>"
            )
            left += width
    said = ", ".join(f"{name} {number(size)}" for name, _, size in parts if size) or "nothing"
    return safe(
        f'<svg class="shares" viewBox="0 0 100 4" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(label)}: {escape(said)}">{"".join(drawn)}</svg>'
    )


def safe(drawn: str) -> Markup:
    """Tells templates that this text is HTML. Only for what was made here, with every name in it escaped."""
    return Markup(drawn)  # noqa: S704


def _figure(
    starts: Sequence[datetime], drawn: Sequence[ChartLine], parts: list[str], *, title: str, unit: str, top: float
) -> Markup:
    legend = "".join(f'<span class="key"><i class="dot {line.look}"></i>{escape(line.name)}</span>' for line in drawn)
    peaks = ", ".join(f"{line.name} up to {_amount(_most(line), unit)}" for line in drawn)
    axis = "".join(f"<span>{escape(_mark(top * share, unit))}</span>" for share in (1.0, 0.5)) + "<span>0</span>"
    xs, marks = _middles(len(starts)), ticks(starts)
    grid = [_across(_HEIGHT * share) for share in (0.0, 0.5, 1.0)] + [_upright(xs[at]) for at, _ in marks]
    below = "".join(
        f'<text x="{xs[at] / _WIDTH:.2%}" y="14" text-anchor="middle">{escape(label)}</text>' for at, label in marks
    )
    none = "" if parts else '<p class="plot-none">Nothing was measured in this time.</p>'
    return safe(
        f'<div class="legend">{legend}</div><div class="plot"><div class="plot-y" aria-hidden="true">{axis}</div>'
        f'<svg class="plot-area" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}: {escape(peaks)}">{"".join(grid)}{"".join(parts)}'
        f'{_spots(starts, drawn, unit)}</svg><svg class="plot-x" aria-hidden="true">{below}</svg>{none}</div>'
    )


def ticks(starts: Sequence[datetime]) -> list[tuple[int, str]]:
    """(index, label) of the round times among the starts of steps, UTC: at most eight."""
    if len(starts) < 2:
        return []
    length_s = (starts[-1] - starts[0]).total_seconds()
    apart_s = next((one for one in _APART_S if length_s / one <= _MOST_TICKS), _APART_S[-1])
    form = "%H:%M" if apart_s < _DAY_S else "%b %d"
    return [
        (at, start.astimezone(UTC).strftime(form))
        for at, start in enumerate(starts)
        if start.timestamp() % apart_s == 0
    ]


def _across(y: float) -> str:
    return f'<line class="grid" x1="0" x2="{_WIDTH:.0f}" y1="{y:.0f}" y2="{y:.0f}"/>'


def _upright(x: float) -> str:
    return f'<line class="grid upright" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{_HEIGHT:.0f}"/>'


def _spots(starts: Sequence[datetime], drawn: Sequence[ChartLine], unit: str) -> str:
    """What tells its values when it is pointed at, one for each step."""
    width = _WIDTH / max(len(starts), 1)
    tips = [escape(_tip(start, drawn, at, unit)) for at, start in enumerate(starts)]
    return "".join(
        f'<rect class="hot" x="{at * width:.2f}" y="0" width="{width:.2f}" height="{_HEIGHT:.0f}" '
        f'data-tip="{tip}"><title>{tip}</title></rect>'
        for at, tip in enumerate(tips)
    )


def _tip(start: datetime, drawn: Sequence[ChartLine], at: int, unit: str) -> str:
    told = [f"{line.name} {_amount(value, unit)}" for line in drawn if (value := line.values[at]) is not None]
    return " · ".join([start.astimezone(UTC).strftime("%b %d %H:%M"), *told])


def _amount(value: float, unit: str) -> str:
    """With its unit; milliseconds from a second on as seconds."""
    return f"{number(value / 1000)} s" if unit == " ms" and value >= 1000 else f"{number(value)}{unit}"


def _mark(value: float, unit: str) -> str:
    """Of an axis; nothing where half a thing would be counted."""
    return "" if not unit and value != int(value) else _amount(value, unit)


def _most(line: ChartLine) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _middles(count: int) -> list[float]:
    return [(at + 0.5) * _WIDTH / count for at in range(count)]


def _rect(look: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="fill {look}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"/>'
