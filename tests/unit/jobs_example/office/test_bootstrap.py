"""Bootstrap intervals against what statistics promises."""

from statistics import fmean, stdev

import pytest

from jobs_example.office.bootstrap import interval, resampled_means

DICE = dict.fromkeys(range(1, 7), 1_000)


def test_the_same_seed_gives_the_same_means() -> None:
    assert list(resampled_means(DICE, 5, "s")) == list(resampled_means(DICE, 5, "s"))
    assert list(resampled_means(DICE, 5, "s")) != list(resampled_means(DICE, 5, "t"))


def test_the_means_spread_like_the_standard_error() -> None:
    means = list(resampled_means(DICE, 200, "s"))

    assert fmean(means) == pytest.approx(3.5, abs=0.01)
    assert stdev(means) == pytest.approx((35 / 12 / 6_000) ** 0.5, rel=0.2)


def test_delays_that_are_all_the_same_leave_no_doubt() -> None:
    found = interval({7: 50}, list(resampled_means({7: 50}, 10, "s")))

    assert (found.low, found.mean, found.high) == (7.0, 7.0, 7.0)


def test_the_interval_leaves_out_the_outer_part_on_either_side() -> None:
    found = interval({0: 1}, [float(n) for n in range(101)], confidence=0.90)

    assert (found.low, found.high, found.resamples) == (5.0, 95.0, 101)
