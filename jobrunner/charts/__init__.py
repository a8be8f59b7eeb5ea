"""Charts as SVG text, for the dashboard, reports, the soak and the benchmarks: the parts that all charts share.

Scales turn values into coordinates and labels; the other functions write elements. `responsive` draws charts that
stretch with the dashboard, and `axes` draws charts that carry their axes inside. Elements carry classes and no colours:
the page or the picture has the style sheet.

Invariant: every text is escaped, so names from outside cannot break out of the SVG.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape
from types import MappingProxyType

Values = Sequence[float | None]
Point = tuple[float, float]
_NO_DATA: Mapping[str, str] = MappingProxyType({})
_HOUR_S, _DAY_S = 3600, 86_400
_STEPS_S = (
    1, 5, 10, 30, 60, 300, 600, 1800, _HOUR_S, 2 * _HOUR_S, 4 * _HOUR_S, 12 * _HOUR_S, _DAY_S, 7 * _DAY_S, 30 * _DAY_S,
)  # fmt: skip
_LOG_FROM = 50
"""Values whose largest is this many times the smallest get a logarithmic axis."""
_ZERO_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class ChartScale:
    """A linear or logarithmic mapping from [low, high] to [start, end], with the ticks of its axis."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()
    is_log: bool = False
    zero_share: float = 0.0
    """The share of a logarithmic axis that is linear, from zero to `low`; 0 when the axis begins at `low`."""

    def at(self, value: float) -> float:
        """The coordinate of a value, clamped to the axis."""
        if self.zero_share and value < self.low:
            share = self.zero_share * max(value, 0.0) / self.low
        else:
            bend = math.log10 if self.is_log else float
            low, high = bend(self.low), bend(self.high)
            above = (bend(max(value, self.low)) - low) / ((high - low) or 1.0)
            share = self.zero_share + (1 - self.zero_share) * min(above, 1.0)
        return self.start + share * (self.end - self.start)


def quarters(most: float, start: float, end: float) -> ChartScale:
    """A linear scale from zero with about four steps of a round size."""
    step = _nice(most / 4 if most > 0 else 0.25)
    high = step * math.ceil(round(most / step, 6) or 1)
    return ChartScale(0.0, high, start, end, tuple(step * n for n in range(round(high / step) + 1)))


def halves(most: float, start: float, end: float) -> ChartScale:
    """A linear scale from zero with ticks at its round end and half of it, for small plots."""
    top = nice_top(most)
    return ChartScale(0.0, top, start, end, (0.0, top / 2, top))


def logarithmic(low: float, high: float, start: float, end: float) -> ChartScale:
    """A logarithmic scale from `low` to `high`, both above zero, with ticks at the powers of ten in between."""
    first, last = math.ceil(round(math.log10(low), 6)), math.floor(round(math.log10(high), 6))
    return ChartScale(low, high, start, end, tuple(10.0**n for n in range(first, last + 1)), is_log=True)


def fitting(values: Sequence[float], start: float, end: float) -> ChartScale:
    """Logarithmic over whole powers of ten when the largest value is 50 times the smallest above zero or more, else
    linear. Where a value is zero, the first tenth of a logarithmic axis leads from zero to its lowest power of ten."""
    above = [value for value in values if value > 0]
    if not above or max(above) / min(above) < _LOG_FROM:
        return quarters(max(above, default=1.0), start, end)
    low, high = math.floor(math.log10(min(above))), math.ceil(math.log10(max(above)))
    scale = logarithmic(10.0**low, 10.0 ** max(high, low + 1), start, end)
    if min(values) > 0:
        return scale
    return replace(scale, ticks=(0.0, *scale.ticks), zero_share=_ZERO_SHARE)


def times(first: datetime, last: datetime, start: float, end: float, steps: int = 9) -> ChartScale:
    """A scale of Unix seconds with ticks at round times and at most `steps` intervals between them."""
    low, high = first.timestamp(), last.timestamp()
    step = round_step(high - low, steps)
    ticks = tuple(float(at) for at in range(math.ceil(low / step) * step, int(high) + 1, step))
    return ChartScale(low, high, start, end, ticks)


def round_step(length_s: float, most: int) -> int:
    """The shortest round length of time, in seconds, that divides `length_s` into at most `most` steps."""
    longest = _STEPS_S[-1] * max(math.ceil(length_s / most / _STEPS_S[-1]), 1)
    return next((step for step in _STEPS_S if length_s / step <= most), longest)


def nice_top(most: float) -> float:
    """The end of an axis for values up to `most`: 1, 2, 3, 4, 6 or 8 times a power of ten, so that its half is short,
    too; at least 1."""
    if most <= 1 or not math.isfinite(most):
        return 1.0
    return _round_up(most, (1, 2, 3, 4, 6, 8, 10))


def runs(xs: Sequence[float], values: Values, y: ChartScale) -> list[list[Point]]:
    """The points of the values, split at gaps; a None is a gap."""
    found: list[list[Point]] = [[]]
    for x, value in zip(xs, values, strict=True):
        if value is None:
            found.append([])
        else:
            found[-1].append((x, y.at(value)))
    return [_widened(run) for run in found if run]


def path(points: Sequence[Point]) -> str:
    """The `d` of an SVG path through these points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def area(points: Sequence[Point], floor: float) -> str:
    """The `d` of the area between these points and the floor."""
    return f"{path(points)}L{points[-1][0]:.1f} {floor:.0f}L{points[0][0]:.1f} {floor:.0f}Z"


def _widened(run: list[Point]) -> list[Point]:
    # A run of one point has no length, so it is drawn as a dash to be visible.
    return run if len(run) > 1 else [(run[0][0] - 2, run[0][1]), (run[0][0] + 2, run[0][1])]


def _nice(value: float) -> float:
    return _round_up(value, (1, 2, 2.5, 5, 10))


def _round_up(value: float, factors: Sequence[float]) -> float:
    magnitude: float = 10.0 ** math.floor(math.log10(value))
    return next(factor * magnitude for factor in factors if factor * magnitude >= value * 0.999999)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """The values of one line, or of one colour of bars. `look` is a class of the style sheet; None among the values is
    a gap."""

    name: str
    look: str
    values: Values


def text(look: str, x: float, y: float, words: str, anchor: str = "middle") -> str:
    """A line of text; `anchor` is start, middle or end."""
    return f'<text class="{look}" x="{_length(x)}" y="{_length(y)}" text-anchor="{anchor}">{escape(words)}</text>'


def rule(look: str, x1: float, y1: float, x2: float, y2: float, *, title: str = "") -> str:
    """A straight line; browsers show `title` under the pointer."""
    ends = f'x1="{_length(x1)}" x2="{_length(x2)}" y1="{_length(y1)}" y2="{_length(y2)}"'
    return _closed(f'line class="{look}" {ends}', "line", title)


def rect(
    look: str, x: float, y: float, width: float, height: float, *, title: str = "", data: Mapping[str, str] = _NO_DATA
) -> str:
    """A rectangle; `data` has values for the script of the dashboard, by name."""
    more = "".join(f' data-{name}="{escape(value)}"' for name, value in data.items())
    place = f'x="{_length(x)}" y="{_length(y)}" width="{_length(width)}" height="{_length(height)}"'
    return _closed(f'rect class="{look}" {place}{more}', "rect", title)


def dot(look: str, x: float, y: float, radius: float, *, title: str = "") -> str:
    """A filled circle."""
    return _closed(f'circle class="{look}" cx="{_length(x)}" cy="{_length(y)}" r="{_length(radius)}"', "circle", title)


def curve(look: str, points: Sequence[Point]) -> str:
    """A line through points."""
    return f'<path class="line {look}" d="{path(points)}"/>'


def filled(look: str, points: Sequence[Point], floor: float) -> str:
    """The area between points and the floor."""
    return f'<path class="area {look}" d="{area(points, floor)}"/>'


def band(look: str, upper: Sequence[Point], lower: Sequence[Point]) -> str:
    """The area between two lines."""
    return f'<path class="area {look}" d="{path([*upper, *reversed(lower)])}Z"/>'


def picture(parts: Sequence[str], *, width: float, height: float, label: str, style: str) -> str:
    """A stand-alone SVG file with its style sheet."""
    size = f'viewBox="0 0 {_length(width)} {_length(height)}" width="{_length(width)}" height="{_length(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
        f"<style>{style}</style>{''.join(parts)}</svg>\n"
    )


def _closed(start: str, name: str, title: str) -> str:
    return f"<{start}><title>{escape(title)}</title></{name}>" if title else f"<{start}/>"


def _length(value: float) -> str:
    return f"{round(value, 2):g}"
