"""The faults of the reliability promise at a size that takes its time: pytest -m slow tests/acceptance/test_chaos.py"""
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.client.current import use
from tests.acceptance.fleet import Fleet
from tests.acceptance.jobs_for_tests import Always, Crash, HoldLong, Twice, Work
from tests.acceptance.ledger import Ledger
from tests.conftest import Cable, Server, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Audit = Callable[..., dict[str, int]]
TASKS = 8000
SLOTS = 8


def enqueue(count: int = TASKS, seconds: float = 0.0) -> set[str]:
    return {task.id for task in Work.enqueue_many([Work(n=n, seconds=seconds) for n in range(count)])}


def wait_done(client: Client, ledger: Ledger, count: int, timeout_s: float = 120) -> None:
    wait_for(lambda: not any(client.queue("t").counts()[state] for state in ("waiting", "scheduled", "pending")),
             timeout_s=timeout_s)  # fmt: skip
    assert client.queue("t").totals()["succeeded"] == count


def assert_each_attempt_once(ledger: Ledger) -> list[tuple[str, int]]:
    starts = [(entry.task, entry.attempt) for entry in ledger.entries("start")]
    doubled = [pair for pair, times in Counter(starts).items() if times > 1]
    assert not doubled, f"{len(doubled)} attempts were delivered twice: {doubled[:3]}"
    return starts


def test_rolling_restarts_double_nothing(fleet: Fleet, ledger: Ledger, current: Client, audit: Audit) -> None:
    """R3: short tasks, fetched ahead by the hundred; ten restarts of each of two workers."""
    workers = fleet.start(2, concurrency=SLOTS, grace=10)
    ids = enqueue()
    for restart in range(20):
        ended = len(ledger.times("end"))
        wait_for(lambda ended=ended: len(ledger.times("end")) >= min(ended + 150, TASKS))
        leaver = workers.pop(0) if restart < 2 else workers.pop(0).wait_ready()
        workers.append(fleet.launch(concurrency=SLOTS, grace=10))
        leaver.stop()
        asked_at = time.monotonic()
        assert leaver.summary()["released"] == 0, restart
        assert time.monotonic() - asked_at < 12
    wait_done(current, ledger, TASKS)
    assert ledger.times("start") == dict.fromkeys(ids, 1)
    assert {entry.attempt for entry in ledger.entries("start")} == {1}
    assert not any(audit("t").values())


def test_kills_lose_nothing(fleet: Fleet, ledger: Ledger, current: Client, audit: Audit) -> None:
    """R1: twenty kills."""
    workers = fleet.start(4, concurrency=SLOTS)
    ids = enqueue(seconds=0.01)
    for _ in range(20):
        ended = len(ledger.times("end"))
        wait_for(lambda ended=ended: len(ledger.times("end")) >= min(ended + 100, TASKS), timeout_s=30)
        workers.pop(0).kill()
        workers.append(fleet.launch(concurrency=SLOTS))
    wait_done(current, ledger, TASKS)
    starts = assert_each_attempt_once(ledger)
    assert set(ledger.times("end")) == ids
    assert len(starts) - TASKS <= 20 * (SLOTS + 40)
    assert not any(audit("t").values())


def test_scripts_that_are_forgotten_are_sent_again(
    fleet: Fleet, ledger: Ledger, current: Client, raw: redis.Redis, audit: Audit
) -> None:
    """R17: SCRIPT FLUSH ten times a second."""
    fleet.start(2, concurrency=SLOTS)
    stop = threading.Event()

    def forget() -> None:
        while not stop.wait(0.1):
            raw.script_flush()

    thread = threading.Thread(target=forget)
    thread.start()
    ids = enqueue()
    wait_done(current, ledger, TASKS)
    stop.set()
    thread.join()
    assert ledger.times("start") == dict.fromkeys(ids, 1)
    assert not any(audit("t").values())


def test_connections_that_break_all_the_time_lose_and_double_nothing(
    fleet: Fleet, ledger: Ledger, cable: Cable, keys: Keys, server: Server, audit: Audit
) -> None:
    """R9: a reset twice a second for ten seconds, for the producer too."""
    fleet.start(2, url=cable.url, concurrency=SLOTS)
    stop = threading.Event()

    def cut() -> None:
        while not stop.wait(0.5):
            cable.drop()

    thread = threading.Thread(target=cut)
    sent: set[str] = set()
    with Client(cable.url, keys.prefix, patience=20) as producer:
        use(producer)
        thread.start()
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            sent |= enqueue(20)
    stop.set()
    thread.join()
    with Client(server.url, keys.prefix) as client:
        wait_for(lambda: not any(client.queue("t").counts().values()), timeout_s=60)
        assert client.queue("t").totals()["enqueued"] == len(sent)
    assert_each_attempt_once(ledger)
    assert set(ledger.times("end")) == sent
    assert not any(audit("t").values())


def test_a_server_that_stands_still_for_a_while_costs_nothing(
    start_server: Callable[..., Server], tmp_path: object
) -> None:
    """R12: SIGSTOP of the server for three seconds, twice; every lease is longer than that."""
    server = start_server()
    with Client(server.url, "still", patience=30) as client:
        use(client)
        started = Fleet(server.url, "still", tmp_path)  # type: ignore[arg-type]
        try:
            started.start(2, concurrency=4)
            go = tmp_path / "go"  # type: ignore[operator]
            tasks = HoldLong.enqueue_many([HoldLong(path=str(go)) for _ in range(8)])
            wait_for(lambda: len(started.ledger.times("start")) == 8)
            for _ in range(2):
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(3)
                os.kill(server.pid, signal.SIGCONT)
                time.sleep(3)
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


def test_an_idle_worker_sends_less_than_a_command_a_second(fleet: Fleet, server: Server, keys: Keys) -> None:
    """MOAB-17, MDQ-25: with all its loops, as leader, on default settings."""
    module = fleet.module("calm_jobs", "from jobrunner import job\n@job(queue='t')\ndef calm(): ...\n")
    worker = fleet.start_one(modules=[module])
    with server.connect() as connection:
        wait_for(lambda: connection.exists(keys.leader))
        before = connection.info("commandstats")
        time.sleep(20)
        after = connection.info("commandstats")
    # Commands inside scripts are counted too, but these are sent by nobody but workers themselves.
    sent = [f"cmdstat_{name}" for name in ("evalsha", "bzpopmin", "smembers", "hgetall", "sadd", "hrandfield")]
    calls = sum(after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in sent if name in after)
    assert calls <= 20
    assert worker.log.read_text().count("\n") == 1
