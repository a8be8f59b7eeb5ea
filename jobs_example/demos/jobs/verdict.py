"""The checks at the end of the demo: each with the expected and the found value.

Two questions. Is the work whole: has every task that was accepted ended as it should, is nothing left over,
were the tasks of the killed worker finished by another? And is it right: are the figures the published ones?
"""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jobs_example.demos.checks import Check, at_least, same, same_names
from jobs_example.office.report import Headline

FLIGHTS = 336_776
CANCELLED = 8_255
MEAN_DEP_DELAY = 12.64
MEAN_ARR_DELAY = 6.90
LATEST_FIRST = ("F9", "FL", "EV", "YV", "OO")
CARRIERS = 16
DAYS_OF_WEATHER = 3 * 364  # three stations, whose year ends on 30 December


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of one accepted task, as the server reports it; `state` is "gone" when the server does not know it."""

    id: str
    what: str
    state: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Facts that the demo recorded itself, to be compared with the server's."""

    endings: tuple[Ending, ...]
    """One for each task whose enqueueing was confirmed."""
    refused: frozenset[str]
    """The routes that no partner will quote: their tasks, and no others, must be dead."""
    orphans: Mapping[str, int]
    """The tasks that the killed worker held when it died: which attempt each was at, by id."""
    left: int
    """Tasks that are still waiting, scheduled or pending."""


def wholeness(ledger: Ledger) -> list[Check]:
    """Checks that no task was lost, and that only tasks that had to fail are dead."""
    dead = {ending.what for ending in ledger.endings if ending.state == "dead"}
    succeeded = sum(ending.state == "succeeded" for ending in ledger.endings)
    finished_again = sum(
        ending.id in ledger.orphans and ending.attempts > ledger.orphans[ending.id] and ending.state == "succeeded"
        for ending in ledger.endings
    )
    return [
        same("tasks that succeeded", len(ledger.endings) - len(ledger.refused), succeeded),
        same_names("dead: the refused routes", ledger.refused, dead),
        same("tasks left in the queues", 0, ledger.left),
        at_least("tasks in the killed worker's hands", 1, len(ledger.orphans)),
        same("of these, finished by another", len(ledger.orphans), finished_again),
    ]


def rightness(headline: Headline) -> list[Check]:
    """Whether the figures of the year are the published ones."""
    latest = headline["latest_first"][: len(LATEST_FIRST)]
    return [
        same("flights", FLIGHTS, headline["flights"]),
        same("flights without a departure", CANCELLED, headline["cancelled"]),
        same("mean departure delay, min", f"{MEAN_DEP_DELAY:.2f}", _minutes(headline["mean_dep_delay"])),
        same("mean arrival delay, min", f"{MEAN_ARR_DELAY:.2f}", _minutes(headline["mean_arr_delay"])),
        same("latest carriers", " ".join(LATEST_FIRST), " ".join(latest)),
    ]


def on_disk(folder: Path, *, fares: int, refused: int) -> list[Check]:
    """Whether the files that the jobs left are all there, and agree with each other."""
    table = folder / "punctuality.csv"
    rows = list(csv.DictReader(table.read_text(encoding="utf-8").splitlines())) if table.is_file() else []
    inside = sum(_inside(folder / "intervals" / f"{row['carrier']}.json", row) for row in rows)
    weather = sum(len(json.loads(path.read_bytes())) for path in (folder / "weather").glob("*.json"))
    return [
        same("flights in punctuality.csv", FLIGHTS, sum(int(row["flights"]) for row in rows)),
        same("carriers with an interval around their mean", CARRIERS, inside),
        same("fares on file", fares, _number_of(folder, "fares/*.json")),
        same("notes on refused routes", refused, _number_of(folder, "refused/*.txt")),
        same("days of weather on file", DAYS_OF_WEATHER, weather),
        at_least("digests", 1, _number_of(folder, "digest.txt")),
    ]


def partner_failed(calls: Mapping[str, int], planned: int) -> Check:
    """Whether the partner failed as often as it was bound to, so that the retries were real."""
    return same("failed calls to the partner, retried", planned, calls["error"] + calls["hang-up"] + calls["late"])


def _inside(path: Path, row: Mapping[str, str]) -> bool:
    if not path.is_file():
        return False
    interval = json.loads(path.read_bytes())
    mean = float(row["mean_arr_delay"])
    return bool(interval["low"] <= mean <= interval["high"]) and round(interval["mean"], 4) == mean


def _number_of(folder: Path, pattern: str) -> int:
    return sum(1 for _ in folder.glob(pattern))


def _minutes(mean: float | None) -> str:
    return "none" if mean is None else f"{mean:.2f}"
