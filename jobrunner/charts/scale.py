"""Numbers into places on a plot: the end of an axis, figures for labels, and curves as SVG paths. Pure."""

import math
from collections.abc import Sequence

Values = Sequence[float | None]
Point = tuple[float, float]


def nice_top(most: float) -> float:
    """The end of an axis that holds `most`, with a short half: 1, 2, 3, 4, 6 or 8 times a power of ten, at least 1."""
    if most <= 1 or not math.isfinite(most):
        return 1.0
    magnitude: float = 10.0 ** math.floor(math.log10(most))
    return next(factor * magnitude for factor in (1, 2, 3, 4, 6, 8, 10) if factor * magnitude >= most * 0.999999)


def number(value: float) -> str:
    """A figure for a label: `1,204`, `12.5k`, `3.1M`; below ten with one digit where it is not whole."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (unit == "M" and abs(value) >= size):
            return f"{value / size:.1f}".removesuffix(".0") + unit
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def runs(xs: Sequence[float], values: Values, top: float, height: float) -> list[list[Point]]:
    """The points of values between their gaps; y goes down, from `height` for 0 to 0 for `top`."""
    found: list[list[Point]] = [[]]
    for x, value in zip(xs, values, strict=True):
        if value is None:
            found.append([])
        else:
            found[-1].append((x, height - value / top * height))
    return [_seen(run) for run in found if run]


def _seen(run: list[Point]) -> list[Point]:
    # A run of one point has no length: it gets a dash, or nobody would see it.
    return run if len(run) > 1 else [(run[0][0] - 2, run[0][1]), (run[0][0] + 2, run[0][1])]


def path(points: list[Point]) -> str:
    """Through these points."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def area(points: list[Point], floor: float) -> str:
    """Between these points and the floor."""
    return f"{path(points)}L{points[-1][0]:.1f} {floor:.0f}L{points[0][0]:.1f} {floor:.0f}Z"
