"""The lease keeper's recovery of a dead worker, without processes: lease states in, reports out."""

import os
import platform
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis
import structlog

from jobrunner import Client
from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader, leases
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError
from jobrunner.worker.child_processes import VARIABLE, _find, end_all_of
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers
from jobrunner.worker.lease_keeper import crash_recovery as module
from jobrunner.worker.lease_keeper.crash_recovery import CrashRecovery, ProcessExit, WatchedProcess
from jobrunner.worker.lease_keeper.keeper_link import _FIRST, _WORDS, HeldLeases, HeldWork, SharedMemory
from tests.support.waiting import wait_for
from tests.unit.worker.attempts import attempt_at

KILLED = ProcessExit(signal=9)
_LINUX = tuple(map(int, re.findall(r"\d+", platform.release())[:2])) if sys.platform == "linux" else (0,)


@pytest.fixture
def marks() -> Iterator[SharedMemory]:
    made = SharedMemory()
    yield made
    made.close()


class Dead:
    """A worker that is no more, and what it held."""

    def __init__(self, client: Client, broker: Broker, keys: Keys, marks: SharedMemory) -> None:
        self.client, self.broker, self.keys, self.marks = client, broker, keys, marks
        self.numbers = LeaseNumbers("host.1.00c0de", marks.took)

    def take(self, queue: str, count: int) -> list[Attempt]:
        self.client.queue(queue).push_many([str(number) for number in range(count)])
        call = leases.reserve(self.keys.queue(queue), count, token=self.numbers.first_of(count))
        return self.broker.run(call).attempts

    def die(self, *queues: str, death: ProcessExit = KILLED, log_format: str = "") -> CrashRecovery:
        work = HeldWork(list(queues), "jobrunner-none", False, "host.1.00c0de", ",".join(queues), log_format)
        self.marks.write(msgspec.json.encode(work))
        return CrashRecovery(self.broker, self.keys, SharedMemory(os.dup(self.marks.descriptor)), death)


@pytest.fixture
def worker(client: Client, broker: Broker, keys: Keys, marks: SharedMemory) -> Dead:
    return Dead(client, broker, keys, marks)


def attempts_of(client: Client, task: Attempt) -> int:
    record = client.task(task.id).record()
    assert record is not None
    return record.retry_count


def test_what_had_begun_has_spent_its_attempt_and_nothing_else_has(worker: Dead, client: Client) -> None:
    """C6, also where more is held than fits in a call, in several queues, and where no reply was ever read."""
    first, second = worker.take("a", 450), worker.take("b", 7)
    for attempt in (*first[:3], second[0]):
        worker.marks.begin(attempt)
    (over,) = first[2:3]
    worker.marks.end([over])
    (other,) = client.queue("a").push_many(["of another"])
    (stranger,) = client.queue("a").reserve(1)

    worker.die("a", "b", "c").run()

    counts = {name: client.queue(name).counts() for name in "ab"}
    assert (counts["a"]["waiting"], counts["a"]["pending"]) == (450, 1), "that of another is its own"
    assert (counts["b"]["waiting"], counts["b"]["pending"]) == (7, 0)
    spent = [attempts_of(client, attempt) for attempt in (*first, *second)]
    assert sum(spent) == 3
    assert [spent[0], spent[1], spent[450]] == [1, 1, 1]
    assert stranger.id == other


def test_shards_that_came_while_the_worker_ran_are_handed_back(
    worker: Dead, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldLeases(lambda: None)
    monkeypatch.setattr(held, "memory", worker.marks)
    held.serve(["early"])
    assert worker.marks.read() == b"", "the keeper of a worker that has not begun cleans up nothing"

    worker.marks.write(msgspec.json.encode(HeldWork(["a"], "jobrunner-none", True)))
    held.serve(["a", "a1"])
    worker.take("a1", 1)
    CrashRecovery(worker.broker, worker.keys, SharedMemory(os.dup(worker.marks.descriptor)), KILLED).run()

    assert client.queue("a1").counts()["waiting"] == 1
    assert msgspec.json.decode(worker.marks.read(), type=HeldWork).claims_children, "the rest is as it was"


def test_a_reader_of_what_is_left_to_the_keeper_finds_a_whole_text(
    marks: SharedMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks.write(b"the first")
    write = os.pwrite

    def pwrite(descriptor: int, text: bytes, place: int) -> int:
        written = write(descriptor, text, place)
        assert marks.read() == b"the first"
        return written

    monkeypatch.setattr(os, "pwrite", pwrite)
    marks.write(b"another, longer one")
    monkeypatch.undo()
    assert marks.read() == b"another, longer one"
    marks.write(b"short")
    assert marks.read() == b"short"


def test_one_queue_that_fails_costs_no_other_its_hand_back(
    worker: Dead, client: Client, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GIVES_UP_S", 0.5)
    worker.take("broken", 3)
    worker.take("good", 3)
    raw.delete(keys.queue("broken").leases)
    raw.set(keys.queue("broken").leases, "x")
    worker.die("broken", "good").run()
    assert client.queue("good").counts()["waiting"] == 3


def test_it_goes_on_when_the_server_is_back(worker: Dead, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.take("a", 3)
    real, failures = worker.broker.run_each, [0, 0]

    def run_each(calls: Any) -> Any:
        if failures:
            failures.pop()
            raise JobrunnerError("away")
        return real(calls)

    monkeypatch.setattr(worker.broker, "run_each", run_each)
    worker.die("a").run()
    assert client.queue("a").counts()["waiting"] == 3


def test_a_job_that_waits_keeps_its_lease(worker: Dead, client: Client) -> None:
    waits, other = worker.take("a", 2)
    worker.marks.waits = lambda attempt: attempt is waits
    worker.marks.begin(waits)
    worker.marks.begin(other)
    worker.die("a").run()
    assert client.queue("a").counts()["pending"] == 1
    assert (attempts_of(client, waits), attempts_of(client, other)) == (0, 1)


def test_where_there_were_too_few_marks_nothing_is_taken_for_not_begun(worker: Dead, client: Client) -> None:
    begun, unmarked = worker.take("a", 2)
    worker.marks.begin(begun)
    worker.marks.begin(attempt_at("x", token="no number"))
    worker.die("a").run()
    assert client.queue("a").counts()["pending"] == 1
    assert attempts_of(client, begun) == 1
    assert attempts_of(client, unmarked) == 0


def test_a_worker_that_left_nothing_is_no_error(worker: Dead, client: Client) -> None:
    worker.take("a", 1)
    CrashRecovery(worker.broker, worker.keys, worker.marks, KILLED).run()
    assert client.queue("a").counts()["pending"] == 1


def test_more_than_there_are_marks_is_known(marks: SharedMemory) -> None:
    held = [attempt_at("x", token=str(number + 1)) for number in range(_WORDS - _FIRST)]
    for attempt in held:
        marks.begin(attempt)
    assert len(marks.begun()) == len(held)
    assert not marks.lacks_marks

    marks.end(held[:1])
    marks.begin(attempt_at("x", token="70001"))
    assert not marks.lacks_marks
    marks.begin(attempt_at("x", token="70002"))
    assert marks.lacks_marks


def test_marks_are_used_again(marks: SharedMemory) -> None:
    for number in range(200_000):
        attempt = attempt_at("x", token=str(number + 1))
        marks.begin(attempt)
        marks.end([attempt, attempt])
    assert not marks.begun()
    assert not marks.lacks_marks


def test_the_dead_worker_is_off_the_list_at_once_and_its_queues_are_named(worker: Dead, client: Client) -> None:
    for one in ("host.1.00c0de", "host.2.0c0de0"):
        worker.broker.run(leader.announce(worker.keys, one, {"id": one, "queues": "a,b"}, ttl_ms=30_000))

    (begun,) = worker.take("a", 1)
    worker.marks.begin(begun)
    worker.die("a", "b", death=ProcessExit(code=3)).run()
    worker.die("a", "b", death=ProcessExit(code=3)).run()

    assert [one.id for one in client.workers()] == ["host.2.0c0de0"]
    record = client.task(begun.id).record()
    assert record is not None
    assert [one.worker for one in record.failures] == ["host.1.00c0de"], "with its machine, other than of a lease"
    (lost,) = [event for event in client.events() if event.kind == "worker_lost"]
    details = {"queues": "a,b", "how": "worker died (exit code 3)", "tasks": begun.id, "running": "1"}
    assert (lost.worker, lost.details) == ("host.1.00c0de", details)


def test_the_tasks_that_a_worker_ran_when_it_died_are_named(
    worker: Dead, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten of them; one that had ended, or that another worker has by now, is not one of them."""
    first, second = worker.take("a", 13), worker.take("b", 1)
    for attempt in (*first[:12], *second):
        worker.marks.begin(attempt)
    client.task(first[0].id).cancel()
    worker.broker.run(leases.commit(worker.keys.queue("a"), [(first[1].id, first[1].token, 0, "succeeded", b"")]))
    worker.broker.run(leader.announce(worker.keys, "host.1.00c0de", {"id": "host.1.00c0de"}, ttl_ms=9000))

    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("jobrunner.log_output.log_to_stderr", lambda form, level: asked.append((form, level)))

    with structlog.testing.capture_logs() as lines:
        worker.die("a", "b", death=ProcessExit(code=3), log_format="json").run()

    (lost,) = [event for event in client.events() if event.kind == "worker_lost"]
    ran = [one.id for one in (*first[:1], *first[2:12], *second)]
    named = lost.details["tasks"].split(",")
    assert (lost.details["running"], len(named), set(named) < set(ran)) == ("12", 10, True)
    assert asked == [("json", "info")]
    assert lines == [
        {
            "event": "a worker died while it ran these tasks", "log_level": "warning", "worker": "host.1.00c0de",
            "how": "worker died (exit code 3)", "running": 12, "tasks": named, "jobs": [],
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "death"),
    [
        ("import os; os._exit(3)", ProcessExit(code=3)),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", ProcessExit(signal=signal.SIGSEGV)),
        ("import time; time.sleep(60)", ProcessExit(signal=signal.SIGKILL)),
    ],
)
def test_a_death_tells_how_it_came(program: str, death: ProcessExit) -> None:
    process = subprocess.Popen([sys.executable, "-c", program])
    watched = WatchedProcess(process.pid, os.pidfd_open(process.pid))
    if death.signal == signal.SIGKILL:
        process.kill()
    wait_for(lambda: watched._poll(0.05))
    assert watched.death(own_signal=0) == death, "while it is a zombie"
    process.wait()


@pytest.mark.skipif(_LINUX < (6, 15), reason="an older kernel forgets it with the process")
def test_a_keeper_that_starts_when_its_worker_is_gone_knows_how_it_died() -> None:
    """As where the first task in line ends each worker at once, before its keeper has started."""
    program = """
import os, subprocess, sys
from jobrunner.worker.lease_keeper.keeper_client import _own_pidfd
own = _own_pidfd()
late = "import sys; sys.stdin.read(); from jobrunner.worker.lease_keeper.crash_recovery import WatchedProcess; "
late += f"print(WatchedProcess({os.getpid()}, {own}).death(0).reason)"
subprocess.Popen([sys.executable, "-c", late], pass_fds=[own])
os._exit(7)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.wait() == 7
    assert process.communicate()[0] == "its worker died (exit code 7)\n"


def test_only_what_comes_from_outside_leaves_no_suspicion() -> None:
    assert ProcessExit(signal=signal.SIGKILL).is_from_outside
    assert ProcessExit(signal=signal.SIGTERM).is_from_outside
    for inside in (
        ProcessExit(),
        ProcessExit(code=1),
        ProcessExit(signal=signal.SIGSEGV),
        ProcessExit(signal=signal.SIGKILL, by_itself=True),
    ):
        assert not inside.is_from_outside


def test_what_a_worker_started_is_ended_and_nothing_else_is() -> None:
    """Also what those started in turn; not what has a session of its own."""
    sleeps = [sys.executable, "-c", "import subprocess, sys, time; subprocess.Popen(['sleep', '60']); time.sleep(60)"]
    name = f"jobrunner-test-{uuid.uuid4()}"
    mine = subprocess.Popen(sleeps, env={**os.environ, VARIABLE: name})
    apart = subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: name}, start_new_session=True)
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, VARIABLE: "another"})
    try:
        wait_for(lambda: len(_find(name, forked=False)) == 2)
        assert end_all_of(name, 5, forked=False)
        assert mine.wait(30) == -signal.SIGKILL
        assert apart.poll() is None
        assert other.poll() is None
    finally:
        for process in (mine, apart, other):
            process.kill()
            process.wait()
