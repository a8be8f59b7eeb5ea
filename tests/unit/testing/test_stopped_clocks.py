"""Tests of applications that stop or move Python's clock, with freezegun or time-machine."""

import importlib.util

import pytest

from tests.unit.testing.conftest import Suite

CLOCKS = {
    "freezegun": "from freezegun import freeze_time as stopped",
    "time_machine": "from functools import partial; import time_machine; "
    "stopped = partial(time_machine.travel, tick=False)",
}


@pytest.mark.parametrize("package", CLOCKS)
def test_waits_end_and_the_worker_runs_by_the_clock_of_the_server(suite: Suite, package: str) -> None:
    """With freezegun, `result(timeout=…)` waited for ever, and the worker was stopped after its 60 s: the monotonic
    clock stood still, too. With both, a task was never due after a journey: its clock was 2020's."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    suite(f"""
{CLOCKS[package]}
from jobrunner import job
from jobrunner.errors import TaskTimeout

@job(queue="sums")
def today() -> str:
    return datetime.now(UTC).date().isoformat()

@stopped("2020-02-29T12:00+00:00")
def test_it(jobrunner_worker, travel):
    task = today.using(in_=timedelta(minutes=3)).enqueue()
    with pytest.raises(TaskTimeout):
        task.result(timeout=0.05)

    travel.forward(timedelta(minutes=3))
    jobrunner_worker.run(timeout=20)

    assert task.result(timeout=0.05) == "2020-02-29"
""", passed=1)
