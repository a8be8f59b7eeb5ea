"""SVG elements as text. Elements carry classes and no colours: the page or the picture has the style sheet.

Invariant: every text is escaped, so names from outside cannot break out of the SVG.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from jobrunner.charts.scale import Point, Values, area, path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartSeries:
    """One line, or one colour of bars. `look` is a class of the style sheet; None among the values is a gap."""

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


def rect(look: str, x: float, y: float, width: float, height: float, *, title: str = "", tip: str = "") -> str:
    """A rectangle; `tip` is for the script of the dashboard, which shows it at once."""
    more = f' data-tip="{escape(tip)}"' if tip else ""
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
    """A file of its own, with its style sheet."""
    size = f'viewBox="0 0 {_length(width)} {_length(height)}" width="{_length(width)}" height="{_length(height)}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(label)}">'
        f"<style>{style}</style>{''.join(parts)}</svg>\n"
    )


def _closed(start: str, name: str, title: str) -> str:
    return f"<{start}><title>{escape(title)}</title></{name}>" if title else f"<{start}/>"


def _length(value: float) -> str:
    return f"{round(value, 2):g}"
