"""An idle worker that is suspended has reserved ahead: how many tasks wait for the end of their leases."""

import signal
from collections.abc import Callable

import pytest

from jobrunner import Client
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Work
from tests.acceptance.ledger import Ledger

pytestmark = pytest.mark.processes


def test_two_tasks_of_its_queue_at_most_wait_for_an_idle_worker_that_stands_still(
    fleet: Fleet, ledger: Ledger, current: Client, audit: Callable[..., dict[str, int]]
) -> None:
    idle = fleet.start_one(concurrency=4)
    first = Work().enqueue()
    first.result(timeout=20)
    idle.send(signal.SIGSTOP)
    tasks = [Work(n=n).enqueue() for n in range(6)]
    fleet.start_one(concurrency=2)

    assert [task.result(timeout=20) for task in tasks] == list(range(6))
    attempts = {entry.task: entry.attempt for entry in ledger.entries("end")}
    # What the suspended worker held starts a second time; the other one did the rest at their first.
    assert sorted(attempts[task.id] for task in tasks) in ([1] * 6, [1] * 5 + [2], [1] * 4 + [2] * 2)
    idle.send(signal.SIGCONT)
    idle.stop()
    assert not any(audit("t").values())


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_an_idle_worker_that_ends_takes_no_task_along(
    fleet: Fleet, ledger: Ledger, current: Client, end: signal.Signals
) -> None:
    idle, other = fleet.start(2, concurrency=2)
    Work().enqueue().result(timeout=20)
    idle.kill() if end == signal.SIGKILL else idle.stop()  # a process that dies has connections until it is dead
    tasks = [Work(n=n).enqueue() for n in range(6)]

    assert [task.result(timeout=20) for task in tasks] == list(range(6))
    assert {entry.attempt for entry in ledger.entries("end")} == {1}
    assert other.alive
