"""The jobs, run by a real worker on a real server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.client.current import forget, use
from jobrunner.task import TaskState
from jobrunner.worker.worker import Worker
from jobs_example import dataset, jobs
from jobs_example.dataset import Flight
from jobs_example.demos.jobs.partner import Partner, troubles
from jobs_example.jobs import (
    FOLDER_VARIABLE,
    BootstrapDelay,
    Digest,
    ImportMonth,
    MonthWeather,
    PunctualityReport,
    QuoteFare,
    interval_id,
    seats_by_maker,
)
from jobs_example.office import parts
from jobs_example.punctuality import by_carrier

SEED = 2013
Work = Callable[..., None]


@pytest.fixture
def work(client: Client) -> Iterator[Work]:
    """work("imports") runs what is in those queues; the test's client is the one of this process meanwhile."""
    use(client)

    def run(*queues: str, drain: bool = False) -> None:
        Worker(["jobs_example.jobs"], queues, concurrency=4, client=client).run(burst=True, drain=drain)

    yield run
    forget()


@pytest.fixture
def partner() -> Iterator[Partner]:
    with Partner(SEED) as running:
        yield running


def a_route_with(trouble: tuple[str, ...]) -> str:
    routes = {f"{flight.origin}-{flight.dest}" for flight in dataset.flights(month=1) if flight.dest != "SJU"}
    return next(route for route in sorted(routes) if troubles(SEED, route) == trouble)


def import_two_carriers(folder: Path, months: range = dataset.MONTHS) -> None:
    for month in months:
        flights = [
            Flight(month, 1, carrier, 1, None, "EWR", "IAH", 1400, month, late)
            for carrier, late in (("UA", month), ("F9", 10 * month), ("UA", -month))
        ]
        parts.write_month(folder, month, by_carrier(flights))


def test_an_import_counts_its_month_and_shows_how_far_it_is(work: Work, tmp_path: Path) -> None:
    task = ImportMonth(month=2, folder=str(tmp_path)).enqueue()
    work("imports")

    assert task.result(timeout=0) == 24_951
    assert parts.read_month(tmp_path, 2) == by_carrier(dataset.flights(2))
    assert json.loads(task.record().fields["progress"]) == {"done": 28, "total": 28, "note": "unnamed#1"}


def test_an_import_that_runs_twice_leaves_what_it_left_at_first(work: Work, tmp_path: Path) -> None:
    for _ in range(2):
        ImportMonth(month=2, folder=str(tmp_path)).enqueue()
    work("imports")

    assert parts.imported(tmp_path) == [2]
    assert [path.name for path in tmp_path.rglob("*.*")] == ["2013-02.json"]


def test_a_report_snoozes_while_a_month_is_missing_and_spends_no_attempt(work: Work, tmp_path: Path) -> None:
    import_two_carriers(tmp_path, range(1, 12))
    task = PunctualityReport(folder=str(tmp_path)).enqueue()
    work("reports")

    assert task.state is TaskState.SCHEDULED
    assert (task.record().attempts, task.retry_count) == (0, 0)
    assert not (tmp_path / "punctuality.csv").exists()


def test_a_report_of_the_whole_year_is_written_and_asks_for_an_interval_of_each_carrier(
    work: Work, client: Client, tmp_path: Path
) -> None:
    import_two_carriers(tmp_path)
    task = PunctualityReport(folder=str(tmp_path), resamples=20).enqueue()
    work("reports")

    assert task.result(timeout=0) == {
        "flights": 36,
        "cancelled": 0,
        "mean_dep_delay": 6.5,
        "mean_arr_delay": pytest.approx(65 / 3),
        "latest_first": ["F9", "UA"],
    }
    assert (tmp_path / "punctuality.csv").read_text().count("\n") == 3
    for carrier in ("F9", "UA"):
        assert client.task(interval_id(carrier, task.id), queue="maths").state is TaskState.WAITING


def test_a_report_that_runs_again_after_a_crash_asks_for_each_interval_once(
    work: Work, client: Client, tmp_path: Path
) -> None:
    import_two_carriers(tmp_path)
    task = PunctualityReport(folder=str(tmp_path), resamples=20).enqueue()
    for carrier in ("F9", "UA"):
        interval = BootstrapDelay(carrier=carrier, folder=str(tmp_path), resamples=20)
        interval.enqueue(id=interval_id(carrier, task.id))  # what a first attempt left before its worker died
    work("reports")

    assert task.state is TaskState.SUCCEEDED
    assert client.queue("maths").counts()["waiting"] == 2


def test_an_interval_lies_around_the_mean(work: Work, tmp_path: Path) -> None:
    import_two_carriers(tmp_path)
    task = BootstrapDelay(carrier="F9", folder=str(tmp_path), resamples=50).enqueue()
    work("maths")

    found = task.result(timeout=0)
    assert found["low"] < found["mean"] == 65.0 < found["high"]
    assert json.loads((tmp_path / "intervals" / "F9.json").read_text()) == found


@pytest.mark.parametrize("trouble", [(), ("error",), ("hang-up",), ("error", "error", "error")])
def test_a_quote_is_had_however_often_the_partner_fails(
    work: Work, partner: Partner, tmp_path: Path, trouble: tuple[str, ...]
) -> None:
    route = a_route_with(trouble)
    task = QuoteFare(route=route, partner=partner.url, folder=str(tmp_path)).enqueue()
    work("partner", drain=True)

    fare = json.loads((tmp_path / "fares" / f"{route}.json").read_text())
    assert task.result(timeout=0) == fare["fare_cents"]
    assert (task.attempts, task.retry_count) == (1 + len(trouble), len(trouble))


def test_a_refused_route_is_dead_at_once_and_leaves_a_note(work: Work, partner: Partner, tmp_path: Path) -> None:
    task = QuoteFare(route="JFK-SJU", partner=partner.url, folder=str(tmp_path)).enqueue()
    work("partner", drain=True)

    assert (task.state, task.attempts) == (TaskState.DEAD, 1)
    assert "unknown airport SJU" in task.record().error
    assert "unknown airport SJU" in (tmp_path / "refused" / "JFK-SJU.txt").read_text()
    assert partner.calls == {"refused": 1}


def test_the_weather_of_a_month_is_fetched_for_each_day_and_airport(
    work: Work, partner: Partner, tmp_path: Path
) -> None:
    december = MonthWeather(month=12, partner=partner.url, folder=str(tmp_path)).enqueue()
    work("partner")

    days = json.loads((tmp_path / "weather" / "2013-12.json").read_text())
    assert december.result(timeout=0) == len(days) == 3 * 30  # the stations' year ends on the 30th
    assert {day["origin"] for day in days} == set(dataset.ORIGINS)


def test_a_digest_is_numbered_and_tells_the_state_of_the_folder(
    work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    import_two_carriers(tmp_path, range(1, 4))
    numbers = []
    for _ in range(2):
        task = Digest().enqueue()
        work("digest")
        head, _, state = task.result(timeout=0).partition(": ")
        numbers.append(int(head.removeprefix("Digest ")))

        assert state == "3 of 12 months, 9 flights, 0 fares, latest carrier: F9"
        assert (tmp_path / "digest.txt").read_text().endswith(f": {state}\n")
    assert 1 <= numbers[0] < numbers[1]  # not 1 and 2: the schedule, which is due at once, has a number too


def test_a_digest_without_a_folder_says_which_variable_is_missing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    task = Digest().enqueue()
    work("digest")

    assert task.result(timeout=0) == "no digest: JOBS_EXAMPLE_FOLDER names no folder"


def test_a_function_gives_the_same_called_here_and_run_by_a_worker(work: Work) -> None:
    task = seats_by_maker.enqueue(3)
    work("reports")

    assert task.result(timeout=0) == seats_by_maker(3)
    assert list(seats_by_maker(3)) == ["BOEING", "AIRBUS INDUSTRIE", "AIRBUS"]


def test_every_job_says_what_it_shows() -> None:
    declared: list[Any] = [found for found in vars(jobs).values() if hasattr(found, "definition")]
    named = {found.definition.name: found.__doc__ for found in declared if found.definition}

    assert set(named) == {
        "ImportMonth", "PunctualityReport", "BootstrapDelay", "QuoteFare", "MonthWeather", "seats_by_maker", "Digest",
    }  # fmt: skip
    assert all(named.values())
