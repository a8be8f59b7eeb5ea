"""The heartbeat of a worker lists its running tasks, and a worker carries out commands that are sent to it."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import structlog.testing

from jobrunner import Client, Worker
from jobrunner.attempt import Attempt
from jobrunner.broker.calls import events
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.worker import heartbeat
from tests.support.waiting import wait_for
from tests.worker.conftest import Start
from tests.worker.test_work import gated, gates


@pytest.fixture(autouse=True)
def _open_gates() -> Iterator[None]:
    yield
    for gate in gates.values():
        gate.set()
    gates.clear()


def order(client: Client, worker: Any, name: str, value: str) -> None:
    broker_of(client).run_many(leader_calls.order(keys_of(client), worker.id, name, value, ttl_ms=60_000))


def test_a_worker_says_what_it_runs_and_how_much_memory_it_takes(start: Start, current: Client) -> None:
    start(queues=["w"], heartbeat=0.05)
    task = gated.enqueue(name="long")

    (record,) = wait_for(lambda: [one for one in current.workers() if one.running])

    (attempt,) = record.running
    assert (attempt.queue, attempt.id, attempt.type, attempt.attempt) == ("w", task.id, "work.gated", 1)
    assert abs(attempt.began.timestamp() - task.record().enqueue_time.timestamp()) < 10
    assert record.memory > 2**20
    assert (record.executing, record.fetched, attempt.lease != "") == (1, 0, True)
    assert record.at is not None


def test_a_worker_whose_clock_is_wrong_says_so_and_reports_times_of_the_server(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had started "in 59 min", as had its tasks, and its release came after the failures that it caused."""
    ahead_ms = [3_600_000]
    monkeypatch.setattr(heartbeat, "unix_ms", lambda: unix_ms() + ahead_ms[0])
    with structlog.testing.capture_logs() as logs:
        start(queues=["w"], heartbeat=0.05, release="1.4.2")
        gated.enqueue(name="long")
        (record,) = wait_for(lambda: [one for one in current.workers() if one.running])
        since = broker_of(current).run(events.releases(keys_of(current), since_ms=0))
        ahead_ms[0] = 0
        wait_for(lambda: [one for one in logs if "that of the server again" in one["event"]])
        corrected = unix_ms()
        (later,) = wait_for(lambda: [one for one in current.workers() if one.at.timestamp() * 1000 > corrected])

    now_s = unix_ms() / 1000
    for instant in (record.started, record.at, record.running[0].began, later.started):
        assert instant is not None
        assert abs(instant.timestamp() - now_s) < 60
    assert abs(since["1.4.2"] / 1000 - now_s) < 60
    (warned,) = [one for one in logs if "is not that of the server" in one["event"]]
    assert warned["clock"] == "1 h ahead"


def test_a_worker_tells_what_runs_from_what_it_has_fetched(start: Start, current: Client) -> None:
    worker = start(queues=["w"], heartbeat=0.05, concurrency=2)
    first, second = gated.enqueue(name="first"), gated.enqueue(name="second")
    wait_for(lambda: "first" in gates and "second" in gates)
    attempts = [
        Attempt(
            queue="w", id=f"more-{n}", token=f"{n}", deadline_ms=0, keepalive_ms=60_000, type="", payload=b"", number=1,
            retry_count=0, enqueue_time_ms=0, max_attempts=1, headers=None,
        )
        for n in range(1, 4)
    ]  # fmt: skip
    leases = worker._parts.tasks.leases
    leases.hold(attempts, 0.0)
    try:
        record = wait_for(lambda: next((one for one in current.workers() if one.fetched == 3), None))
    finally:
        leases.drop(attempts)

    assert (record.executing, record.slots) == (2, 2)
    assert {one.id for one in record.running} == {first.id, second.id}


def test_a_quiet_worker_ends_what_it_runs_and_takes_nothing_until_it_may(start: Start, current: Client) -> None:
    worker = start(queues=["w"], heartbeat=0.05)
    first = gated.enqueue(name="first")
    wait_for(lambda: "first" in gates)
    order(current, worker, "quiet", "1")
    wait_for(lambda: [one for one in current.workers() if one.quiet])

    second = gated.enqueue(name="second")
    gates["first"].set()
    wait_for(lambda: first.record().state == "succeeded")
    seen = wait_for(current.workers)[0].finished
    wait_for(lambda: wait_for(current.workers)[0].finished >= max(seen, 1))
    assert second.state == "waiting"

    order(current, worker, "quiet", "0")
    wait_for(lambda: "second" in gates)


def test_a_worker_that_stops_as_it_is_told_to_go_on_takes_nothing(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start(queues=["w"], heartbeat=0.05)
    running = gated.enqueue(name="running")
    wait_for(lambda: "running" in gates)
    order(current, worker, "quiet", "1")
    wait_for(lambda: [one for one in current.workers() if one.quiet])
    stopping = threading.Thread(target=worker.stop)

    def stop_meanwhile(event: str, **_: Any) -> None:
        if event == "worker resumed":
            stopping.start()
            wait_for(lambda: worker._state.is_stopping)

    monkeypatch.setattr("jobrunner.worker.heartbeat._log.info", stop_meanwhile)
    order(current, worker, "quiet", "0")
    wait_for(lambda: worker._state.is_stopping)

    left = [gated.enqueue(name=f"left{number}") for number in range(3)]
    gates["running"].set()
    stopping.join(30)
    assert running.state == "succeeded"
    assert [task.record().state for task in left] == ["waiting"] * 3
    assert set(gates) == {"running"}


def test_a_worker_that_is_told_to_stop_stops(start: Start, current: Client) -> None:
    worker = start(queues=["w"], heartbeat=0.05)

    order(current, worker, "stop", "1")

    wait_for(lambda: worker._state.is_stopping)
    wait_for(lambda: wait_for(current.workers)[0].stopping)


@pytest.mark.parametrize("how", ["dashboard", "max_memory"])
def test_the_first_signal_to_a_worker_that_stops_already_leaves_running_tasks_their_grace(
    current: Client, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    worker = Worker(client=current, queues=["w"], heartbeat=0.05, max_memory=10**13)
    running = gated.enqueue(name="running")
    summaries: list[Any] = []
    working = threading.Thread(target=lambda: summaries.append(worker.run()))
    working.start()
    try:
        wait_for(lambda: "running" in gates)
        if how == "dashboard":
            order(current, worker, "stop", "1")
        else:
            monkeypatch.setattr("jobrunner.worker.recycling.resident_bytes", lambda: 10**14)
        wait_for(lambda: worker._state.is_stopping)

        worker.ask_to_stop()
        assert not worker._state.must_stop_now
    finally:
        gates["running"].set()
        working.join(30)
    assert running.state == "succeeded"
    assert [one.released for one in summaries] == [0]

    worker.ask_to_stop()
    assert worker._state.must_stop_now


@pytest.mark.parametrize(("by_ctrl_c", "more"), [(True, "once more"), (False, "twice")])
def test_the_log_says_how_often_to_ask_for_a_stop_at_once(
    current: Client, monkeypatch: pytest.MonkeyPatch, by_ctrl_c: bool, more: str
) -> None:
    worker = Worker(client=current, queues=["w"], heartbeat=0.05)
    gated.enqueue(name="running")

    def work(_: object) -> None:
        wait_for(lambda: "running" in gates)
        if by_ctrl_c:
            raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_work", work)
    with structlog.testing.capture_logs() as lines, ExitStack() as ending:
        monkeypatch.setattr(worker._state, "wait", lambda _: gates["running"].set())
        if by_ctrl_c:
            ending.enter_context(pytest.raises(KeyboardInterrupt))
        worker.run()
    (stopping,) = (line for line in lines if line["event"] == "worker stopping")
    assert f"asked {more}, it" in stopping["hint"]


def test_a_worker_says_which_jobs_it_knows_unless_they_are_too_many(
    start: Start, current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(queues=["w"], heartbeat=0.05)
    (record,) = wait_for(current.workers)
    assert "work.gated" in (record.types or ())

    monkeypatch.setattr("jobrunner.worker.heartbeat._LONGEST_NAMES", 5)
    wait_for(lambda: [one for one in current.workers() if one.types is None])
