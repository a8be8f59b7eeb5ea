"""From a row of the flights' table as text to a row with types, or to the reason why it cannot be true."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jobs_example.dataset import ORIGINS, YEAR

WHOLE = ("year", "month", "day", "sched_dep_time", "sched_arr_time", "flight", "distance", "hour", "minute")
MAYBE_WHOLE = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
"""Absent for a flight that did not depart, or did not arrive where it was bound for."""
TEXT = ("carrier", "origin", "dest", "time_hour")
MAYBE_TEXT = ("tailnum",)

ABSENT = ("", "NA")
_LIMITS = {"year": (YEAR, YEAR), "month": (1, 12), "day": (1, 31), "hour": (0, 23), "minute": (0, 59)}
_MINUTES_OF_A_WEEK = 7 * 24 * 60


class BadRow(ValueError):
    """A row that cannot be true; the text names the column and its value."""


def typed(row: object) -> dict[str, Any]:
    """The row with numbers as numbers and None for what is absent. Raises BadRow."""
    if not isinstance(row, Mapping):
        raise BadRow(f"a row has columns, and this is {row!r}")
    try:
        flight: dict[str, Any] = {name: _whole(row, name) for name in WHOLE}
        flight |= {name: None if row[name] in ABSENT else _whole(row, name) for name in MAYBE_WHOLE}
        flight |= {name: _text(row, name) for name in TEXT}
        flight |= {name: None if row[name] in ABSENT else row[name] for name in MAYBE_TEXT}
    except KeyError as error:
        raise BadRow(f"the column {error.args[0]} is missing") from error
    _check(flight)
    return flight


def _whole(row: Mapping[str, Any], name: str) -> int:
    try:
        return int(row[name])
    except (TypeError, ValueError):
        raise BadRow(f"{name}={row[name]!r} is no whole number") from None


def _text(row: Mapping[str, Any], name: str) -> str:
    cell = row[name]
    if not isinstance(cell, str) or cell in ABSENT:
        raise BadRow(f"{name}={cell!r}: every flight has one")
    return cell


def _check(flight: Mapping[str, Any]) -> None:
    for name, (least, most) in _LIMITS.items():
        if not least <= flight[name] <= most:
            raise BadRow(f"{name}={flight[name]} is not between {least} and {most}")
    if flight["origin"] not in ORIGINS:
        raise BadRow(f"origin={flight['origin']!r} is no airport of New York")
    if flight["distance"] <= 0:
        raise BadRow(f"distance={flight['distance']} is not the length of a way")
    for name in ("dep_delay", "arr_delay"):
        if abs(flight[name] or 0) > _MINUTES_OF_A_WEEK:
            raise BadRow(f"{name}={flight[name]} minutes is more than a week")
    try:
        datetime.fromisoformat(flight["time_hour"])
    except ValueError:
        raise BadRow(f"time_hour={flight['time_hour']!r} is no point in time") from None
