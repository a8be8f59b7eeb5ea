"""From an item of a station's queue to its outcome, on threads, as a coroutine and in a child process."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout, ParameterError
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, forget_station, register_station
from jobrunner.jobs.running_task import JobRun
from jobrunner.outcome import Dropped, Fail, Failed, FannedOut, Moved, Outcome, Succeeded, Unknown
from jobrunner.retry import Backoff
from jobrunner.worker.run.child import write_greeting
from jobrunner.worker.run.executor import DispatchingExecutor
from jobrunner.worker.run.processes import ProcessSlots
from jobrunner.worker.run.runner import Runner
from tests.unit.worker.attempts import attempt_at, client_of, without_origin
from tests.unit.worker.child_jobs import CHILD_STATION

QUEUE = "runner/raw"
MOVED = Moved(queue="runner/clean", payload=b"0")


class Item:
    """Runs one attempt."""

    def __init__(self, act: Callable[[Attempt, JobRun], Any], attempt: Attempt, run: JobRun) -> None:
        self._act, self._attempt, self._run = act, attempt, run

    def run(self) -> Any:
        return self._act(self._attempt, self._run)


@pytest.fixture
def runner() -> Runner:
    return Runner(client_of(None), lambda token: False)


@pytest.fixture
def station() -> Iterator[Callable[..., None]]:
    """station(act, …): declares the station of QUEUE."""

    def declare(act: Callable[[Attempt, JobRun], Any], *, is_async: bool = False, **options: Any) -> None:
        register_station(
            QUEUE,
            StationDefinition(
                name=QUEUE, origin="test:station", queue=QUEUE, options=JobOptions(queue=QUEUE, **options),
                build=lambda attempt, run: Item(act, attempt, run), is_async=is_async,
            ),
        )  # fmt: skip

    yield declare
    forget_station(QUEUE)


@pytest.mark.parametrize(
    "outcome", [MOVED, FannedOut(children=(MOVED,)), Dropped(), Failed("no", 1.0), Succeeded(b"1")]
)
def test_an_outcome_that_is_returned_is_passed_on(runner: Runner, station: Any, outcome: Outcome) -> None:
    station(lambda *_: outcome)

    assert runner.run(attempt_at("", queue=QUEUE)) is outcome


def test_a_station_takes_whatever_is_in_its_queue(runner: Runner, station: Any) -> None:
    station(lambda attempt, run: [attempt.payload.decode(), run.task.attempt, run.task.queue])

    outcome = runner.run(attempt_at("runner.unknown", b"\xc3\xa4", queue=QUEUE, number=2))

    assert outcome == Succeeded('["ä",2,"runner/raw"]'.encode())


def test_an_error_of_a_station_is_a_failed_attempt_by_its_own_options(runner: Runner, station: Any) -> None:
    def act(*_: Any) -> Any:
        raise ValueError("wrong")

    station(act, backoff=Backoff(base=7, jitter=0), retry_on=KeyError)

    outcome = runner.run(attempt_at("", queue=QUEUE))

    assert isinstance(outcome, Failed)
    assert (outcome.delay_s, outcome.retry) == (7.0, False)
    assert outcome.error.startswith("ValueError: wrong")


def test_an_item_that_cannot_be_read_is_dead_at_once(runner: Runner, station: Any) -> None:
    def build(*_: Any) -> Any:
        raise ParameterError("no JSON")

    register_station(
        QUEUE,
        StationDefinition(
            name=QUEUE, origin="test:station", queue=QUEUE, options=JobOptions(), build=build, is_async=False
        ),
    )

    assert without_origin(runner.run(attempt_at("", queue=QUEUE))) == Failed("ParameterError: no JSON", retry=False)


def test_a_queue_without_a_station_is_named(runner: Runner) -> None:
    outcome = runner.run(attempt_at("", queue="runner/unknown"))

    assert isinstance(outcome, Unknown)
    assert "no station of queue 'runner/unknown'" in outcome.error


def test_a_coroutine_of_a_station_is_awaited_within_its_timeout(runner: Runner, station: Any) -> None:
    async def act(*_: Any) -> Any:
        return MOVED

    station(act, is_async=True, timeout=5)
    assert asyncio.run(runner.run_async(attempt_at("", queue=QUEUE))) is MOVED


def test_a_timeout_names_the_station(runner: Runner, station: Any) -> None:
    station(lambda *_: None, timeout=5)

    outcome = runner.timed_out(attempt_at("", queue=QUEUE), AttemptTimeout())

    assert isinstance(outcome, Failed)
    assert "timeout=5 s of station 'runner/raw'" in outcome.error


def test_a_station_of_coroutines_goes_to_the_event_loop(station: Any) -> None:
    shelves: list[list[Attempt]] = [[], []]

    class Shelf:
        def __init__(self, own: list[Attempt]) -> None:
            self.submit = own.extend

    station(lambda *_: None, is_async=True)
    executor = DispatchingExecutor(Shelf(shelves[0]), lambda: Shelf(shelves[1]))  # type: ignore[arg-type, return-value]
    mine, other = attempt_at("", queue=QUEUE), attempt_at("runner.plain")

    executor.submit([mine, other])

    assert shelves == [[other], [mine]]


@pytest.mark.parametrize(
    ("payload", "outcome"),
    [
        (b"move", Moved(queue="child/next", payload=b"\xff", encoding="", headers=b"{}", delay_s=1.5, waits=False)),
        (b"spread", FannedOut(children=(Moved(queue="child/a", payload=b"1"), Moved(queue="child/b", max_hops=3)))),
        (b"drop", Dropped()),
    ],
)
def test_a_child_process_finds_stations(runner: Runner, server: Any, payload: bytes, outcome: Outcome) -> None:
    greeting = write_greeting(server.url, "t", ["tests.unit.worker.child_jobs"])
    slots = ProcessSlots(greeting, runner, lambda token: False)
    try:
        assert slots.new_run()(attempt_at("", payload, queue=CHILD_STATION)) == outcome
    finally:
        slots.close()


def test_failing_for_good_says_so(runner: Runner, station: Any) -> None:
    station(lambda *_: Fail("never", retry=False))

    assert without_origin(runner.run(attempt_at("", queue=QUEUE))) == Failed("Fail: never", None, retry=False)
