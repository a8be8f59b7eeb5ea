"""Each kind of process is killed once, in the middle of its work, and its successor is seen."""

from dataclasses import replace

import pytest

from jobs_example.demos.flights import kills
from jobs_example.demos.flights.kills import FlightKills
from jobs_example.demos.pipelines import kills as shared
from jobs_example.demos.pipelines.roles import RoleProcesses
from tests.unit.jobs_example.demos.flights.flight_views import EVERYBODY, a_state

CLEANING = {"pending": 5, "waiting": 500, "totals": {"moved_out": 200}}
IDLE: dict[str, int] = {}
ENRICHING = {"pending": 100, "totals": {"moved_out": 400}}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def damage(said: list[str], monkeypatch: pytest.MonkeyPatch) -> FlightKills:
    """Kills no real process, without pauses between kills of the executor."""

    def pretend(role: str, processes: RoleProcesses) -> int | None:
        return max(processes.of(role), default=None)  # type: ignore[arg-type]

    monkeypatch.setattr(shared, "kill", pretend)
    monkeypatch.setattr(kills, "_REST_S", -1.0)
    return FlightKills(said.append, driver_at=0.4)


def test_nobody_is_killed_before_there_is_work(damage: FlightKills) -> None:
    damage.look(a_state({"waiting": 1000}, IDLE))
    damage.look(a_state({"pending": 5, "totals": {"moved_out": 50}}, IDLE))

    assert damage.done == []


def test_the_worker_is_killed_when_a_part_is_cleaned_and_some_is_in_hand(damage: FlightKills) -> None:
    damage.look(a_state(CLEANING, IDLE))

    assert damage.done == [("worker", 11)]


def test_the_executor_is_killed_at_the_first_batch_and_the_driver_later(damage: FlightKills) -> None:
    damage.look(a_state(IDLE, {"pending": 100}))
    assert damage.done == [("executor", 14)]
    damage.look(a_state(IDLE, {"pending": 100, "totals": {"moved_out": 399}}))
    assert damage.done == [("executor", 14)]
    damage.look(a_state(IDLE, ENRICHING))
    assert damage.done == [("executor", 14), ("driver", 12)]


def test_the_driver_is_killed_only_with_a_batch_in_hand(damage: FlightKills) -> None:
    damage.look(a_state(IDLE, ENRICHING))
    damage.look(a_state(IDLE, {**ENRICHING, "pending": 0}))

    assert [role for role, _ in damage.done] == ["executor"]


def test_each_is_killed_once(damage: FlightKills) -> None:
    for _ in range(4):
        damage.look(a_state(CLEANING, ENRICHING))

    assert sorted(damage.done) == [("driver", 12), ("executor", 14), ("worker", 11)]


def test_who_is_not_there_is_killed_when_it_is(damage: FlightKills) -> None:
    damage.look(a_state(IDLE, ENRICHING, processes=replace(EVERYBODY, executor=())))
    assert damage.done == []
    damage.look(a_state(IDLE, ENRICHING))
    assert damage.done == [("executor", 14)]


def test_a_successor_is_told_of_once_it_is_there(damage: FlightKills, said: list[str]) -> None:
    damage.look(a_state(CLEANING, IDLE))
    damage.look(a_state(CLEANING, IDLE, processes=replace(EVERYBODY, worker=())))
    assert damage.replaced == {}
    for _ in range(2):
        damage.look(a_state(CLEANING, IDLE, processes=replace(EVERYBODY, worker=(31,))))

    assert damage.replaced == {"worker": 1}
    assert said[0] == "the Python worker, process 11, is killed (-9)"
    assert said[1].startswith("the Python worker: process 31 has taken its place, ")
    assert len(said) == 2
