"""Flows on worker processes that are killed: every callback comes once, whatever died between which two steps."""
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from jobrunner import Client, chain, group
from jobrunner.broker.keys import Keys
from jobrunner.jobs.registry import forget
from tests.acceptance.fleet import Fleet
from tests.acceptance.ledger import Ledger
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

JOBS = """
from jobrunner import Backoff, Job, job
from tests.acceptance.ledger import record

options = {"keepalive": 2, "backoff": Backoff(base=0.01, factor=1, jitter=0)}

@job(queue="t", name="FlowStep", **options)
class FlowStep(Job):
    n: int = 0

    def run(self) -> int:
        record("step", self.task.id, self.task.attempt)
        return self.n + sum(self.task.results)

@job(queue="u", name="FlowNote", **options)
class FlowNote(Job):
    name: str

    def run(self) -> list:
        record("note", self.name, self.task.attempt, len(self.task.results))
        return list(self.task.results)
"""
KILLER = """
import os, signal
import flow_jobs
import jobrunner.worker.fetch.reporting

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

jobrunner.worker.fetch.reporting.relay = die
"""


@pytest.fixture
def jobs(fleet: Fleet, tmp_path: Path) -> Iterator[Any]:
    """The module with the jobs, in this process and for workers."""
    fleet.module("flow_jobs", JOBS)
    fleet.module("flow_killer", KILLER)
    sys.path.insert(0, str(tmp_path))
    import flow_jobs  # type: ignore[import-not-found]

    yield flow_jobs
    sys.path.remove(str(tmp_path))
    del sys.modules["flow_jobs"]
    forget("FlowStep")
    forget("FlowNote")


def test_a_worker_killed_between_a_report_and_its_relay_holds_up_no_flow(
    jobs: Any, fleet: Fleet, ledger: Ledger, current: Client, keys: Keys, raw: redis.Redis, audit: Callable[..., Any]
) -> None:
    """Each worker dies of the first relay it begins, so each makes one report; the leader's scan does the rest."""
    killer: dict[str, Any] = {"modules": ["flow_killer"], "queues": ["t", "u"], "leader_ttl": 1}
    first = fleet.start_one(**killer)
    flow = chain(
        group(jobs.FlowStep(n=1), jobs.FlowStep(n=2), on_complete=jobs.FlowNote(name="done")), jobs.FlowStep(n=3)
    ).enqueue()
    assert first.wait() == -9
    assert raw.hlen(keys.outbox("t")) > 0, "it was killed before the relay"
    assert current.queue("t").totals()["succeeded"] > 0, "and after the report"
    assert flow.progress().succeeded == 0

    fleet.start_one(modules=["flow_jobs"], queues=["t", "u"], leader_ttl=1, sweep=0.5)
    assert flow.result(timeout=30) == 6
    wait_for(lambda: ledger.times("note")["done"] == 1)
    wait_for(lambda: not raw.exists(keys.outbox("t"), keys.outbox("u")))
    assert current.queue("t").totals()["enqueued"] == 3
    assert current.queue("u").totals()["enqueued"] == 1
    assert not any(audit("t").values())
    assert not any(audit("u").values())


@pytest.mark.parametrize("seconds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_callbacks_come_once_while_workers_are_killed_all_the_time(
    jobs: Any, fleet: Fleet, ledger: Ledger, current: Client, keys: Keys, raw: redis.Redis, audit: Callable[..., Any],
    seconds: int,
) -> None:  # fmt: skip
    """Three workers, one of them killed every quarter of a second."""
    common: dict[str, Any] = {"modules": ["flow_jobs"], "queues": ["t", "u"], "leader_ttl": 1, "sweep": 0.5}
    alive = fleet.start(3, **common)
    flows = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for _ in range(5):
            number = len(flows)
            members = [chain(jobs.FlowStep(n=n), jobs.FlowStep(n=1)) for n in range(4)]
            flows.append(
                group(
                    *members,
                    on_success=jobs.FlowNote(name=f"good{number}"),
                    on_complete=jobs.FlowNote(name=f"all{number}"),
                ).enqueue()
            )
        victim = alive.pop(random.randrange(len(alive)))
        victim.kill()
        alive.append(fleet.launch(**common))
        time.sleep(0.25)  # the load between two kills
    for flow in flows:
        assert flow.result(timeout=60) == [1, 2, 3, 4]
    queue = current.queue("u")
    wait_for(lambda: queue.totals().get("succeeded", 0) == 2 * len(flows), timeout_s=60)
    assert queue.totals()["enqueued"] == 2 * len(flows), "no callback was enqueued twice"
    assert set(ledger.times("note")) == {f"{kind}{n}" for kind in ("good", "all") for n in range(len(flows))}
    assert current.queue("t").totals()["enqueued"] == 8 * len(flows)
    wait_for(lambda: not raw.exists(keys.outbox("t"), keys.outbox("u")))
    assert not any(audit("t").values())
    assert not any(audit("u").values())


def test_results_reach_jobs_that_run_in_processes(jobs: Any, fleet: Fleet) -> None:
    fleet.start_one(modules=["flow_jobs"], queues=["t", "u"], executor="processes", concurrency=1)
    flow = chain(group(jobs.FlowStep(n=1), jobs.FlowStep(n=2)), jobs.FlowStep(n=3), jobs.FlowNote(name="x")).enqueue()
    assert flow.result(timeout=30) == [6]
