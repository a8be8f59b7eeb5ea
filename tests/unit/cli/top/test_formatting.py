"""Numbers, bars and curves in few columns."""

import pytest

from jobrunner.cli.top.formatting import bar, curve, length, number, rate, size


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (99_960, "100k"), (123_456, "123k"), (999_960, "1.0M")),
        *((1_234_567, "1.2M"), (2.5e9, "2.5G")),
    ],
)
def test_numbers_take_at_most_five_columns(count: float, text: str) -> None:
    assert number(count) == text
    assert len(text) <= 5


@pytest.mark.parametrize(("per_s", "text"), [(None, "-"), (0.0, "0"), (0.25, "0.2"), (9.96, "10"), (12_000.0, "12.0k")])
def test_small_rates_have_one_place(per_s: float | None, text: str) -> None:
    assert rate(per_s) == text


def test_lengths_and_sizes_have_their_unit() -> None:
    assert [length(one) for one in (0.25, 12, 119, 300, 90_000, 200_000)] == ["250ms", "12s", "119s", "5m", "25h", "2d"]
    assert [size(one) for one in (10, 2048, 5 * 2**20, 3 * 2**30)] == ["10 B", "2 KiB", "5.0 MiB", "3.0 GiB"]


def test_a_bar_is_as_wide_as_told_and_shows_the_least() -> None:
    assert bar(5, 10, 4) == "██  "
    assert bar(1, 10_000, 4) == "▏   "
    assert bar(0, 10, 4) == bar(3, 0, 4).replace("▏", " ") == "    "
    assert bar(20, 10, 3) == "███"


def test_a_curve_ends_at_the_right_with_the_newest() -> None:
    assert curve([0.0, 1.0, 8.0], 5) == "  ▁▂█"
    assert curve([1.0] * 9, 3) == "███"
    assert curve([], 2) == "  "
