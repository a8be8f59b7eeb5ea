"""Text for people: values of any kind, numbers, durations, sizes, bars and curves."""

import pytest

from jobrunner.cli.options import seconds_of
from jobrunner.formatting import (
    away,
    bar,
    clock,
    counted,
    curve,
    describe,
    duration,
    exact_duration,
    number,
    percent,
    rate,
    rounded,
    short_duration,
    size,
)


class Hidden:
    """Something without a repr."""

    def __repr__(self) -> str:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a", "'a'"),
        (Hidden(), "a Hidden that cannot be shown"),
        (10**5000, "a int that cannot be shown"),
        ("x" * 200, "'" + "x" * 159 + "…"),
    ],
    ids=["text", "no repr", "too many digits", "long"],
)
def test_a_value_is_shown_on_one_short_line(value: object, told: str) -> None:
    assert describe(value) == told


def test_line_breaks_of_a_repr_become_blanks() -> None:
    class Wide:
        def __repr__(self) -> str:
            return "one\n  two"

    assert describe(Wide()) == "one two"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (2.5, "2.5"), (1204, "1,204"), (12_500, "12.5k"), (200_000, "200k"), (3_100_000, "3.1M")],
)
def test_figures_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.5, "0.500")]
)
def test_values_have_three_digits(value, text):
    assert rounded(value) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((0, "0"), (9_999, "9,999"), (12_345, "12.3k"), (99_960, "100k"), (123_456, "123k"), (999_960, "1M")),
        *((1_234_567, "1.2M"), (2.5e9, "2.5G")),
    ],
)
def test_numbers_take_at_most_five_columns(count: float, text: str) -> None:
    assert number(count) == text
    assert len(text) <= 5


@pytest.mark.parametrize(("value", "text"), [(0.0, "0"), (0.25, "0.2"), (9.96, "10"), (12_000.0, "12k")])
def test_small_numbers_have_one_place(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(("per_s", "text"), [(0, "0/s"), (0.2, "12/min"), (3.5, "3.5/s"), (1204, "1,204/s")])
def test_a_rate_has_the_unit_that_reads_best(per_s: float, text: str) -> None:
    assert rate(per_s) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0.0, "0 ms"), (0.0025, "2.5 ms"), (0.34, "340 ms"), (0.9996, "1 s"), (1.25, "1.2 s"), (12.4, "12 s")),
        *((59.6, "1 min"), (185, "3 min 5 s"), (7440, "2 h 4 min"), (86_400, "1 d"), (266_400, "3 d 2 h")),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "now"), (-12.2, "12 s ago"), (59.9, "in 1 min"), (-185, "3 min ago"), (7440, "in 2 h 4 min")],
)
def test_an_instant_has_its_distance_from_now(seconds: float, text: str) -> None:
    assert away(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0s"), (0.25, "250ms"), (1.5, "1500ms"), (90, "90s"), (300, "5m"), (7200, "2h"), (2592000, "30d")],
)
def test_a_duration_is_written_as_an_option_reads_it(seconds: float, text: str) -> None:
    assert exact_duration(seconds) == text
    assert seconds_of(text) == seconds


def test_one_is_singular_and_thousands_are_grouped() -> None:
    assert [counted(one, "task") for one in (1, 0, 2, 1204)] == ["1 task", "0 tasks", "2 tasks", "1,204 tasks"]
    assert counted(2, "entry", "entries") == "2 entries"


def test_times_since_a_start_show_hours_from_the_first_on() -> None:
    assert (clock(65), clock(3725)) == ("01:05", "1:02:05")


def test_a_share_is_in_percent() -> None:
    assert (percent(0.125), percent(1.0)) == ("12.5 %", "100 %")


def test_lengths_and_sizes_have_their_unit() -> None:
    lengths = [short_duration(one) for one in (0.25, 12, 119, 300, 90_000, 200_000)]
    assert lengths == ["250ms", "12s", "119s", "5m", "25h", "2d"]
    assert [size(one) for one in (10, 2048, 5 * 2**20, 3 * 2**30)] == ["10 B", "2.0 KiB", "5.0 MiB", "3.0 GiB"]


def test_a_bar_is_as_wide_as_told_and_shows_the_least() -> None:
    assert bar(5, 10, 4) == "██  "
    assert bar(1, 10_000, 4) == "▏   "
    assert bar(0, 10, 4) == bar(3, 0, 4).replace("▏", " ") == "    "
    assert bar(20, 10, 3) == "███"


def test_a_curve_ends_at_the_right_with_the_newest() -> None:
    assert curve([0.0, 1.0, 8.0], 5) == "  ▁▂█"
    assert curve([1.0] * 9, 3) == "███"
    assert curve([], 2) == "  "
