"""Rolling deploys, and services that share a queue: a worker defers tasks of jobs that it does not know."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner import Client, job
from jobrunner.broker.keys import Keys
from jobrunner.errors import TaskTimeout
from jobrunner.task import Task, new_id
from tests.support.waiting import wait_for
from tests.worker.conftest import Start

Audit = Callable[..., dict[str, int]]


@job(name="unknown.known", queue="uk")
def known() -> str:
    return "known"


def of_another_service(client: Client, **fields: Any) -> Any:
    made: dict[str, Any] = {"id": new_id("uk"), "queue": "uk", "type": "Nope", "payload": b"{}", "max_attempts": 1}
    return client.enqueue(Task(**made | fields))


def test_it_goes_back_without_an_attempt_and_keeps_nobody_waiting(
    start: Start, current: Client, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    tasks = [of_another_service(current) for _ in range(300)]
    worker = start(queues=["uk"], concurrency=4)
    for _ in range(10):
        known.enqueue().result(timeout=60)
    wait_for(lambda: current.queue("uk").counts()["scheduled"] == 300, timeout_s=60)
    assert not current.queue("uk").counts()["dead"]
    before = raw.info("commandstats")["cmdstat_evalsha"]["calls"]
    time.sleep(2)  # the span in which calls are counted
    assert raw.info("commandstats")["cmdstat_evalsha"]["calls"] - before < 500, "it does not spin"
    assert current.queue("uk").totals().get("failed", 0) == 0
    worker.stop()  # what it holds has an attempt
    assert {task.attempts for task in tasks} == {0}
    since = [raw.hget(keys.queue("uk").task(task.id), "unknown_since") for task in tasks]
    assert all(since)
    with pytest.raises(TaskTimeout, match=r"workers of queue 'uk' hand it back, as they do not know its job 'Nope' or"):
        tasks[0].result(timeout=0)


def scheduled(task: Any) -> Any:
    """The record of a task that is tried again later; by the time of another look it may have been."""
    return wait_for(lambda: str((found := task.record()).state) == "scheduled" and found, timeout_s=60)


def test_when_its_time_is_over_it_fails_as_usual(start: Start, current: Client) -> None:
    start(queues=["uk"], unknown_grace=1.5)
    task = of_another_service(current)
    assert scheduled(task).attempts == 0
    wait_for(lambda: str(task.record().state) == "dead", timeout_s=60)
    assert (task.error or "").startswith("UnknownJob: this worker knows no job 'Nope'")
    current.queue("uk").requeue_dead([task.id])
    assert scheduled(task).attempts == 0, "requeued, it has its time again"


def test_a_time_to_start_by_holds_on(start: Start, current: Client) -> None:
    start(queues=["uk"], unknown_grace=60)
    task = of_another_service(current, expires_in_ms=1500)
    wait_for(lambda: str(task.record().state) == "dead", timeout_s=60)
    assert "expired" in (task.error or "")


def test_draining_ends_all_the_same(run: Any, current: Client) -> None:
    of_another_service(current)
    run(queues=["uk"], drain=True)
    assert current.queue("uk").counts()["dead"] == 1


def test_types_that_no_worker_knows_are_measured_as_one(
    run: Any, current: Client, raw: redis.Redis, keys: Keys
) -> None:
    """A producer may give each task another type, and figures stay."""
    for number in range(20):
        of_another_service(current, type=f"made-up-{number}")
    known.enqueue()
    run(queues=["uk"], drain=True)

    measured = {field.split()[1] for field in raw.hkeys(keys.stats_total) if field.startswith(b"uk ")}
    assert measured == {b"unknown", known.definition.name.encode()}
    assert raw.hget(keys.stats_total, "uk unknown dead") == b"20"
