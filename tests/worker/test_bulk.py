"""Bulk work from the dashboard while workers run."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner import Client
from jobrunner.client.client import keys_of
from jobrunner.inspector.search_filter import Filter
from jobrunner.task import Task
from jobrunner.web import operations
from jobrunner.web.operations import Operations, ask_to_stop, read_operation
from tests.support.waiting import wait_for
from tests.worker.conftest import Start
from tests.worker.test_work import order, step


def fill(client: Client, count: int) -> None:
    payload = step.enqueue(name="x").record().payload
    client.queue("w").purge("waiting")
    client.enqueue_many(
        Task(id=f"x{n}", queue="w", type="work.step", payload=payload, max_attempts=1) for n in range(count)
    )


def make_dead(client: Client, count: int) -> None:
    fill(client, count)
    while held := client.queue("w").reserve(500):
        client.queue("w").rollback_many(held, error="broken")


def test_thousands_of_dead_are_requeued_once_while_a_worker_runs_them(
    start: Start, current: Client, audit: Callable[..., dict[str, int]]
) -> None:
    make_dead(current, 3000)
    assert current.queue("w").counts()["dead"] == 3000
    order.clear()
    start(queues=["w"], concurrency=4)

    operation = Operations(current).start("requeue", who="ann", wanted=Filter(queue="w", state="dead"))

    ended = wait_for(lambda: (found := read_operation(current, operation)) and found.is_over and found, timeout_s=60)
    assert (ended.state, ended.total, ended.looked, ended.done, ended.refused) == ("done", 3000, 3000, 3000, 0)
    wait_for(lambda: len(order) == 3000, timeout_s=60)
    wait_for(lambda: not any(current.queue("w").counts().values()))
    audit("w")
    assert current.queue("w").totals()["requeued"] == 3000


def test_an_operation_that_is_cancelled_ends_after_its_piece_and_says_so(
    current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dead(current, 1500)
    piece = operations.change

    def cancelled_meanwhile(*given: Any, **named: Any) -> int:
        assert ask_to_stop(current, operation)
        return piece(*given, **named)

    monkeypatch.setattr(operations, "change", cancelled_meanwhile)
    of_process = Operations(current)
    of_process._turns.acquire()
    of_process._turns.acquire()
    operation = of_process.start("requeue", who="ann", wanted=Filter(queue="w", state="dead"))
    of_process._turns.release()

    ended = wait_for(lambda: (found := read_operation(current, operation)) and found.is_over and found)
    assert ended.state == "cancelled"
    assert 0 < ended.done <= 500
    assert not ask_to_stop(current, operation)


def test_an_operation_that_is_cancelled_before_its_turn_changes_nothing(current: Client) -> None:
    make_dead(current, 100)
    of_process = Operations(current)
    of_process._turns.acquire()
    of_process._turns.acquire()  # nothing begins before it is cancelled
    operation = of_process.start("delete", who="ann", wanted=Filter(queue="w", state="dead"))
    assert read_operation(current, operation).state == "queued"  # type: ignore[union-attr]
    assert ask_to_stop(current, operation)
    of_process._turns.release()

    ended = wait_for(lambda: (found := read_operation(current, operation)) and found.is_over and found)
    assert (ended.state, ended.done, ended.looked) == ("cancelled", 0, 0)
    assert current.queue("w").counts()["dead"] == 100


def test_an_operation_whose_process_died_is_shown_as_interrupted(current: Client, raw: Any) -> None:
    of_process = Operations(current)
    operation = of_process.start("requeue", who="ann", wanted=Filter(queue="w"))
    wait_for(lambda: read_operation(current, operation).is_over)  # type: ignore[union-attr]
    for state in ("running", "queued"):
        raw.hset(keys_of(current).operation(operation), mapping={"state": state, "beat_ms": 1})
        assert read_operation(current, operation).state == "interrupted"  # type: ignore[union-attr]
    assert 0 < raw.pttl(keys_of(current).operation(operation)) <= 86_400_000


def test_an_operation_that_waits_for_its_turn_gives_signs_of_life_and_can_be_cancelled(
    current: Client, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobrunner.web.operations._BEAT_S", 0.01)
    of_process = Operations(current)
    of_process._turns.acquire()
    of_process._turns.acquire()
    operation = of_process.start("requeue", who="ann", wanted=Filter(queue="w", state="dead"))
    raw.hset(keys_of(current).operation(operation), "beat_ms", 1)

    wait_for(lambda: read_operation(current, operation).state == "queued")  # type: ignore[union-attr]
    assert ask_to_stop(current, operation)

    wait_for(lambda: read_operation(current, operation).state == "cancelled")  # type: ignore[union-attr]
    assert not ask_to_stop(current, operation)
