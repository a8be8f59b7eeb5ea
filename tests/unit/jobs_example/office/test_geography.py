"""Great circles against distances that others published."""

import pytest

from jobs_example import dataset
from jobs_example.dataset import Airport
from jobs_example.office.geography import KM_PER_MILE, great_circle_km


def test_a_quarter_of_the_equator_is_a_quarter_of_the_circumference() -> None:
    start, end = Airport("A", "", 0.0, 0.0), Airport("B", "", 0.0, 90.0)

    assert great_circle_km(start, end) == pytest.approx(10_007.557, abs=0.01)


def test_a_place_is_nowhere_away_from_itself() -> None:
    somewhere = Airport("A", "", 40.6, -73.8)

    assert great_circle_km(somewhere, somewhere) == 0.0


def test_distances_agree_with_those_of_the_data_set() -> None:
    airports = dataset.airports()
    published = {(f.origin, f.dest): f.distance_miles for f in dataset.flights(month=7) if f.dest in airports}

    for (origin, dest), miles in published.items():
        km = great_circle_km(airports[origin], airports[dest])
        assert km == pytest.approx(miles * KM_PER_MILE, rel=0.01, abs=5), (origin, dest)
