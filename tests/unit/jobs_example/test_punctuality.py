"""Counts that add up exactly, and the published figures of the data set."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs_example import dataset
from jobs_example.dataset import Flight
from jobs_example.punctuality import NOTHING, Tally, by_carrier, latest_first, merged, total

delays = st.none() | st.integers(-90, 1_500)
tallies = st.lists(st.tuples(st.sampled_from(["UA", "EV"]), delays, delays), max_size=30).map(
    lambda flights: by_carrier(a_flight(*flight) for flight in flights)
)


def a_flight(carrier: str = "UA", dep_delay: int | None = 0, arr_delay: int | None = 0) -> Flight:
    return Flight(1, 1, carrier, 1, None, "EWR", "IAH", 1400, dep_delay, arr_delay)


def test_a_tally_counts_flights_departures_and_arrivals() -> None:
    flights = [
        a_flight(dep_delay=4, arr_delay=20),
        a_flight(dep_delay=6, arr_delay=None),
        a_flight(dep_delay=None),
    ]
    flights[2] = flights[2]._replace(arr_delay=None)

    tally = by_carrier(flights)["UA"]

    assert (tally.flights, tally.cancelled) == (3, 1)
    assert (tally.mean_dep_delay, tally.mean_arr_delay) == (5.0, 20.0)


def test_a_flight_that_arrives_fifteen_minutes_late_is_not_on_time() -> None:
    tally = by_carrier(a_flight(arr_delay=late) for late in (-3, 14, 15, 16))["UA"]

    assert tally.on_time_share == 0.5


def test_nothing_has_no_mean_and_no_share() -> None:
    assert (NOTHING.mean_dep_delay, NOTHING.mean_arr_delay, NOTHING.on_time_share) == (None, None, None)


def test_carriers_come_latest_first_and_without_those_that_never_arrived() -> None:
    flights = [a_flight("AA", arr_delay=1), a_flight("BB", arr_delay=9), a_flight("CC", arr_delay=None)]

    assert latest_first(by_carrier(flights)) == ["BB", "AA"]


@given(tallies, tallies, tallies)
def test_parts_add_up_to_the_same_whole_in_any_order(
    one: dict[str, Tally], two: dict[str, Tally], three: dict[str, Tally]
) -> None:
    assert merged([one, two, three]) == merged([three, merged([two, one])])


def test_adding_leaves_the_parts_as_they_were() -> None:
    part = by_carrier([a_flight(arr_delay=3)])

    merged([part, part])

    assert part["UA"] == Tally(flights=1, departures=Counter({0: 1}), arrivals=Counter({3: 1}))


@pytest.fixture(scope="module")
def flights() -> list[Flight]:
    """Every flight of the year."""
    return list(dataset.flights())


@pytest.mark.xdist_group("the whole year")
def test_twelve_months_add_up_to_exactly_the_year(flights: list[Flight]) -> None:
    months = [by_carrier(f for f in flights if f.month == month) for month in dataset.MONTHS]

    assert merged(months) == by_carrier(flights)


@pytest.mark.xdist_group("the whole year")
def test_the_year_agrees_with_the_published_figures(flights: list[Flight]) -> None:
    carriers = by_carrier(flights)
    year = total(carriers)

    assert (year.flights, year.cancelled) == (336_776, 8_255)
    assert year.mean_dep_delay == pytest.approx(12.64, abs=0.005)
    assert year.mean_arr_delay == pytest.approx(6.90, abs=0.005)
    assert latest_first(carriers)[:5] == ["F9", "FL", "EV", "YV", "OO"]
