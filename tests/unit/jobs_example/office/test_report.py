"""The table, the headline and the state of the work."""

import csv
from pathlib import Path

from jobs_example.dataset import Flight
from jobs_example.office import report
from jobs_example.office.files import write_json
from jobs_example.office.parts import write_month
from jobs_example.punctuality import by_carrier


def a_flight(carrier: str, dep_delay: int | None, arr_delay: int | None) -> Flight:
    return Flight(1, 1, carrier, 1, None, "EWR", "IAH", 1400, dep_delay, arr_delay)


CARRIERS = by_carrier([a_flight("UA", 1, 2), a_flight("UA", 2, 20), a_flight("F9", 30, 40), a_flight("F9", None, None)])


def test_the_headline_is_over_all_carriers() -> None:
    assert report.headline(CARRIERS) == {
        "flights": 4,
        "cancelled": 1,
        "mean_dep_delay": 11.0,
        "mean_arr_delay": 62 / 3,
        "latest_first": ["F9", "UA"],
    }


def test_the_table_has_a_row_for_each_carrier_the_latest_first() -> None:
    rows = list(csv.DictReader(report.table(CARRIERS).splitlines()))

    assert rows == [
        dict(zip(report.COLUMNS, row, strict=True))
        for row in (
            ("F9", "Frontier Airlines Inc.", "2", "1", "30.0", "40.0", "0.0"),
            ("UA", "United Air Lines Inc.", "2", "0", "1.5", "11.0", "0.5"),
        )
    ]


def test_the_state_of_an_empty_folder_is_nothing_yet(tmp_path: Path) -> None:
    assert report.state(tmp_path) == "0 of 12 months, 0 flights, 0 fares, latest carrier: none yet"


def test_the_state_counts_what_is_there(tmp_path: Path) -> None:
    write_month(tmp_path, 1, CARRIERS)
    write_json(tmp_path / "fares" / "EWR-IAH.json", {})

    assert report.state(tmp_path) == "1 of 12 months, 4 flights, 1 fares, latest carrier: F9"
