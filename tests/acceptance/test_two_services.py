"""Two services that share a queue, each with jobs that the other does not know, as while a deploy rolls."""

from typing import Any

import pytest

from jobrunner import Client
from jobrunner.task import Task, new_id
from tests.acceptance.fleet import Fleet

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

_JOBS = """
from jobrunner import job

@job(name="{name}.done", queue="shared", result_ttl=600)  # the last result is read after all others
def done(n: int = 0) -> str:
    return "{name}"
"""


def test_each_task_ends_at_the_service_that_knows_it(fleet: Fleet, current: Client) -> None:
    """Also those that lay there before the second service was started."""
    for name in ("shop", "bank"):
        fleet.module(f"{name}_jobs", _JOBS.format(name=name))
    fleet.start_one(modules=["shop_jobs"], queues=["shared"])

    def enqueue(name: str) -> Any:
        return current.enqueue(
            Task(id=new_id("shared"), queue="shared", type=f"{name}.done", payload=b"{}", max_attempts=1)
        )

    early = [enqueue("bank") for _ in range(20)]
    assert [enqueue("shop").result(timeout=20) for _ in range(3)] == ["shop"] * 3
    fleet.start_one(modules=["bank_jobs"], queues=["shared"])
    tasks = [(name, enqueue(name)) for _ in range(20) for name in ("shop", "bank")]
    for name, task in [*tasks, *(("bank", task) for task in early)]:
        assert task.result(timeout=200) == name  # who is handed back by chance again and again waits half a minute
    assert current.queue("shared").counts()["dead"] == 0
    assert current.queue("shared").totals().get("failed", 0) == 0
