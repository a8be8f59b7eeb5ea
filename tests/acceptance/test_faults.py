"""Worker processes that are killed, stopped, suspended and starved, and servers that go away: nothing is lost."""
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from jobrunner import Client
from jobrunner.broker.keys import Keys
from jobrunner.client.current import use
from jobrunner.soak.fault_proxy import FaultProxy
from tests.acceptance.fleet import Fleet, wait_ended
from tests.acceptance.jobs_for_tests import (
    BlockLoop,
    Crash,
    Early,
    Hold,
    HoldFirst,
    HoldInterpreter,
    HoldLong,
    Linger,
    UntilCancelled,
    Work,
    nap,
)
from tests.acceptance.ledger import Ledger
from tests.support.server import Server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

Audit = Callable[..., dict[str, int]]
KEEPALIVE_S = 2.0
SLACK_S = 10.0
"""Seconds that a busy machine may add to a span of time before the test fails."""


def test_a_killed_worker_loses_none_of_fifty_running_tasks(fleet: Fleet, ledger: Ledger, audit: Audit) -> None:
    """MOAB-31, MOAB-33, KEU-09: all run again when their leases are over, and each is reported once."""
    victim = fleet.start_one(concurrency=50)
    tasks = Work.enqueue_many([Work(n=n, seconds=60) for n in range(50)])
    wait_for(lambda: len(ledger.times("start")) == 50)
    heir = fleet.start_one(concurrency=50)
    victim.kill()
    killed_at = time.monotonic()
    wait_for(lambda: all(ledger.times("start")[task.id] == 2 for task in tasks))
    second = [entry for entry in ledger.entries("start") if entry.pid == heir.pid]
    assert max(entry.at for entry in second) - killed_at < KEEPALIVE_S + SLACK_S
    assert {entry.attempt for entry in second} == {2}
    assert audit("t")["pending"] == 50


@pytest.mark.slow
def test_workers_killed_again_and_again_lose_nothing(
    fleet: Fleet, ledger: Ledger, current: Client, audit: Audit, raw: redis.Redis, keys: Keys
) -> None:
    """MOAB-04, MOAB-20, MOAB-33, MOSQ-02: five kills in the middle of 400 tasks."""
    workers = fleet.start(3, concurrency=5)
    tasks = Work.enqueue_many([Work(n=n, seconds=0.05) for n in range(400)])
    for _ in range(5):
        ended = len(ledger.times("end"))
        wait_for(lambda ended=ended: len(ledger.times("end")) >= ended + 40)
        workers.pop(0).kill()
        workers.append(fleet.launch(concurrency=5))
    wait_for(lambda: len(ledger.times("end")) == 400, timeout_s=30)
    wait_for(lambda: current.queue("t").counts()["pending"] == 0)
    assert set(ledger.times("end")) == {task.id for task in tasks}
    starts = [(entry.task, entry.attempt) for entry in ledger.entries("start")]
    assert len(starts) == len(set(starts)), "an attempt was delivered twice"
    assert len(starts) - 400 <= 5 * (5 + 5), "more than what ran and what had ended without being reported yet"
    totals = current.queue("t").totals()
    assert totals["succeeded"] == 400
    assert not any(audit("t").values())


def test_sigterm_lets_running_tasks_finish_and_doubles_nothing(
    fleet: Fleet, ledger: Ledger, current: Client, audit: Audit
) -> None:
    """MOAB-32, MOSQ-11: three restarts under load; no task starts twice, and none spends an attempt on them."""
    worker = fleet.start_one(concurrency=4, grace=10)
    tasks = Work.enqueue_many([Work(n=n, seconds=0.03) for n in range(200)])
    for _ in range(3):
        ended = len(ledger.times("end"))
        wait_for(lambda ended=ended: len(ledger.times("end")) >= ended + 20)
        successor = fleet.launch(concurrency=4, grace=10)
        worker.stop()
        assert worker.summary()["released"] == 0
        worker = successor.wait_ready()
    wait_for(lambda: current.queue("t").totals().get("succeeded") == 200, timeout_s=20)
    assert ledger.times("start") == {task.id: 1 for task in tasks}
    assert {entry.attempt for entry in ledger.entries("start")} == {1}
    assert not any(audit("t").values())


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_ctrl_c_reaches_every_process_and_running_tasks_finish(
    fleet: Fleet, ledger: Ledger, tmp_path: Path, executor: str
) -> None:
    """A terminal sends it to the lease keeper and to the children too; leases longer than the keepalive are kept."""
    worker = fleet.start_one(executor=executor, concurrency=2, grace=20)
    tasks = [Hold(path=str(tmp_path / "go")).enqueue() for _ in range(2)]
    wait_for(lambda: len(ledger.times("start")) == 2)
    os.killpg(worker.pid, signal.SIGINT)
    wait_for(lambda: "worker stopping" in worker.log.read_text())
    ends = [task.record().when for task in tasks]
    wait_for(lambda: all(task.record().when > end for task, end in zip(tasks, ends, strict=True)))
    (tmp_path / "go").touch()
    assert worker.summary() == {"finished": 2, "released": 0}
    assert ledger.times("end") == {task.id: 1 for task in tasks}


def test_what_does_not_finish_in_time_is_handed_back_without_an_attempt(
    fleet: Fleet, ledger: Ledger, tmp_path: Path, audit: Audit, raw: redis.Redis, keys: Keys
) -> None:
    """MOAB-32, MOSQ-11"""
    worker = fleet.start_one(concurrency=2, grace=0.3)
    tasks = [Hold(path=str(tmp_path / "go")).using(expires_in=600).enqueue() for _ in range(3)]
    wait_for(lambda: len(ledger.times("start")) == 2)
    worker.stop()
    asked_at = time.monotonic()
    assert worker.summary() == {"finished": 0, "released": 2}
    assert time.monotonic() - asked_at < 20, "the jobs go on for ever"
    assert audit("t") == {"waiting": 3, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}
    assert [task.record().retry_count for task in tasks] == [0, 0, 0]
    limits = {task.id: raw.hget(keys.queue("t").task(task.id), "expires_in_ms") for task in tasks}
    assert limits == {task.id: b"never" if task.id in ledger.times("start") else b"600000" for task in tasks}
    (tmp_path / "go").touch()
    fleet.start_one(burst=True).summary()
    assert {entry.attempt for entry in ledger.entries("end")} == {1}


def test_a_second_sigterm_means_now(fleet: Fleet, ledger: Ledger, tmp_path: Path, audit: Audit) -> None:
    worker = fleet.start_one(grace=60)
    Hold(path=str(tmp_path / "never")).enqueue()
    wait_for(lambda: len(ledger.times("start")) == 1)
    worker.stop()
    wait_for(lambda: "worker stopping" in worker.log.read_text())
    worker.stop()
    asked_at = time.monotonic()
    assert worker.summary() == {"finished": 0, "released": 1}
    assert time.monotonic() - asked_at < 30
    assert audit("t")["waiting"] == 1


def test_a_job_that_holds_the_interpreter_lock_keeps_its_lease(
    fleet: Fleet, ledger: Ledger, tmp_path: Path, raw: redis.Redis, keys: Keys
) -> None:
    """MOAB-27: for more than twice its lease no thread of the worker runs; other leases it holds are kept as well."""
    fleet.start_one(concurrency=2)
    neighbour = Hold(path=str(tmp_path / "go")).enqueue()
    wait_for(lambda: ledger.times("start")[neighbour.id] == 1)
    task = HoldInterpreter(seconds=2.5).enqueue()
    assert task.result(timeout=10) == "held"
    (tmp_path / "go").touch()
    neighbour.result(timeout=10)
    assert set(ledger.times("start").values()) == {1}
    assert task.attempts == 1
    assert b"recovered" not in raw.hgetall(keys.queue("t").counters)


def test_a_blocked_event_loop_keeps_its_leases(fleet: Fleet, ledger: Ledger, raw: redis.Redis, keys: Keys) -> None:
    """MOAB-27"""
    fleet.start_one(concurrency=4)
    tasks = [BlockLoop(seconds=0.7).enqueue() for _ in range(4)]
    assert [task.result(timeout=10) for task in tasks] == ["blocked"] * 4
    assert ledger.times("start") == {task.id: 1 for task in tasks}
    assert b"recovered" not in raw.hgetall(keys.queue("t").counters)


def test_the_late_report_of_a_suspended_worker_is_refused(
    fleet: Fleet, ledger: Ledger, tmp_path: Path, audit: Audit
) -> None:
    """MOAB-31, MOAB-25: SIGSTOP for longer than the lease; the result of the newer attempt stays."""
    sleeper = fleet.start_one(concurrency=1)
    task = HoldFirst(path=str(tmp_path / "go")).enqueue()
    wait_for(lambda: ledger.times("start")[task.id] == 1)
    sleeper.send(signal.SIGSTOP)
    heir = fleet.start_one(concurrency=1)
    assert task.result(timeout=10) == 2
    (tmp_path / "go").touch()
    sleeper.send(signal.SIGCONT)
    wait_for(lambda: ledger.times("end")[task.id] == 2)
    sleeper.stop()
    assert sleeper.summary()["finished"] == 1
    assert task.result(timeout=0) == 2
    assert [(entry.attempt, entry.pid) for entry in ledger.entries("end")] == [(2, heir.pid), (1, sleeper.pid)]
    assert not any(audit("t").values())


def test_a_killed_lease_keeper_is_replaced(fleet: Fleet, ledger: Ledger, tmp_path: Path) -> None:
    """MOAB-27: the leases that the worker held are kept on."""
    worker = fleet.start_one(concurrency=3)
    tasks = [HoldLong(path=str(tmp_path / "go")).enqueue() for _ in range(3)]
    wait_for(lambda: len(ledger.times("start")) == 3)
    (keeper,) = worker.children()
    os.kill(keeper, signal.SIGKILL)
    (successor,) = wait_for(lambda: [pid for pid in worker.children() if pid != keeper])
    assert successor != keeper
    first_ends = [task.record().when for task in tasks]
    wait_for(lambda: all(task.record().when > ends for task, ends in zip(tasks, first_ends, strict=True)))
    (tmp_path / "go").touch()
    for task in tasks:
        task.result(timeout=30)
    assert set(ledger.times("start").values()) == {1}


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_nothing_that_a_killed_worker_started_outlives_it(fleet: Fleet, ledger: Ledger, executor: str) -> None:
    """Not even a child whose job holds the interpreter lock, so that no thread of it could notice."""
    worker = fleet.start_one(executor=executor, concurrency=2)
    Hold(path="/nowhere").enqueue()
    wait_for(lambda: len(ledger.times("start")) == 1)
    HoldInterpreter(seconds=60).enqueue()
    wait_for(lambda: len(ledger.times("start")) == 2)
    started = worker.children()
    assert len(started) == (3 if executor == "processes" else 1)
    worker.kill()
    wait_ended(started, timeout_s=30)  # half of what its jobs would take


def test_a_crashed_child_costs_only_its_task(fleet: Fleet, ledger: Ledger, audit: Audit) -> None:
    """MOAB-32: os._exit and a segmentation fault, among good tasks; the poison is dead after its attempts."""
    fleet.start_one(executor="processes", concurrency=2)
    poison = [Crash(how="exit").enqueue(), Crash(how="segfault").enqueue()]
    good = Work.enqueue_many([Work(n=n, seconds=0.01) for n in range(20)])
    assert [task.result(timeout=20) for task in good] == list(range(20))
    wait_for(lambda: all(task.record().state == "dead" for task in poison))
    assert [ledger.times("start")[task.id] for task in poison] == [2, 2]
    assert all(ledger.times("start")[task.id] == 1 for task in good)
    assert poison[0].error.startswith("AttemptCrashed: the process of the attempt exited with code 0")
    assert poison[1].error.startswith("AttemptCrashed: the process of the attempt was ended by signal 11")
    assert audit("t")["dead"] == 2


def test_a_timeout_in_a_process_is_hard(fleet: Fleet, ledger: Ledger) -> None:
    worker = fleet.start_one(executor="processes", concurrency=1)
    task = Linger().enqueue()
    wait_for(lambda: task.record().state == "dead")
    assert task.record().error.startswith("AttemptTimeout: the attempt ran longer than timeout=0.3 s")
    assert Work(n=7).enqueue().result(timeout=10) == 7
    assert len(worker.children()) == 2


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_a_running_job_is_told_that_it_was_cancelled(fleet: Fleet, ledger: Ledger, executor: str) -> None:
    fleet.start_one(executor=executor, concurrency=1)
    task = UntilCancelled().enqueue()
    wait_for(lambda: ledger.times("start")[task.id] == 1)
    assert task.cancel()
    assert task.result(timeout=10) == "stopped"


def test_a_task_acknowledged_early_does_not_come_back(fleet: Fleet, ledger: Ledger, audit: Audit) -> None:
    """KEU-10: SIGKILL after its start; its lease ended long ago and no worker runs it again."""
    worker = fleet.start_one(concurrency=1)
    task = Early(seconds=60).enqueue()
    wait_for(lambda: ledger.times("start")[task.id] == 1)
    worker.kill()
    fleet.start_one(burst=True).summary()
    assert ledger.times("start")[task.id] == 1
    assert not any(audit("t").values())


def test_a_server_killed_under_load_loses_nothing_that_was_acknowledged(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """MOAB-07, MOSQ-30: AOF always, kill -9, restart; workers stay, come back by themselves, and say so once."""
    server = start_server(appendonly="yes", appendfsync="always")
    with Client(server.url, "aof") as client:
        use(client)
        fleet = Fleet(server.url, "aof", tmp_path)
        try:
            _run_through_a_crash(server, client, fleet)
        finally:
            fleet.close()


def _run_through_a_crash(server: Server, client: Client, fleet: Fleet) -> None:
    workers = fleet.start(2, concurrency=5)
    acknowledged: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        while not stop.is_set():
            acknowledged.append(Work(n=0, seconds=0.005).enqueue().id)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        wait_for(lambda: len(fleet.ledger.times("end")) > 50)
        server.kill()
        time.sleep(1)  # it is away for a while: this is the fault, not a wait
        server.start()
        back_at, known = time.monotonic(), len(fleet.ledger.times("end"))
        wait_for(lambda: len(fleet.ledger.times("end")) > known + 50)
        assert time.monotonic() - back_at < 20, "it tries at least every 3 s"
    finally:
        stop.set()
        producer.join()
    counts = client.queue("t").counts
    wait_for(lambda: not any(counts().values()))
    assert set(acknowledged) <= set(fleet.ledger.times("end"))
    for worker in workers:
        assert worker.alive
        complaints = re.findall("loop failed", worker.log.read_text())
        assert len(complaints) <= 1, worker.log.read_text()


@pytest.mark.slow
def test_replies_that_are_lost_cost_no_task(
    fleet: Fleet, ledger: Ledger, fault_proxy: FaultProxy, current: Client, audit: Audit
) -> None:
    """MOAB-20, MOSQ-02, TITAN-21, TITAN-22: reserves and reports are cut off after a random number of bytes."""
    fleet.start_one(url=fault_proxy.url, concurrency=5)
    tasks = Work.enqueue_many([Work(n=n, seconds=0.01) for n in range(150)])
    for cut in (0, 40, 700, 3, 1500, 90):
        ended = len(ledger.times("end"))
        fault_proxy.cut_reply = cut
        wait_for(lambda ended=ended: len(ledger.times("end")) >= min(ended + 10, 150), timeout_s=15)
    wait_for(lambda: current.queue("t").totals().get("succeeded", 0) == 150, timeout_s=15)
    assert set(ledger.times("end")) == {task.id for task in tasks}
    starts = [(entry.task, entry.attempt) for entry in ledger.entries("start")]
    assert len(starts) == len(set(starts)), "an attempt was delivered twice"
    assert not any(audit("t").values())


def test_coroutines_are_cancelled_at_the_end_of_grace_and_run_again(fleet: Fleet, ledger: Ledger, audit: Audit) -> None:
    worker = fleet.start_one(grace=0.2)
    task = nap.enqueue(60.0)
    wait_for(lambda: ledger.entries("nap"))
    worker.stop()
    assert worker.summary() == {"finished": 0, "released": 1}
    assert [entry.event for entry in ledger.entries()] == ["nap", "cancelled"]
    assert audit("t")["waiting"] == 1
    assert task.retry_count == 0


def test_no_password_stands_in_a_command_line(
    fleet: Fleet, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server()
    with server.connect() as connection:
        connection.config_set("requirepass", "geheim")
    url = f"unix://:geheim@{server.socket}"
    worker = fleet.launch(url=url, executor="processes", concurrency=1)
    with Client(url, "p"):
        worker.wait_ready()
    shown = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in worker.children()]
    assert shown
    assert not any(b"geheim" in words for words in shown)
    assert "geheim" not in worker.log.read_text()
