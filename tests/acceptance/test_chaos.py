"""The faults of the reliability promise at a size that takes its time: pytest -m slow tests/acceptance/test_chaos.py"""
import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.client.current import use
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Always, Crash, HoldLong, Twice, Work
from tests.acceptance.ledger import Ledger
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Audit = Callable[..., dict[str, int]]


def enqueue(count: int) -> set[str]:
    return {task.id for task in Work.enqueue_many([Work(n=n) for n in range(count)])}


def test_a_server_that_stands_still_for_a_while_costs_nothing(
    start_server: Callable[..., Server], tmp_path: object
) -> None:
    """R12: SIGSTOP of the server for three seconds, twice; every lease is longer than that."""
    server = start_server()
    with Client(server.url, "still", retry_timeout=30) as client:
        use(client)
        started = Fleet(server.url, "still", tmp_path)  # type: ignore[arg-type]
        try:
            started.start(2, concurrency=4)
            go = tmp_path / "go"  # type: ignore[operator]
            tasks = HoldLong.enqueue_many([HoldLong(path=str(go)) for _ in range(8)])
            wait_for(lambda: len(started.ledger.times("start")) == 8)
            for _ in range(2):
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(3)  # the fault: a server that is frozen for less than a lease
                os.kill(server.pid, signal.SIGCONT)
                time.sleep(3)  # leases are renewed again before the second fault
            go.touch()
            for task in tasks:
                task.result(timeout=20)
            assert set(started.ledger.times("start").values()) == {1}
        finally:
            started.close()


def test_poison_among_good_tasks(fleet: Fleet, ledger: Ledger, current: Client, audit: Audit) -> None:
    """R18: crashes of children, failures, and good tasks, in one queue."""
    fleet.start(2, executor="processes", concurrency=2)
    good = enqueue(600)
    poison = [Crash(how=random.choice(["exit", "segfault"])).enqueue() for _ in range(10)]
    failing = [Always().enqueue() for _ in range(20)]
    flaky = [Twice().enqueue() for _ in range(20)]
    wait_for(lambda: current.queue("t").totals().get("succeeded") == 620, timeout_s=120)
    at_rest = {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 30, "done": 0}
    wait_for(lambda: current.queue("t").counts() == at_rest, timeout_s=30)
    assert audit("t") == at_rest
    starts = ledger.times("start")
    assert all(starts[task_id] == 1 for task_id in good)
    assert all(starts[task.id] == 2 for task in poison)
    assert all(starts[task.id] == 3 for task in [*failing, *flaky])


def test_an_idle_worker_sends_few_commands(fleet: Fleet, server: Server, keys: Keys) -> None:
    """MOAB-17, MDQ-25: with all its loops, as leader, on default settings."""
    module = fleet.module("calm_jobs", "from jobrunner import job\n@job(queue='t')\ndef calm(): ...\n")
    worker = fleet.start_one(modules=[module])
    with server.connect() as connection:
        wait_for(lambda: connection.exists(keys.leader))
        before = connection.info("commandstats")
        time.sleep(20)  # the span that is measured
        after = connection.info("commandstats")
    # The server also counts commands inside scripts, but no script calls these.
    sent = [f"cmdstat_{name}" for name in ("evalsha", "bzpopmin", "sscan")]
    calls = sum(after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in sent if name in after)
    assert calls <= 60  # 28 are usual, as docs/performance.md explains, and some 20 more in the first seconds
    assert worker.log.read_text().count("\n") == 2, "jobs loaded, worker started"
