"""What a worker publishes of its periodic jobs."""

from collections.abc import Iterator

import msgspec
import pytest

from jobrunner import Client, PeriodicJob, job
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.jobs import registry
from tests.support.waiting import wait_for
from tests.worker.conftest import Start


@pytest.fixture
def made() -> Iterator[list[int]]:
    """The values that the factory of a default made."""
    values: list[int] = []

    def one_more() -> int:
        values.append(len(values))
        return values[-1]

    @job(name="published.yearly", queue="pj", cron="0 0 29 2 *")
    class Yearly(PeriodicJob):
        number: int = msgspec.field(default_factory=one_more)

        def run(self) -> None: ...

    yield values
    registry.forget("published.yearly")


@pytest.mark.usefixtures("made")
def test_a_worker_with_rare_heartbeats_publishes_its_jobs_for_three_of_them(current: Client, start: Start) -> None:
    """A job counts as known for a minute after this instant."""
    begun_ms = unix_ms()
    start(queues=["pj"], heartbeat=170)

    def seen() -> float:
        return broker_of(current).run(leader_calls.periodics_seen(keys_of(current))).get("published.yearly", 0.0)

    wait_for(lambda: seen() > begun_ms + 450_000)


def test_defaults_are_made_once_for_all_heartbeats(made: list[int], current: Client, start: Start) -> None:
    def seen() -> float:
        return broker_of(current).run(leader_calls.periodics_seen(keys_of(current))).get("published.yearly", 0.0)

    start(queues=["pj"], heartbeat=0.05)
    wait_for(lambda: seen() > 0)
    before = len(made)
    for _ in range(3):
        last = seen()
        wait_for(lambda last=last: seen() > last)
    assert len(made) == before


def test_a_job_that_is_added_while_a_worker_runs_ticks_until_it_is_removed(current: Client, start: Start) -> None:
    ran: list[str] = []

    @job(name="published.added", queue="pj")
    def note(who: str) -> None:
        ran.append(who)

    try:
        start(queues=["pj"], leader_ttl=0.3)
        current.add_periodic("ada", note.bind("ada"), every=0.1)
        wait_for(lambda: len(ran) > 2)
        assert set(ran) == {"ada"}
        current.remove_periodic("ada")
        assert "ada" not in {record.name for record in current.periodics()}
    finally:
        registry.forget("published.added")
