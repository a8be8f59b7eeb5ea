"""When the demo of the lakehouse kills what."""

from typing import Any

import pytest

from jobrunner.cli.demo import FEWEST
from jobrunner.etl.progress import PipelineView, Rate, StationView
from jobs_example.demos.lakehouse.kills import LakehouseKills
from jobs_example.demos.lakehouse.run import FEW
from jobs_example.demos.lakehouse.state import DemoState
from jobs_example.demos.pipelines import kills as shared
from jobs_example.demos.pipelines.log import BatchDone
from jobs_example.demos.pipelines.roles import RoleProcesses

EVERYBODY = RoleProcesses(worker=(1,), driver=(2,), java=(3,), executor=(4,))


def state(
    stored: int = 0, checked: int = 0, on_spark: int = 5, batches: int = 0, processes: RoleProcesses = EVERYBODY
) -> DemoState:
    """1 000 orders, of which so many are stored."""
    rest: dict[str, Any] = {"targets": (), "scheduled": 0, "dead": 0, "done": 0, "paused": False, "rate": Rate()}
    stations = tuple(
        StationView(queue=queue, kind=kind, waiting=0, pending=pending, totals=totals, **rest)
        for queue, kind, pending, totals in [
            ("orders", "station", 9, {"moved_out": checked}),
            ("checked", "spark station", on_spark, {"succeeded": stored}),
            ("priced", "spark sink", 0, {}),
        ]
    )
    view = PipelineView(name="lakehouse", stations=stations, open=9, dead=0, succeeded=stored, dropped=0, rate=Rate())
    done = (BatchDone(station="checked", items=1, seconds=1.0, epoch=1),) * batches
    return DemoState(elapsed_s=1.0, planned=1000, pushed=1000, pipeline=view, processes=processes, killed=(),
                     lost_bytes=None, batches=done)  # fmt: skip


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> LakehouseKills:
    """Kills no real process, and rests for no time."""
    monkeypatch.setattr(shared, "kill", lambda role, processes: max(processes.of(role), default=None))
    monkeypatch.setattr("jobs_example.demos.lakehouse.kills._REST_S", -1.0)
    return LakehouseKills(lambda _: None)


def roles(kills: LakehouseKills) -> list[str]:
    return [role for role, _ in kills.done]


def test_the_worker_and_a_python_of_the_executor_are_killed_early(kills: LakehouseKills) -> None:
    kills.look(state(on_spark=0))
    assert roles(kills) == []
    kills.look(state(checked=51, on_spark=0))
    kills.look(state(checked=51))
    assert roles(kills) == ["worker", "executor"]


def test_java_is_killed_once_the_new_driver_has_a_batch_in_work(kills: LakehouseKills) -> None:
    kills.look(state())
    kills.look(state(stored=300, batches=3))
    assert roles(kills) == ["executor", "driver"]
    fresh = RoleProcesses(worker=(1,), driver=(7,), java=(8,))
    kills.look(state(stored=700, processes=fresh))
    kills.look(state(stored=700, processes=fresh))
    assert "java" not in roles(kills), "it has only just started"
    kills.look(state(stored=700, processes=RoleProcesses(worker=(1,), driver=(7,), java=(8,), executor=(9,))))
    assert kills.done[-1] == ("java", 8)


def test_the_quick_demo_has_as_many_orders_as_the_command_allows_at_least() -> None:
    assert FEW == FEWEST
