"""The reports of the office: the table of the carriers, the headline figures, and the progress."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from jobs_example import dataset, punctuality
from jobs_example.office import parts
from jobs_example.punctuality import Tally

COLUMNS = ("carrier", "name", "flights", "cancelled", "mean_dep_delay", "mean_arr_delay", "on_time_share")


class Headline(TypedDict):
    """The year in a few figures; delays in minutes."""

    flights: int
    cancelled: int
    mean_dep_delay: float | None
    mean_arr_delay: float | None
    latest_first: list[str]


def headline(carriers: Mapping[str, Tally]) -> Headline:
    """The figures over all carriers, and the carriers by arrival delay."""
    year = punctuality.total(carriers)
    return Headline(
        flights=year.flights,
        cancelled=year.cancelled,
        mean_dep_delay=year.mean_dep_delay,
        mean_arr_delay=year.mean_arr_delay,
        latest_first=punctuality.latest_first(carriers),
    )


def table(carriers: Mapping[str, Tally]) -> str:
    """The carriers as CSV, the latest first; figures that do not exist are empty."""
    names = dataset.airlines()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for code in punctuality.latest_first(carriers):
        tally = carriers[code]
        figures = (tally.mean_dep_delay, tally.mean_arr_delay, tally.on_time_share)
        writer.writerow([code, names[code], tally.flights, tally.cancelled, *map(_rounded, figures)])
    return text.getvalue()


def state(folder: Path) -> str:
    """One line on how far the work in a folder is."""
    months = parts.imported(folder)
    carriers = parts.read_year(folder)
    flights = punctuality.total(carriers).flights
    fares = sum(1 for _ in (folder / "fares").glob("*.json"))
    latest = next(iter(punctuality.latest_first(carriers)), "none yet")
    return f"{len(months)} of 12 months, {flights} flights, {fares} fares, latest carrier: {latest}"


def _rounded(figure: float | None) -> float | str:
    return "" if figure is None else round(figure, 4)
