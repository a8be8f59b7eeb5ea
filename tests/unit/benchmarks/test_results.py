"""Statistics and tables of the benchmarks: the same cells on the terminal and in Markdown."""

import pytest

from benchmarks.growth_points import GrowthPoint
from benchmarks.measures import EVERYTHING, PLAIN
from benchmarks.results import (
    Summary,
    Table,
    anatomy_table,
    growth_table,
    limits_table,
    price_share,
    prices_table,
)  # fmt: skip

_RATES = {"drain": {"jobrunner": [40.0, 50.0, 60.0], "scripts": [100.0, 90.0, 110.0]}}
_POINTS = [
    GrowthPoint(series="waiting", size=1_000, queues=[], server_us=[4.0, 5.0, 6.0], wall_us=[50.0]),
    GrowthPoint(series="waiting", size=10_000, queues=[], server_us=[6.0], wall_us=[60.0]),
]
_PRICES = {PLAIN: [10_000.0], EVERYTHING: [5_000.0]}


def test_a_summary_has_median_bounds_and_ratio() -> None:
    one, base = Summary.of([3_000.0, 1_000.0, 2_000.0]), Summary.of([500.0])

    assert (one.text(), one.spread(1), one.ratio(base)) == ("2,000", "1,000.0–3,000.0", 4.0)


@pytest.mark.parametrize(
    "table",
    [
        limits_table(_RATES),
        growth_table(_POINTS),
        growth_table(_POINTS, clock=True),
        prices_table(_PRICES),
        anatomy_table("µs", ("jobrunner",), {"Lua alone": {"jobrunner": [3.0]}}),
    ],
)
def test_terminal_and_markdown_have_the_same_cells(table: Table) -> None:
    lines, markdown = table.text().splitlines()[1:], list(table.markdown())[2:]

    assert len(lines) == len(markdown) == len(table.rows)
    for line, cells, row in zip(lines, markdown, table.rows, strict=True):
        assert line.split() == " ".join(row).split()
        assert [cell.strip(" *") for cell in cells.strip("|").split("|")][1:] == list(row[1:])


def test_markdown_names_a_group_in_its_first_row_alone_and_our_own_row_is_bold() -> None:
    assert list(limits_table(_RATES).markdown()) == [
        "|  | who | tasks/s | spread | jobrunner ÷ it |",
        "|---|---|---|---|---|",
        "| drain | **jobrunner** | 50 | 40–60 |  |",
        "|  | scripts | 100 | 90–110 | 0.5 |",
    ]


def test_a_price_is_the_share_of_the_plain_drain() -> None:
    assert price_share(_PRICES, EVERYTHING) == 0.5
    assert prices_table(_PRICES).rows[1] == (EVERYTHING, "5,000", "5,000–5,000", "0.50", "100.0")


def test_parts_below_the_least_figure_are_left_out() -> None:
    found = {"HSET": {"jobrunner": [0.01], "loop": [0.02]}, "ZADD": {"loop": [2.0]}}

    assert anatomy_table("µs", ("jobrunner", "loop"), found, least=0.1).rows == [("ZADD", "", "2.0")]
