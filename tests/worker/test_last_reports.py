"""A worker that stops, and reports that its server refused before."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import structlog

from jobrunner import Client, job
from jobrunner.outcome import Released
from jobrunner.worker.drain import Shutdown
from jobrunner.worker.fetch import waiting_reports
from jobrunner.worker.worker import Worker
from tests.support.waiting import wait_for
from tests.worker.conftest import Start


@pytest.fixture
def takes_writes(raw: redis.Redis) -> Iterator[Callable[[bool], Any]]:
    """takes_writes(False): the server refuses every write until takes_writes(True)."""
    yield lambda takes: raw.config_set("min-replicas-to-write", 0 if takes else 1)
    raw.config_set("min-replicas-to-write", 0)


def test_a_worker_that_stops_without_grace_reports_what_ended_while_no_writes_were_taken(
    current: Client, start: Start, takes_writes: Callable[[bool], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended within the pause before the next try, so its tasks ran again, or were dead after their only attempt."""
    for pause in ("_SHORTEST_AWAY_S", "_LONGEST_AWAY_S"):
        monkeypatch.setattr(waiting_reports, pause, 60.0)
    gate, ran = threading.Semaphore(0), []

    @job(name="last_report", queue="last", max_attempts=1)
    def last_report(x: int) -> None:
        gate.acquire()
        ran.append(x)

    last_report.enqueue_many([last_report.bind(x) for x in range(4)])
    queue = current.queue("last")
    worker: Worker = start(queues=["last"], concurrency=4)
    wait_for(lambda: queue.counts()["pending"] == 4)
    takes_writes(False)
    gate.release(4)
    waiting: Any = worker._parts.fetcher.reporting._refused._waiting  # type: ignore[union-attr]
    wait_for(lambda: sum(one.failures > 0 for one in [*waiting.values()]) == 4)
    takes_writes(True)
    worker.stop(grace=0)

    assert queue.totals() == {"enqueued": 4, "succeeded": 4}
    assert queue.counts()["pending"] == 0



def test_a_task_that_was_handed_back_is_reported_once(
    current: Client, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `executor="processes"` a stop kills the children, and their slots hand their tasks back a moment after the
    worker did: each stop with a long task logged "report came too late" and counted a stale report."""
    gate, before = threading.Event(), Shutdown._release_rest

    def release_before_slots_do(self: Shutdown) -> None:
        held = self._tasks.leases.attempts()
        before(self)
        self._tasks.finished.add_all(held, Released())

    @job(name="last_release", queue="last", max_attempts=1)
    def last_release() -> None:
        gate.wait(30)

    monkeypatch.setattr(Shutdown, "_release_rest", release_before_slots_do)
    last_release.enqueue()
    queue = current.queue("last")
    worker: Worker = start(queues=["last"], concurrency=1)
    wait_for(lambda: queue.counts()["pending"] == 1)
    with structlog.testing.capture_logs() as lines:
        worker.stop(grace=0)
    gate.set()

    assert queue.counts()["waiting"] == 1
    assert not [line for line in lines if line["log_level"] == "warning"]
