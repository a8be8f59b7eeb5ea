"""Monthly results on disk."""

from pathlib import Path

import pytest

from jobs_example.dataset import Flight
from jobs_example.office.parts import imported, read_month, read_year, write_month
from jobs_example.punctuality import by_carrier, merged

JANUARY = by_carrier([Flight(1, 1, "UA", 1, None, "EWR", "IAH", 1400, -3, 12)])
MARCH = by_carrier(
    [
        Flight(3, 1, "UA", 1, None, "EWR", "IAH", 1400, 4, -12),
        Flight(3, 1, "EV", 2, None, "EWR", "IAH", 1400, None, None),
    ]
)


def test_a_month_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_month(tmp_path, 3, MARCH)

    assert read_month(tmp_path, 3) == MARCH


def test_a_month_imported_twice_counts_once(tmp_path: Path) -> None:
    write_month(tmp_path, 3, MARCH)
    write_month(tmp_path, 3, MARCH)

    assert imported(tmp_path) == [3]
    assert read_year(tmp_path) == MARCH


def test_the_year_adds_up_what_is_there(tmp_path: Path) -> None:
    write_month(tmp_path, 3, MARCH)
    write_month(tmp_path, 1, JANUARY)

    assert imported(tmp_path) == [1, 3]
    assert read_year(tmp_path) == merged([JANUARY, MARCH])


def test_nothing_is_imported_into_an_empty_folder(tmp_path: Path) -> None:
    assert imported(tmp_path) == []
    assert read_year(tmp_path) == {}


def test_a_month_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_month(tmp_path, 7)
