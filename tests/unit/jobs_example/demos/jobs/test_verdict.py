"""The verdict agrees when all is well, and each thing that can be wrong makes it differ."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs_example.dataset import Flight
from jobs_example.demos.checks import Check
from jobs_example.demos.jobs import verdict
from jobs_example.demos.jobs.verdict import Ending, Ledger, on_disk, partner_failed, rightness, wholeness
from jobs_example.office import bootstrap, report
from jobs_example.office.files import write_json, write_whole
from jobs_example.office.report import Headline
from jobs_example.punctuality import by_carrier

HEADLINE = Headline(
    flights=336_776,
    cancelled=8_255,
    mean_dep_delay=12.639070257304708,
    mean_arr_delay=6.89537675731489,
    latest_first=["F9", "FL", "EV", "YV", "OO", "MQ", "WN"],
)
LEDGER = Ledger(
    endings=(
        Ending(id="1", what="January", state="succeeded", attempts=1),
        Ending(id="2", what="February", state="succeeded", attempts=2),
        Ending(id="3", what="JFK-SJU", state="dead", attempts=1),
    ),
    refused=frozenset({"JFK-SJU"}),
    orphans={"2": 1},
    left=0,
)


def differing(checks: list[Check]) -> list[str]:
    return [check.what for check in checks if not check.agrees]


def with_ending(ending: Ending) -> Ledger:
    return replace(LEDGER, endings=tuple(ending if e.id == ending.id else e for e in LEDGER.endings))


def test_the_published_figures_agree() -> None:
    assert differing(rightness(HEADLINE)) == []


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"flights": 336_775}, "flights"),
        ({"cancelled": 8_256}, "flights without a departure"),
        ({"mean_dep_delay": 12.65}, "mean departure delay, min"),
        ({"mean_arr_delay": 6.89}, "mean arrival delay, min"),
        ({"mean_arr_delay": None}, "mean arrival delay, min"),
        ({"latest_first": ["FL", "F9", "EV", "YV", "OO"]}, "latest carriers"),
    ],
)
def test_a_figure_that_is_off_differs(wrong: dict[str, object], what: str) -> None:
    figures: Headline = {**HEADLINE, **wrong}  # type: ignore[typeddict-item]

    assert differing(rightness(figures)) == [what]


def test_work_that_ended_as_it_should_is_whole() -> None:
    assert differing(wholeness(LEDGER)) == []


def test_a_task_that_the_server_does_not_know_is_a_loss() -> None:
    ledger = with_ending(Ending(id="1", what="January", state="gone", attempts=0))

    assert differing(wholeness(ledger)) == ["tasks that succeeded"]


def test_a_task_that_died_without_a_refusal_differs() -> None:
    ledger = with_ending(Ending(id="1", what="January", state="dead", attempts=5))

    assert differing(wholeness(ledger)) == ["tasks that succeeded", "dead: the refused routes"]


def test_a_refused_route_that_is_not_among_the_dead_differs() -> None:
    ledger = with_ending(Ending(id="3", what="JFK-SJU", state="succeeded", attempts=1))

    assert differing(wholeness(ledger)) == ["tasks that succeeded", "dead: the refused routes"]


def test_a_task_left_in_a_queue_differs() -> None:
    assert differing(wholeness(replace(LEDGER, left=1))) == ["tasks left in the queues"]


def test_a_killed_worker_that_held_nothing_shows_nothing() -> None:
    ledger = replace(LEDGER, orphans={})

    assert differing(wholeness(ledger)) == ["tasks in the killed worker's hands"]


def test_an_orphan_that_was_never_handed_out_again_differs() -> None:
    ledger = with_ending(Ending(id="2", what="February", state="succeeded", attempts=1))

    assert differing(wholeness(ledger)) == ["of these, finished by another"]


def test_the_partner_must_have_failed_as_often_as_planned() -> None:
    calls = {"error": 3, "hang-up": 2, "late": 1, "quoted": 9}

    assert partner_failed(calls, planned=6).agrees
    assert not partner_failed(calls, planned=7).agrees


def test_files_that_are_all_there_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of_a_small_year(tmp_path, monkeypatch)

    assert differing(on_disk(tmp_path, fares=1, refused=1)) == []


def test_missing_files_differ_and_do_not_fail(tmp_path: Path) -> None:
    assert len(differing(on_disk(tmp_path, fares=1, refused=1))) == 6


def test_an_interval_beside_its_mean_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of_a_small_year(tmp_path, monkeypatch)
    write_json(tmp_path / "intervals" / "UA.json", {"low": 4.1, "mean": 4.0, "high": 5.0})

    assert differing(on_disk(tmp_path, fares=1, refused=1)) == ["carriers with an interval around their mean"]


def files_of_a_small_year(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of the jobs for a year with two flights."""
    monkeypatch.setattr(verdict, "FLIGHTS", 2)
    monkeypatch.setattr(verdict, "CARRIERS", 1)
    monkeypatch.setattr(verdict, "DAYS_OF_WEATHER", 3)
    carriers = by_carrier(Flight(1, 1, "UA", 1, None, "EWR", "IAH", 1400, 1, late) for late in (3, 5))
    means = list(bootstrap.resampled_means(carriers["UA"].arrivals, 50, "s"))
    found = bootstrap.interval(carriers["UA"].arrivals, means)
    write_whole(folder / "punctuality.csv", report.table(carriers))
    write_json(folder / "intervals" / "UA.json", {"low": found.low, "mean": found.mean, "high": found.high})
    write_json(folder / "fares" / "EWR-IAH.json", {})
    write_whole(folder / "refused" / "JFK-SJU.txt", "no such airport")
    write_json(folder / "weather" / "2013-01.json", [{}, {}, {}])
    write_whole(folder / "digest.txt", "Digest 1")
