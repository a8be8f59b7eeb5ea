"""Charts with their axes inside the SVG, for pages and files that stand alone.

Every mark carries its value as a `<title>`, which browsers show under the pointer.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape

from jobrunner.charts import ChartScale, ChartSeries, curve, dot, fitting, quarters, rect, rule, runs, text, times
from jobrunner.formatting import rounded

WIDTH, HEIGHT = 500, 220
"""Two charts side by side fill a page on a desktop; on a phone, texts keep two thirds of their size."""
_ROW = 26
_BOTTOM = 46
_TIME_STEPS = 5
_LABEL_WIDTH, _MOST_LABEL_WIDTH = 7.5, 180
_DAY_S = 86_400
_LAST = datetime.max.replace(tzinfo=UTC)
_LONGEST_LABEL = 22


def plain(value: float) -> str:
    """A tick's number: `0.25`, `15`, `10,000`."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotArea:
    """The rectangle inside the axes, in the coordinates of the picture."""

    left: float
    right: float
    top: float
    floor: float

    def y_axis(self, y: ChartScale, say: Callable[[float], str] = plain, *, title: str = "") -> str:
        """Horizontal grid lines with their labels on the left, and the title left of these."""
        parts = []
        for tick in y.ticks:
            at = y.at(tick)
            parts.append(rule("grid", self.left, at, self.right, at))
            parts.append(text("tick", self.left - 8, at + 4, say(tick), "end"))
        if title:
            middle = (self.top + self.floor) / 2
            turn = f'transform="translate({self.left - 50:g} {middle:g}) rotate(-90)"'
            parts.append(f"<g {turn}>{text('axis', 0, 0, title)}</g>")
        return "".join(parts)

    def x_axis(self, x: ChartScale, say: Callable[[float], str] = plain, *, title: str = "") -> str:
        """Vertical grid lines with their labels below, and the title below these."""
        lines = (rule("grid", x.at(tick), self.top, x.at(tick), self.floor) for tick in x.ticks)
        return "".join(lines) + self.x_labels(x, say) + (self.x_title(title) if title else "")

    def x_labels(self, x: ChartScale, say: Callable[[float], str] = plain) -> str:
        """The labels of the lower axis without grid lines."""
        return "".join(text("tick", x.at(tick), self.floor + 16, say(tick)) for tick in x.ticks)

    def x_title(self, title: str) -> str:
        """The title of the lower axis."""
        return text("axis", (self.left + self.right) / 2, self.floor + 36, title)


_AREA = PlotArea(left=62, right=WIDTH - 22, top=14, floor=HEIGHT - _BOTTOM)


def stacked_bars(
    starts: Sequence[datetime], bucket_s: int, series: Sequence[ChartSeries], y_title: str, mark: datetime | None = None
) -> str:
    """Bars over time, one part of each bar for each series; `mark` is an instant to draw a line at."""
    totals = [sum(one.values[at] or 0 for one in series) for at in range(len(starts))]
    y, x = quarters(max(totals, default=1), _AREA.floor, _AREA.top), _times(starts, bucket_s)
    width = max((x.end - x.start) * bucket_s / (x.high - x.low) - 1, 0.8)
    parts = [_AREA.y_axis(y, title=y_title), _time_axis(x)]
    below = [0.0] * len(starts)
    for one in series:
        for at, start in enumerate(starts):
            value = one.values[at] or 0.0
            if value:
                top, base = y.at(below[at] + value), y.at(below[at])
                title = f"{_moment(start)} · {one.name}: {rounded(value)} {y_title}"
                parts.append(
                    rect(one.look, x.at(start.timestamp()), top, width, max(base - top, 0.5), title=title)
                )
                below[at] += value
    return _svg([*parts, _marked(x, mark)], y_title)


def lines(
    starts: Sequence[datetime], bucket_s: int, series: Sequence[ChartSeries], y_title: str,
    mark: datetime | None = None, *, is_linear: bool = False,
) -> str:  # fmt: skip
    """Lines over time, with gaps where there is no value; logarithmic when the values are of different magnitudes,
    except with `is_linear`, as for shares."""
    found = [value for one in series for value in one.values if value is not None]
    scale = quarters(max(found, default=1.0), _AREA.floor, _AREA.top) if is_linear else None
    y, x = scale or fitting(found, _AREA.floor, _AREA.top), _times(starts, bucket_s)
    parts = [_AREA.y_axis(y, title=y_title), _time_axis(x)]
    middles = [x.at(start.timestamp() + bucket_s / 2) for start in starts]
    for one in series:
        parts += [curve(one.look, points) for points in runs(middles, one.values, y)]
        for at, value in enumerate(one.values):
            if value is not None:
                title = f"{_moment(starts[at])} · {one.name}: {rounded(value)} {y_title}"
                parts.append(dot(one.look, middles[at], y.at(value), 2.2, title=title))
    return _svg([*parts, _marked(x, mark)], y_title)


def columns(labels: Sequence[str], series: Sequence[ChartSeries], x_title: str, y_title: str) -> str:
    """Groups of bars side by side, one group for each label."""
    y = quarters(max((value or 0 for one in series for value in one.values), default=1), _AREA.floor, _AREA.top)
    step = (_AREA.right - _AREA.left) / max(len(labels), 1)
    width = min(step * 0.8 / len(series), 40)
    parts = [_AREA.y_axis(y, title=y_title), _AREA.x_title(x_title)]
    for at, label in enumerate(labels):
        middle = _AREA.left + step * (at + 0.5)
        if at % math.ceil(_LABEL_WIDTH * (len(label) + 1) / step) == 0:  # labels side by side must not touch
            parts.append(text("tick", middle, _AREA.floor + 16, label))
        for nth, one in enumerate(series):
            value = one.values[at] or 0.0
            left, top = middle + (nth - len(series) / 2) * width, y.at(value)
            title = f"{label} · {one.name}: {rounded(value)} {y_title}"
            parts.append(rect(one.look, left, top, max(width - 1, 1), _AREA.floor - top, title=title))
    return _svg(parts, y_title)


def spans(labels: Sequence[str], series: Sequence[ChartSeries], x_title: str) -> str:
    """One row for each label: a dot for each series (p50, p95, p99), a line from the first to the last."""
    found = [value for one in series for value in one.values if value is not None]
    left = min(max((len(label) for label in labels), default=1) * _LABEL_WIDTH + 20, _MOST_LABEL_WIDTH)
    plot = PlotArea(left=left, right=_AREA.right, top=_AREA.top, floor=_AREA.top + _ROW * len(labels))
    x = fitting(found, left, _AREA.right - 10)
    parts = [plot.x_axis(x, title=x_title)]
    for at, label in enumerate(labels):
        y = plot.top + _ROW * (at + 0.5)
        shown = label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"
        parts.append(text("label", left - 10, y + 4, shown, "end"))
        values = [(one, value) for one in series if (value := one.values[at]) is not None]
        if values:
            ends = [x.at(value) for _, value in values]
            parts.append(rule("span", min(ends), y, max(ends), y))
        for one, value in values:
            title = f"{label} · {one.name}: {rounded(value)} {x_title}"
            parts.append(dot(one.look, x.at(value), y, 5, title=title))
    return _svg(parts, x_title, plot.floor + _BOTTOM)


def legend(series: Sequence[ChartSeries]) -> str:
    """The names and colours of series, as HTML."""
    keys = (f'<span class="key"><i class="{one.look}"></i>{escape(one.name)}</span>' for one in series)
    return f'<p class="legend">{"".join(keys)}</p>'


def _svg(parts: Sequence[str], title: str, height: float = HEIGHT) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{body}</svg>'


def _times(starts: Sequence[datetime], bucket_s: int) -> ChartScale:
    end = starts[-1] + min(timedelta(seconds=bucket_s), _LAST - starts[-1])
    return times(starts[0], end, _AREA.left, _AREA.right, _TIME_STEPS)


def _time_axis(x: ChartScale) -> str:
    notches = (rule("notch", x.at(tick), _AREA.floor, x.at(tick), _AREA.floor + 4) for tick in x.ticks)
    return "".join(notches) + _AREA.x_labels(x, _time_label(x)) + _AREA.x_title("time, UTC")


def _time_label(x: ChartScale) -> Callable[[float], str]:
    step = x.ticks[1] - x.ticks[0] if len(x.ticks) > 1 else x.high - x.low
    shape = "%b %d" if step >= _DAY_S else "%H:%M:%S" if step < 60 else "%H:%M"
    several_days = x.high - x.low > _DAY_S / 2

    def say(tick: float) -> str:
        instant = datetime.fromtimestamp(tick, UTC)
        if several_days and step < _DAY_S and (tick == x.ticks[0] or instant.hour == instant.minute == 0):
            return instant.strftime("%b %d %H:%M")
        return instant.strftime(shape)

    return say


def _marked(x: ChartScale, mark: datetime | None) -> str:
    if mark is None:
        return ""
    at = x.at(mark.timestamp())
    return rule("mark", at, _AREA.top, at, _AREA.floor, title=f"before and after {_moment(mark)}")


def _moment(instant: datetime) -> str:
    return instant.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
