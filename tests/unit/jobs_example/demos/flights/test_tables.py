"""The contents of the tables, read by another program than their writer."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs_example.demos.flights.tables import read_tables

FLIGHT = {"id": "a", "carrier": "UA", "dep_delay": 2, "arr_delay": 11, "airline": "United", "seats": 149, "visib": 10.0}
CANCELLED = {"id": "c", "carrier": "EV", "dep_delay": None, "arr_delay": None}


def put(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two batches of flights that were on time, one of those that never departed."""
    put(tmp_path / "on_time" / "batch=1-flights" / "part-0.parquet", FLIGHT, {**FLIGHT, "id": "b", "seats": None})
    put(tmp_path / "on_time" / "batch=2-flights" / "part-0.parquet", {**FLIGHT, "id": "d", "arr_delay": 1})
    put(tmp_path / "cancelled" / "batch=3-flights" / "part-0.parquet", {**CANCELLED, "dep_delay": 0}, CANCELLED)
    return tmp_path


def test_rows_are_counted_over_all_batches_and_tables(folder: Path) -> None:
    stored = read_tables(folder)

    assert sorted(stored.ids) == ["a", "b", "c", "c", "d"]
    assert stored.rows == {"on_time": 3, "late": 0, "cancelled": 2}
    assert stored.batches == 3


def test_a_flight_that_is_there_twice_is_named_twice(folder: Path) -> None:
    put(folder / "late" / "batch=9-flights" / "part-0.parquet", FLIGHT)

    assert read_tables(folder).ids.count("a") == 2


def test_delays_are_tallied_by_carrier(folder: Path) -> None:
    tallies = read_tables(folder).tallies

    assert (tallies["UA"].flights, tallies["UA"].mean_arr_delay) == (3, 23 / 3)
    assert tallies["EV"].cancelled == 1


def test_what_was_joined_is_counted_where_it_was_found(folder: Path) -> None:
    stored = read_tables(folder)

    assert (stored.with_airline, stored.with_plane, stored.with_weather) == (3, 2, 3)


def test_what_a_killed_writer_left_is_not_part_of_the_table(folder: Path) -> None:
    put(folder / "on_time" / "batch=2-flights" / "_temporary" / "0" / "part-1.parquet", FLIGHT)
    (folder / "on_time" / "batch=2-flights" / "_SUCCESS").touch()

    assert read_tables(folder).rows["on_time"] == 3


def test_a_folder_without_tables_has_no_rows(tmp_path: Path) -> None:
    stored = read_tables(tmp_path)

    assert (stored.ids, stored.batches, stored.tallies) == ((), 0, {})
