"""Whether a soak held: checks that keep their figure and their bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median
from typing import Any

_WARM_SHARE, _WARM_S = 0.25, 15.0
_SHOWN = 3
_LEAST_JUDGED = 8
_MOST_PAIRED = 300
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakCheck:
    """One thing that must hold: what, the figure found, its bound in words, and whether it holds. None: not judged."""

    name: str
    value: Any
    bound: str
    holds: bool | None


def equals(name: str, value: Any, wanted: Any) -> SoakCheck:
    """The figure must be exactly that."""
    return SoakCheck(name=name, value=value, bound=f"= {wanted}", holds=bool(value == wanted))


def none_of(name: str, found: Sequence[str]) -> SoakCheck:
    """Nothing of the kind was found; some of what was is shown."""
    more = f", and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return SoakCheck(name=name, value=", ".join(found[:_SHOWN]) + more or "none", bound="none", holds=not found)


def at_most(name: str, value: float, most: float) -> SoakCheck:
    """The figure must not be above that."""
    return SoakCheck(name=name, value=value, bound=f"≤ {most:g}", holds=value <= most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """By how much something may have grown at the end: the larger of an amount and a share of its median."""

    amount: float
    share: float
    unit: str = ""
    size: float = 1.0


MEMORY = Tolerance(amount=8 * _MIB, share=0.10, unit=" MiB", size=_MIB)
DESCRIPTORS = Tolerance(amount=8, share=0.10)
KEYS = Tolerance(amount=200, share=0.10)


def flat(name: str, times: Sequence[float], values: Sequence[float | None], tolerance: Tolerance) -> SoakCheck:
    """That something did not grow after the first quarter of a run, or in a short one after 15 s or its first half.

    The growth is the slope of Theil and Sen, the median of the slopes of all pairs, times the length of what is
    judged: neither a burst nor the dip after a restart makes it up. (H. Theil, "A rank-invariant method of linear and
    polynomial regression analysis", 1950; P. K. Sen, "Estimates of the regression coefficient based on Kendall's
    tau", 1968.) Runs of too few samples are not judged.
    """
    known = [(at, value) for at, value in zip(times, values, strict=True) if value is not None]
    end = times[-1] if times else 0.0
    warm_s = max(_WARM_SHARE * end, min(_WARM_S, end / 2))
    judged = [(at, value) for at, value in known if at >= warm_s]
    if len(judged) < _LEAST_JUDGED:
        return SoakCheck(name=name, value="too few samples", bound="not judged", holds=None)
    most = max(tolerance.amount, tolerance.share * median(value for _, value in judged))
    growth = slope(judged) * (judged[-1][0] - judged[0][0])
    shown = round(growth / tolerance.size, 2)
    bound = f"≤ {most / tolerance.size:,.1f}{tolerance.unit} in {judged[-1][0] - judged[0][0]:,.0f} s"
    return SoakCheck(name=name, value=f"{shown:+,}{tolerance.unit}", bound=bound, holds=growth <= most)


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes of all pairs; of many points, of as many as tell the same."""
    thinned = points[:: len(points) // _MOST_PAIRED + 1]
    return median((later - sooner) / (to - since) for (since, sooner), (to, later) in combinations(thinned, 2))
