"""The expected output of the pipeline, computed in plain Python."""

import pytest

from jobs_example import dataset
from jobs_example.demos.flights.published import YEAR, Expected, Figures, Notes

pytestmark = pytest.mark.xdist_group("January as published")  # the month is read once, not in each process


@pytest.fixture(scope="module")
def january() -> Expected:
    """The expected output for the flights of January."""
    notes = Notes()
    for row in dataset.raw_flights(month=1):
        notes.add(row)
    return notes.expected(of_the_year=False)


def test_every_flight_is_noted_under_its_own_id(january: Expected) -> None:
    assert len(january.ids) == 27_004
    assert "2013-01-01T10:00:00Z.UA.1545" in january.ids


def test_figures_of_a_month_are_those_of_its_flights(january: Expected) -> None:
    flights = [flight for flight in dataset.flights(month=1) if flight.arr_delay is not None]
    by_f9 = [flight.arr_delay or 0 for flight in flights if flight.carrier == "F9"]

    assert january.figures.cancelled == 521
    assert january.figures.arr_delay == f"{sum(flight.arr_delay or 0 for flight in flights) / len(flights):.3f}"
    assert january.figures.arr_delay_by_carrier["F9"] == f"{sum(by_f9) / len(by_f9):.2f}"


def test_late_are_those_that_arrive_a_quarter_of_an_hour_late_or_not_at_all(january: Expected) -> None:
    departed = [flight for flight in dataset.flights(month=1) if flight.dep_delay is not None]

    assert january.late == sum(flight.arr_delay is None or flight.arr_delay >= 15 for flight in departed)


def test_planes_and_weather_are_known_for_most_departures_but_not_for_all(january: Expected) -> None:
    departed = 27_004 - 521

    assert 0.8 * departed < january.with_plane < departed
    assert 0.9 * departed < january.with_weather < departed


def test_the_figures_of_the_year_are_the_published_ones() -> None:
    published = Notes().expected(of_the_year=True).figures

    assert published is YEAR
    assert (published.cancelled, published.dep_delay, published.arr_delay) == (8_255, "12.639", "6.895")
    assert list(published.arr_delay_by_carrier.items())[::15] == [("F9", "21.92"), ("AS", "-9.93")]


def test_a_month_without_flights_has_no_means() -> None:
    assert Figures.of({}) == Figures(cancelled=0, dep_delay="none", arr_delay="none", arr_delay_by_carrier={})
