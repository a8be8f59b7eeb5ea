"""A worker with a closed gate takes nothing, says why, and goes on by itself."""

import threading

import pytest

from jobrunner import job
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.records import command_worker
from jobrunner.errors import InvalidOption
from jobrunner.worker import gates
from tests.support.waiting import wait_for


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(gates, "_EVERY_S", 0.01)


@pytest.fixture
def nothing():
    @job(queue="gated", name="gated_nothing")
    def nothing() -> int:
        return 1

    return nothing


def test_a_closed_gate_keeps_the_worker_from_tasks_until_it_opens(current, start, often, nothing):
    reason, asked = ["the database is away"], []

    def gate():
        asked.append(1)
        return reason[0]

    task = nothing.enqueue()
    worker = start(queues=["gated"], gates=[gate], heartbeat=0.2)
    wait_for(lambda: "the database is away" in wait_for(current.workers)[0].gate)
    seen = len(asked)
    wait_for(lambda: len(asked) > seen + 3)
    assert (current.queue("gated").counts()["waiting"], worker.in_hand) == (1, 0)

    reason[0] = None
    assert task.result(timeout=30) == 1
    wait_for(lambda: wait_for(current.workers)[0].gate == "")
    reason[0] = "again"
    wait_for(lambda: wait_for(current.workers)[0].gate.endswith("again") and worker._parts.fetcher.resting)
    task, seen = nothing.enqueue(), len(asked)
    wait_for(lambda: len(asked) > seen + 3)
    assert task.state == "waiting"


def test_an_open_gate_does_not_end_a_command_to_be_quiet(current, start, often, nothing):
    reason, asked = ["closed"], []
    worker = start(queues=["gated"], gates=[lambda: asked.append(1) or reason[0]], heartbeat=0.2)
    wait_for(lambda: wait_for(current.workers)[0].gate)
    state, fetcher = worker._state, worker._parts.fetcher
    run_operation(broker_of(current), command_worker(keys_of(current), worker.id, "quiet"))
    wait_for(lambda: state.is_quiet)
    reason[0] = ""
    wait_for(lambda: not state.gate)
    seen = len(asked)
    wait_for(lambda: len(asked) > seen + 1)  # it has acted on the open gate before it asks again
    assert fetcher.resting
    run_operation(broker_of(current), command_worker(keys_of(current), worker.id, "resume"))
    wait_for(lambda: not fetcher.resting)
    assert nothing.enqueue().result(timeout=30) == 1


@pytest.mark.parametrize("wrong", [["memory=90"], "memory=90%", ["no_module:x"], [5]])
def test_a_wrong_gate_ends_the_start(start, wrong):
    with pytest.raises(InvalidOption, match="gate"):
        start(queues=["gated"], gates=wrong)


def test_a_wrong_gate_leaves_no_threads(start):
    """Those of the executor waited for ever, as many for each try as tasks run at once."""
    threads = set(threading.enumerate())
    with pytest.raises(InvalidOption):
        start(queues=["gated"], gates=["bogus"])
    wait_for(lambda: set(threading.enumerate()) <= threads)


def test_the_list_of_workers_says_it(current, start, often, cli):
    start(queues=["gated"], gates=[lambda: "it rains"])
    assert "gate closed (" in cli("workers", "list").out
    assert "it rains" in cli("workers", "list").out
