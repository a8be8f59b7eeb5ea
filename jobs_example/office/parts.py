"""The monthly results on disk: one file for each month, whole or not there.

Whether everything is imported is a fact of the folder and not of a counter, so no crash can make it wrong.
"""

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from jobs_example.dataset import MONTHS, YEAR
from jobs_example.office.files import write_whole
from jobs_example.punctuality import Tally, merged


def write_month(folder: Path, month: int, tallies: Mapping[str, Tally]) -> Path:
    """Stores the tallies of a month, replacing those of an earlier import; returns the file."""
    rows = {
        carrier: {"flights": tally.flights, "departures": tally.departures, "arrivals": tally.arrivals}
        for carrier, tally in tallies.items()
    }
    path = _path(folder, month)
    write_whole(path, json.dumps(rows))
    return path


def read_month(folder: Path, month: int) -> dict[str, Tally]:
    """The tallies of a month, by carrier; FileNotFoundError when it is not imported yet."""
    rows = json.loads(_path(folder, month).read_text(encoding="utf-8"))
    return {
        carrier: Tally(flights=row["flights"], departures=_delays(row["departures"]), arrivals=_delays(row["arrivals"]))
        for carrier, row in rows.items()
    }


def read_year(folder: Path) -> dict[str, Tally]:
    """The tallies of all the months that are imported, added up by carrier."""
    return merged(read_month(folder, month) for month in imported(folder))


def imported(folder: Path) -> list[int]:
    """The months whose results are there, in order."""
    return [month for month in MONTHS if _path(folder, month).is_file()]


def _path(folder: Path, month: int) -> Path:
    return folder / "months" / f"{YEAR}-{month:02}.json"


def _delays(row: Mapping[str, int]) -> Counter[int]:
    return Counter({int(delay): number for delay, number in row.items()})  # JSON has no other keys than strings
