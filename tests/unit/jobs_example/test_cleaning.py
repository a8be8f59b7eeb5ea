"""Rows with types, and the reasons why others cannot be true."""

from itertools import islice

import pytest

from jobs_example import dataset
from jobs_example.cleaning import BadRow, typed


@pytest.fixture(scope="module")
def first() -> dict[str, str]:
    """The first flight of the year, as the file has it."""
    return next(dataset.raw_flights())


def test_cells_get_their_types(first: dict[str, str]) -> None:
    assert typed(first) == {
        "year": 2013, "month": 1, "day": 1, "hour": 5, "minute": 15, "time_hour": "2013-01-01T10:00:00Z",
        "carrier": "UA", "flight": 1545, "tailnum": "N14228", "origin": "EWR", "dest": "IAH",
        "distance": 1400, "air_time": 227, "sched_dep_time": 515, "dep_time": 517, "dep_delay": 2,
        "sched_arr_time": 819, "arr_time": 830, "arr_delay": 11,
    }  # fmt: skip


@pytest.mark.parametrize("column", ["dep_time", "dep_delay", "arr_time", "arr_delay", "air_time", "tailnum"])
@pytest.mark.parametrize("cell", ["NA", ""])
def test_what_may_be_absent_is_none(first: dict[str, str], column: str, cell: str) -> None:
    assert typed({**first, column: cell})[column] is None


@pytest.mark.parametrize(
    ("column", "cell", "reason"),
    [
        ("month", "13", "month=13 is not between 1 and 12"),
        ("hour", "noon", "hour='noon' is no whole number"),
        ("flight", "", "flight='' is no whole number"),
        ("dep_delay", "soon", "dep_delay='soon' is no whole number"),
        ("arr_delay", "99999", "arr_delay=99999 minutes is more than a week"),
        ("carrier", "NA", "carrier='NA': every flight has one"),
        ("dest", "", "dest='': every flight has one"),
        ("origin", "LHR", "origin='LHR' is no airport of New York"),
        ("distance", "-1", "distance=-1 is not the length of a way"),
        ("time_hour", "yesterday", "time_hour='yesterday' is no point in time"),
        ("year", None, "year=None is no whole number"),
    ],
)
def test_a_cell_that_cannot_be_true_is_named(first: dict[str, str], column: str, cell: str, reason: str) -> None:
    with pytest.raises(BadRow) as raised:
        typed({**first, column: cell})
    assert str(raised.value) == reason


@pytest.mark.parametrize("column", ["day", "dep_delay", "carrier", "tailnum"])
def test_a_column_that_is_missing_is_named(first: dict[str, str], column: str) -> None:
    with pytest.raises(BadRow, match=f"the column {column} is missing"):
        typed({name: cell for name, cell in first.items() if name != column})


@pytest.mark.parametrize("row", ["2013,1,1", None, ["2013"], 7])
def test_what_is_no_row_is_told_so(row: object) -> None:
    with pytest.raises(BadRow, match="a row has columns, and this is"):
        typed(row)


def test_real_rows_are_all_good() -> None:
    assert all(typed(row)["year"] == 2013 for row in islice(dataset.raw_flights(), 5_000))
