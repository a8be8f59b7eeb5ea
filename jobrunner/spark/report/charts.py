"""Plots of a report as SVG text, drawn here: axes with titles and units, colours by class, for light and dark pages.

Every mark carries its value as a `<title>`, which browsers show under the pointer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

from jobrunner.spark.report.tables import rounded

Values = Sequence[float | None]
WIDTH, HEIGHT = 960, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 14, 46
_ROW = 26
_STEPS_S = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600, 86_400, 7 * 86_400, 30 * 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One line, or one colour of the bars; `look` is a CSS class of the page."""

    name: str
    values: Values
    look: str


@dataclass(frozen=True, slots=True)
class ChartScale:
    """From values to coordinates, linear or logarithmic, with the ticks of its axis."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def at(self, value: float) -> float:
        """The coordinate of a value, within the axis."""
        bend = math.log10 if self.is_log else float
        low, high = bend(self.low), bend(self.high)
        share = (bend(max(value, self.low)) - low) / ((high - low) or 1.0)
        return self.start + min(share, 1.0) * (self.end - self.start)


def stacked_bars(
    starts: Sequence[datetime], bucket_s: int, series: Sequence[ChartSeries], y_title: str, mark: datetime | None = None
) -> str:
    """Bars over time, one part of each bar for each series."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(starts))]
    y, x = _linear(max(totals, default=1), _floor(), _TOP), _times(starts, bucket_s)
    width = max((x.end - x.start) * bucket_s / (x.high - x.low) - 1, 0.8)
    parts = [_y_axis(y, y_title), _time_axis(x)]
    below = [0.0] * len(starts)
    for one in series:
        for at, start in enumerate(starts):
            value = one.values[at] or 0.0
            if value:
                top, base = y.at(below[at] + value), y.at(below[at])
                said = f"{_moment(start)} · {one.name}: {rounded(value)} {y_title}"
                parts.append(
                    f'<rect class="{one.look}" x="{x.at(start.timestamp()):.1f}" y="{top:.1f}" width="{width:.1f}" '
                    f'height="{max(base - top, 0.5):.1f}">{_said(said)}</rect>'
                )
                below[at] += value
    return _svg([*parts, _mark(x, mark)], y_title)


def lines(
    starts: Sequence[datetime], bucket_s: int, series: Sequence[ChartSeries], y_title: str, mark: datetime | None = None
) -> str:
    """Lines over time, with gaps where there is no value; logarithmic when the values are of different magnitudes."""
    found = [value for one in series for value in one.values if value is not None]
    y, x = _fitting(found, _floor(), _TOP), _times(starts, bucket_s)
    parts = [_y_axis(y, y_title), _time_axis(x)]
    middles = [x.at(start.timestamp() + bucket_s / 2) for start in starts]
    for one in series:
        parts += [f'<path class="line {one.look}" d="{path}"/>' for path in _paths(middles, one.values, y)]
        for at, value in enumerate(one.values):
            if value is not None:
                said = f"{_moment(starts[at])} · {one.name}: {rounded(value)} {y_title}"
                parts.append(_dot(one.look, middles[at], y.at(value), 2.2, said))
    return _svg([*parts, _mark(x, mark)], y_title)


def columns(labels: Sequence[str], series: Sequence[ChartSeries], x_title: str, y_title: str) -> str:
    """Groups of bars side by side."""
    y = _linear(max((value or 0 for one in series for value in one.values), default=1), _floor(), _TOP)
    step = (WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    width = min(step * 0.8 / len(series), 40)
    parts = [_y_axis(y, y_title), _title_below(x_title)]
    for at, label in enumerate(labels):
        middle = _LEFT + step * (at + 0.5)
        parts.append(_text("tick", middle, _floor() + 16, label))
        for number, one in enumerate(series):
            value = one.values[at] or 0.0
            left, top = middle + (number - len(series) / 2) * width, y.at(value)
            said = _said(f"{label} · {one.name}: {rounded(value)} {y_title}")
            parts.append(
                f'<rect class="{one.look}" x="{left:.1f}" y="{top:.1f}" width="{max(width - 1, 1):.1f}" '
                f'height="{_floor() - top:.1f}">{said}</rect>'
            )
    return _svg(parts, y_title)


def spans(labels: Sequence[str], series: Sequence[ChartSeries], x_title: str) -> str:
    """One row for each label: a dot for each series (p50, p95, p99), a line from the first to the last."""
    found = [value for one in series for value in one.values if value is not None]
    left = min(max((len(label) for label in labels), default=1) * 7 + 24, 260)
    floor = _TOP + _ROW * len(labels)
    x = _fitting(found, left, WIDTH - _RIGHT - 10)
    parts = [_x_axis(x, x_title, floor, left)]
    for at, label in enumerate(labels):
        y = _TOP + _ROW * (at + 0.5)
        shown = label if len(label) <= 34 else label[:33] + "…"
        parts.append(_text("label", left - 10, y + 4, shown, "end"))
        values = [(one, one.values[at]) for one in series if one.values[at] is not None]
        if values:
            ends = [x.at(value or 0.0) for _, value in values]
            parts.append(f'<line class="span" x1="{min(ends):.1f}" x2="{max(ends):.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        for one, value in values:
            said = f"{label} · {one.name}: {rounded(value or 0.0)} {x_title}"
            parts.append(_dot(one.look, x.at(value or 0.0), y, 5, said))
    return _svg(parts, x_title, floor + _BOTTOM)


def legend(series: Sequence[ChartSeries]) -> str:
    """The names of series beside their colours, as HTML."""
    keys = (f'<span class="key"><i class="{one.look}"></i>{escape(one.name)}</span>' for one in series)
    return f'<p class="legend">{"".join(keys)}</p>'


def _svg(parts: Sequence[str], title: str, height: float = HEIGHT) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{body}</svg>'


def _floor() -> int:
    return HEIGHT - _BOTTOM


def _linear(most: float, start: float, end: float) -> ChartScale:
    step = _nice(most / 4 if most > 0 else 0.25)
    high = step * math.ceil(round(most / step, 6) or 1)
    return ChartScale(0.0, high, start, end, tuple(step * n for n in range(round(high / step) + 1)))


def _fitting(values: Sequence[float], start: float, end: float) -> ChartScale:
    """Logarithmic when the largest is 50 times the smallest or more, else linear from zero."""
    above = [value for value in values if value > 0]
    if not above or max(above) / min(above) < 50:
        return _linear(max(above, default=1.0), start, end)
    low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    high = max(high, low + 1)
    return ChartScale(10.0**low, 10.0**high, start, end, tuple(10.0**n for n in range(low, high + 1)), is_log=True)


def _times(starts: Sequence[datetime], bucket_s: int) -> ChartScale:
    first, last = starts[0].timestamp(), starts[-1].timestamp() + bucket_s
    step = next((step for step in _STEPS_S if (last - first) / step <= 9), _STEPS_S[-1])
    ticks = tuple(float(at) for at in range(math.ceil(first / step) * step, int(last) + 1, step))
    return ChartScale(first, last, _LEFT, WIDTH - _RIGHT, ticks)


def _nice(value: float) -> float:
    magnitude = 10.0 ** math.floor(math.log10(value))
    return next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= value * 0.999)


def _y_axis(y: ChartScale, title: str) -> str:
    parts = []
    for tick in y.ticks:
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text("tick", _LEFT - 8, at + 4, _plain(tick), "end"))
    middle = (_TOP + _floor()) / 2
    return f'{"".join(parts)}<g transform="translate(14 {middle}) rotate(-90)">{_text("axis", 0, 0, title)}</g>'


def _x_axis(x: ChartScale, title: str, floor: float, left: float) -> str:
    parts = []
    for tick in x.ticks:
        at = x.at(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{floor}"/>')
        parts.append(_text("tick", at, floor + 16, _plain(tick)))
    return "".join(parts) + _text("axis", (left + WIDTH - _RIGHT) / 2, floor + 36, title)


def _time_axis(x: ChartScale) -> str:
    say = _tick_text(x)
    ticks = (
        _text("tick", x.at(tick), _floor() + 16, say(tick))
        + f'<line class="notch" x1="{x.at(tick):.1f}" x2="{x.at(tick):.1f}" y1="{_floor()}" y2="{_floor() + 4}"/>'
        for tick in x.ticks
    )
    return "".join(ticks) + _title_below("time, UTC")


def _title_below(title: str) -> str:
    return _text("axis", (_LEFT + WIDTH - _RIGHT) / 2, HEIGHT - 8, title)


def _tick_text(x: ChartScale) -> Callable[[float], str]:
    step = x.ticks[1] - x.ticks[0] if len(x.ticks) > 1 else x.high - x.low
    shape = "%b %d" if step >= 86_400 else "%H:%M:%S" if step < 60 else "%H:%M"
    several_days = x.high - x.low > 86_400 / 2

    def say(tick: float) -> str:
        instant = datetime.fromtimestamp(tick, UTC)
        if several_days and step < 86_400 and (tick == x.ticks[0] or instant.hour == instant.minute == 0):
            return instant.strftime("%b %d %H:%M")
        return instant.strftime(shape)

    return say


def _mark(x: ChartScale, mark: datetime | None) -> str:
    if mark is None:
        return ""
    at = x.at(mark.timestamp())
    said = _said(f"before and after {_moment(mark)}")
    return f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_floor()}">{said}</line>'


def _paths(xs: Sequence[float], values: Values, y: ChartScale) -> list[str]:
    paths: list[list[str]] = [[]]
    for x, value in zip(xs, values, strict=True):
        if value is None:
            paths.append([])
        else:
            paths[-1].append(f"{'L' if paths[-1] else 'M'}{x:.1f} {y.at(value):.1f}")
    return [" ".join(path) for path in paths if len(path) > 1]


def _text(look: str, x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _dot(look: str, x: float, y: float, radius: float, said: str) -> str:
    return f'<circle class="{look}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}">{_said(said)}</circle>'


def _said(text: str) -> str:
    return f"<title>{escape(text)}</title>"


def _moment(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"
