"""How sure a mean delay is: a bootstrap confidence interval (Efron, 1979), in pure Python.

Draws as many flights as there are, with replacement, many times over; the spread of the means of these
draws is the spread of the mean. A good CPU-bound job: millions of draws, nothing to wait for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Minutes between which the mean lies with the given confidence."""

    low: float
    mean: float
    high: float
    confidence: float
    resamples: int


def resampled_means(delays: Mapping[int, int], resamples: int, seed: str) -> Iterator[float]:
    """Yields the mean of one draw after another; the same seed gives the same means.

    `delays` says how many flights had which delay, and holds at least one flight.
    """
    random = Random(seed)
    minutes = sorted(delays)
    up_to = list(accumulate(delays[minute] for minute in minutes))
    flights = up_to[-1]
    for _ in range(resamples):
        yield sum(random.choices(minutes, cum_weights=up_to, k=flights)) / flights


def interval(delays: Mapping[int, int], means: Sequence[float], confidence: float = 0.95) -> Interval:
    """The percentile interval around the mean of `delays`, from two or more means of `resampled_means`."""
    ordered = sorted(means)
    tail = round((1 - confidence) / 2 * (len(ordered) - 1))
    return Interval(
        low=ordered[tail],
        mean=sum(minute * n for minute, n in delays.items()) / sum(delays.values()),
        high=ordered[-1 - tail],
        confidence=confidence,
        resamples=len(ordered),
    )
