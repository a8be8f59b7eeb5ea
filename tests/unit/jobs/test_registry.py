"""The registry of jobs of this process, by name and by queue."""

from collections.abc import Iterator

import pytest

from jobrunner.attempt import Attempt
from jobrunner.errors import DuplicateJob
from jobrunner.jobs import registry
from jobrunner.jobs.decorator import job
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition
from tests.support.registries import station_of

QUEUE = "registered/raw"


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    registry.forget_station(QUEUE)
    registry.forget("registered.plain")


def station(origin: str = "mod:parse") -> StationDefinition:
    return StationDefinition(
        name=QUEUE, origin=origin, queue=QUEUE, options=JobOptions(), build=lambda *_: None, is_async=False
    )


def attempt(queue: str, type_: str = "") -> Attempt:
    return Attempt(queue, "a", "1", 0.0, 0.0, type_, b"{}", 1, 0, 0.0, 5, None)


def test_a_station_is_found_by_its_queue() -> None:
    made = station()
    registry.register_station(QUEUE, made)

    assert station_of(QUEUE) is made
    assert station_of("registered/other") is None
    assert made in registry.all_stations()


def test_an_attempt_is_run_by_the_station_of_its_queue_else_by_the_job_of_its_type() -> None:
    @job(name="registered.plain")
    def plain() -> None: ...

    made = station()
    registry.register_station(QUEUE, made)

    assert registry.definition_for(attempt(QUEUE)) is made
    assert registry.definition_for(attempt(QUEUE, "registered.plain")) is made
    assert registry.definition_for(attempt("default", "registered.plain")) is plain.definition
    assert registry.definition_for(attempt("default")) is None


def test_the_same_station_again_replaces_itself_and_another_one_is_refused() -> None:
    registry.register_station(QUEUE, station())
    again = station()
    registry.register_station(QUEUE, again)
    assert station_of(QUEUE) is again

    with pytest.raises(DuplicateJob, match=r"registered/raw.*mod:parse.*mod:other"):
        registry.register_station(QUEUE, station("mod:other"))
    with pytest.raises(DuplicateJob, match=r"mod:parse.*mod:driven"):
        registry.register_driver(QUEUE, lambda _: pytest.fail("never made"), origin="mod:driven")


def test_a_queue_with_a_driver_has_no_station_beside_it() -> None:
    def make(_: object) -> None: ...

    registry.register_driver(QUEUE, make, origin="mod:driven")  # type: ignore[arg-type]

    assert registry.driver_of(QUEUE) is make
    assert registry.driver_of("registered/other") is None
    assert QUEUE in registry.driven_queues()
    with pytest.raises(DuplicateJob):
        registry.register_station(QUEUE, station())
    registry.forget_station(QUEUE)
    assert registry.driver_of(QUEUE) is None
