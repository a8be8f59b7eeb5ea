"""Mosquito's model of a queue on Redis, rows MOSQ-01 to MOSQ-33, one test each."""

import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from jobrunner import Client, Item, TaskHandle, Worker, configure
from jobrunner.broker.keys import Keys, tag_of_id
from jobrunner.client.client import keys_of
from jobrunner.client.current import forget as forget_client
from jobrunner.client.queue import Queue
from jobrunner.errors import InvalidOption, OutcomeUnknown
from jobrunner.jobs import registry
from jobrunner.soak.fault_proxy import FaultProxy
from tests.acceptance import rows_jobs
from tests.acceptance.fleet import ROOT, Fleet, WorkerProcess
from tests.acceptance.ledger import VARIABLE, Entry, Ledger
from tests.acceptance.rows_jobs import Point
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for

Audit = Callable[..., dict[str, int]]
Work = Callable[..., Worker]
EMPTY = {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}
JOBS = "tests.acceptance.rows_jobs"
HOUR_MS = 3_600_000
SLACK_S = 20.0
"""Seconds that a busy machine may add to a span of time before the test fails."""
PERIODIC = """
import time
from datetime import timedelta
from jobrunner import PeriodicJob, job
from tests.acceptance.ledger import record

@job(name="{name}", queue="{queue}", every=timedelta(seconds={every}), keepalive=2, max_attempts=5, overlap="{overlap}")
class Ticking(PeriodicJob):
    def run(self):
        record("{name}", self.task.id, self.task.attempt)
        {then}
        record("{name} end".replace(" ", "-"), self.task.id, self.task.attempt)
"""


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    """A queue on a stopped clock."""
    clock.set()
    return client.queue("t")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of jobs, in this process and in others."""
    kept = Ledger(tmp_path / "ledger")
    monkeypatch.setenv(VARIABLE, str(kept.path))
    return kept


@pytest.fixture
def work(current: Client, ledger: Ledger) -> Iterator[Work]:
    """work(): starts a worker of queue t in threads of this process."""
    started: list[Worker] = []

    def start(*queues: str, **options: Any) -> Worker:
        worker = Worker([], queues or ["t"], client=current, **options)
        started.append(worker)
        worker.start()
        return worker

    yield start
    for worker in started:
        worker.stop(grace=1)


@pytest.fixture(autouse=True)
def conserved(keys: Keys, audit: Audit) -> Iterator[None]:
    """Every test ends with the books of its queues in order."""
    yield
    for name in ("t", "u"):
        audit(name)


@pytest.fixture
def declare(fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """declare("Name", every=0.5, then="..."): imports a module with a periodic job of queue t into this process."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names: list[str] = []

    def load(name: str, **options: Any) -> None:
        names.append(name)
        text = PERIODIC.format(name=name, **{"queue": "t", "overlap": "skip", **options})
        importlib.import_module(fleet.module(f"rows_{name.lower()}", text))

    yield load
    for name in names:
        registry.forget(name)


def take(queue: Queue, count: int = 500) -> list[Any]:
    """Payloads in the order they are handed out, each committed."""
    leases = queue.reserve(count)
    assert all(lease.commit() for lease in leases)
    return [lease.payload for lease in leases]


def drain(current: Client) -> None:
    """Lets a worker do all there is in queue t."""
    Worker([], ["t"], client=current).run(drain=True)


def test_a_url_is_all_it_needs(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, raw: redis.Redis,
                               ledger: Ledger) -> None:  # fmt: skip
    """MOSQ-01"""
    monkeypatch.chdir(tmp_path)
    for name in ("JOBRUNNER_URL", "REDIS_URL", "JOBRUNNER_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    try:
        client = configure(server.url)
        task = rows_jobs.Flaky(failures=0).enqueue()
        Worker([], ["t"]).run(burst=True)
        assert task.result(timeout=30) == 0
        client.queue("u").push("x")
        assert raw.zcard("jobrunner:{u}:u:waiting") == 1
    finally:
        forget_client()
        raw.flushall()


class Breakage:
    """Three tasks in the state that an operation expects; then the operation through a connection that is cut."""

    def __init__(self, client: Client, clock: Clock, url: str, audit: Audit) -> None:
        self.client = client
        self.clock = clock
        self.url = url
        self.audit = audit
        self.ids = ["one", "two", "three"]
        self.queues = [client.queue("p/a"), client.queue("p/b")]

    def prepare(self, operation: str) -> None:
        """Everything up to the operation."""
        self.clock.set()
        if operation == "enqueue":
            return
        delay = 5 if operation == "promote" else 0
        self.queues[0].push_many([Item(task_id, id=task_id, in_=delay, max_attempts=9) for task_id in self.ids])
        self.clock.advance(6000 if operation == "promote" else 1)

    def act(self, operation: str, fault_proxy: FaultProxy, cut: Callable[[], None]) -> bool:
        """The operation by a client that dies when its line breaks. Returns whether it did."""
        with Client(self.url, keys_of(self.client).prefix, now_ms=self.clock, retry_timeout=0) as mortal:
            queue = mortal.queue("p/a")
            leases = queue.reserve(3, keepalive=9) if operation in ("commit", "fail", "move") else []
            assert not mortal.queue("p/b").is_paused()  # it is connected now
            cut()
            try:
                if operation == "enqueue":
                    queue.push_many([Item(task_id, id=task_id) for task_id in self.ids])
                elif operation == "reserve":
                    queue.reserve(3, keepalive=9)
                elif operation == "promote":
                    queue.counts()
                for lease in leases:
                    {"commit": lease.commit, "fail": lambda lease=lease: lease.rollback(delay=3, error="x"),
                     "move": lambda lease=lease: lease.move("b")}[operation]()  # fmt: skip
            except OutcomeUnknown:
                return True
            finally:
                fault_proxy.cut_request = fault_proxy.cut_reply = None
            return False

    def check_books(self, operation: str) -> None:
        """Right after the break: the operation was applied to each task or it was not."""
        found = self.audit("p/a")
        moved = self.audit("p/b")
        totals = self.queues[0].totals()
        there = sum(found.values()) + sum(moved.values()) + totals.get("succeeded", 0)
        assert there == totals.get("enqueued", 0)
        assert there in ((0, 3) if operation == "enqueue" else (3,))

    def recover(self, operation: str) -> None:
        """Another client does what is left; each task is done once."""
        if operation == "enqueue":
            self.queues[0].push_many([Item(task_id, id=task_id) for task_id in self.ids])
        self.clock.advance(20_000)
        for queue in self.queues:
            for lease in queue.reserve(9):
                assert lease.commit()
        totals = [queue.totals() for queue in self.queues]
        assert totals[0]["enqueued"] == 3
        assert sum(total.get("succeeded", 0) for total in totals) == 3
        for queue in self.queues:
            assert not any(self.audit(queue.name).values())


@pytest.mark.parametrize("operation", ["enqueue", "reserve", "commit", "fail", "promote", "move"])
def test_a_client_that_dies_at_any_byte_loses_and_doubles_nothing(
    operation: str, client: Client, clock: Clock, fault_proxy: FaultProxy, audit: Audit, raw: redis.Redis
) -> None:
    """MOSQ-02: its line is cut after some bytes of a request or a reply, with the script known to the server or not."""
    broken = 0
    requests = [("cut_request", size) for size in (0, 1, 60, 300, 480, 700, 1000, 1500, 2500)]
    replies = [("cut_reply", size) for size in (0, 1, 5, 30, 120)]
    for (direction, size), is_known in itertools.product([*requests, *replies], (True, False)):
        breakage = Breakage(client, clock, fault_proxy.url, audit)
        breakage.prepare(operation)

        def cut(direction: str = direction, size: int = size, is_known: bool = is_known) -> None:
            if not is_known:
                raw.script_flush()
            setattr(fault_proxy, direction, size)

        broken += breakage.act(operation, fault_proxy, cut)
        breakage.check_books(operation)
        breakage.recover(operation)
        raw.flushall()
    assert broken >= 14


def test_hashes_and_sets_agree_after_kills(server: Server, keys: Keys, client: Client, audit: Audit) -> None:
    """MOSQ-03: processes that push, reserve and report at random are killed with SIGKILL in the middle of it."""
    queues = [client.queue("p/a"), client.queue("p/b")]

    def has_pushed(number: int) -> bool:
        return queues[0].totals().get("enqueued", 0) >= number

    words = [sys.executable, "-m", JOBS, "churn", server.url, keys.prefix]
    churning = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert churning.stdout is not None
        for number in (100, 230, 307, 451, 600, 777, 910, 1050):
            wait_for(lambda number=number: has_pushed(number), timeout_s=20)
            os.kill(int(churning.stdout.readline()), signal.SIGKILL)
    finally:
        os.killpg(churning.pid, signal.SIGKILL)
        churning.communicate()
    found = [audit(queue.name) for queue in queues]
    assert sum(sum(counts.values()) for counts in found) > 0
    for queue in queues:
        wait_for(lambda queue=queue: queue.pop(1000) or audit(queue.name) | {"dead": 0} == EMPTY)
        while queue.pop(1000) or audit(queue.name) | {"dead": 0} != EMPTY:
            pass


def test_fields_that_two_clients_set_are_both_there(work: Work, client: Client, current: Client) -> None:
    """MOSQ-04: a worker notes the progress of a run while another client asks it to stop."""
    work()
    task = rows_jobs.Shown().enqueue()
    wait_for(lambda: "progress" in task.record().fields)
    assert task.cancel()
    task.result(timeout=10)
    fields = task.record().fields
    assert fields["cancel_requested"] == b"1"
    assert b"begun" in fields["progress"]
    assert fields["type"] == b"RowsShown"


def test_the_hash_of_a_job_counts_without_losing_any(
    server: Server, work: Work, current: Client, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-05: 1 000 increments from 8 processes; a failed run does not erase the hash, and counts as well."""
    name = "RowsSumAndFail"
    words = [sys.executable, "-m", JOBS, "count", server.url, keys.prefix, name]
    subprocess.run(words, cwd=ROOT, check=True, timeout=60)
    assert raw.hgetall(keys.job(name)) == {b"sum": b"1000"}

    failing = rows_jobs.SumAndFail().enqueue()
    drain(current)
    assert failing.state == "dead"
    assert raw.hgetall(keys.job(name)) == {b"sum": b"1001"}
    assert raw.ttl(keys.job(name)) == -1


def test_parameters_come_out_as_they_went_in(work: Work, current: Client, audit: Audit) -> None:
    """MOSQ-06: every type, after a failed attempt; a parameter with the name of an internal field is not that field."""
    typed = rows_jobs.Typed(
        text="naïve \x00 🦊 \u2028", number=2**53 + 1, share=0.1, flag=False, nothing=None, raw=bytes(range(256)),
        when=datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC), price=Decimal("0.10"),
        nested={"": [Point(x=-0.5, labels={"a": True}), Point(x=1e300, labels={})], "none": []},
        id="mine", type="a type", retry_count=99, payload="[]", place=-1, max_attempts=1,
    )  # fmt: skip
    task = typed.enqueue()
    drain(current)
    expected = [repr(getattr(typed, name)) for name in typed.__struct_fields__]
    assert task.result(timeout=0) == [*expected, "counter 1"]
    record = task.record()
    assert (record.id, record.type, record.retry_count, record.attempts) == (task.id, "RowsTyped", 1, 2)
    assert audit("t") == EMPTY


def test_a_field_that_this_version_does_not_know_is_kept(
    client: Client, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-07: through a failure, promotion, the end of a lease, release, a move, death and requeue."""
    clock.set()
    queue, other = client.queue("p/t"), client.queue("p/u")
    task_id = queue.push("x", max_attempts=4)
    key = keys.queue("p/t").task(task_id)
    raw.hset(key, "x-new", b"\x00kept")

    def is_kept() -> bool:
        return client.task(task_id).record().fields["x-new"] == b"\x00kept"

    queue.reserve()[0].rollback(delay=1)
    assert is_kept()
    clock.advance(HOUR_MS)
    queue.reserve()
    clock.advance(HOUR_MS)
    queue.reserve()[0].release()
    queue.reserve()[0].move("u")
    assert is_kept()
    for _ in range(4):
        other.reserve()[0].rollback(delay=0)
    assert other.counts()["dead"] == 1
    assert is_kept()
    assert other.requeue_dead() == 1
    assert is_kept()
    assert take(other) == ["x"]


def test_ids_of_four_processes_are_all_different(tmp_path: Path) -> None:
    """MOSQ-08: 200 000 of them, three of the processes forked off the first."""
    command = [sys.executable, "-m", JOBS, "ids", str(tmp_path / "ids"), "50000"]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    made = [(tmp_path / f"ids.{n}").read_text().split() for n in range(4)]
    everything = list(itertools.chain.from_iterable(made))
    assert len(everything) == 200_001
    assert len(set(everything)) == len(everything)
    assert all(ids == sorted(ids) for ids in made)


def wait_for_turn(queue: Queue, clock: Clock, raw: redis.Redis, scheduled: bytes) -> None:
    """Lets the clock reach the due time of the one task that is scheduled, which wakes the worker.

    No further: a worker that reads the clock before this and takes the task after it must not find its lease over.
    """
    wait_for(lambda: queue.counts()["scheduled"] == 1)
    clock.advance(wait_s(raw, scheduled, clock) * 1000 + 1)
    queue.counts()


def test_a_task_of_an_unknown_job_fails_with_a_reason_and_ends_dead(
    work: Work, queue: Queue, clock: Clock, ledger: Ledger, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-09: not lost, not looping; and a worker that knows the job may still take it between the attempts."""
    definition = rows_jobs.Flaky.definition
    assert definition is not None
    scheduled = keys.queue("t").scheduled
    queue.configure(backoff=rows_jobs.AT_ONCE)
    hopeless, hopeful = rows_jobs.Flaky(failures=0).enqueue(), None
    registry.forget(definition.name)
    try:
        work(unknown_grace=0)
        for _ in range(4):
            wait_for_turn(queue, clock, raw, scheduled)
        wait_for(lambda: hopeless.record().state == "dead")
        assert hopeless.record().attempts == 5
        assert hopeless.record().error.startswith("UnknownJob: this worker knows no job 'RowsFlaky'")
        assert hopeless.record().payload == b'{"failures":0}'

        hopeful = rows_jobs.Flaky(failures=1).enqueue()
        wait_for(lambda: queue.counts()["scheduled"] == 1)
    finally:
        registry.register(definition)
    wait_for_turn(queue, clock, raw, scheduled)
    assert hopeful.result(timeout=10) == 1
    assert queue.counts() == EMPTY | {"dead": 1}


def test_the_time_of_enqueueing_never_changes(client: Client, clock: Clock) -> None:
    """MOSQ-10: three retries, promotions, the end of a lease, release, a move, death and requeue."""
    enqueued_at = datetime.fromtimestamp(clock.set(1_700_000_000_123) / 1000, UTC)
    queue, other = client.queue("p/t"), client.queue("p/u")
    task_id = queue.push("x", in_=5, max_attempts=4)
    task = client.task(task_id)

    def reserve(source: Queue) -> Any:
        clock.advance(HOUR_MS)
        (lease,) = source.reserve()
        assert lease.enqueue_time == task.enqueue_time == enqueued_at
        return lease

    for _ in range(3):
        reserve(queue).rollback()
    reserve(queue).release()
    reserve(queue)
    assert task.record().enqueue_time == enqueued_at
    clock.advance(HOUR_MS)
    assert queue.counts()["dead"] == 1
    queue.requeue_dead()
    reserve(queue).move("u")
    reserve(other).commit("done")


def test_the_count_of_failures_is_what_the_handler_sees(
    work: Work, current: Client, ledger: Ledger, queue: Queue, clock: Clock
) -> None:
    """MOSQ-11: 0, 1, 2; success does not change it, nor does a release; a lease that ends does."""
    clock.ms = None
    task = rows_jobs.Flaky(failures=2).enqueue()
    drain(current)
    assert [(entry.attempt, entry.note) for entry in ledger.entries("run")] == [(1, "0"), (2, "1"), (3, "2")]
    assert task.result(timeout=0) == 2
    assert (task.retry_count, task.attempts) == (2, 3)

    clock.set(time.time() * 1000 + HOUR_MS)
    queue.push("x")
    seen = []
    for end in ("release", "expire", "release", "fail", "commit"):
        (lease,) = queue.reserve(keepalive=1)
        seen.append((lease.attempts, lease.retry_count))
        {"release": lease.release, "expire": lambda: True, "fail": lambda lease=lease: lease.rollback(delay=0),
         "commit": lease.commit}[end]()  # fmt: skip
        clock.advance(1000)
    assert seen == [(1, 0), (1, 0), (2, 1), (2, 1), (3, 2)]
    assert queue.counts() == EMPTY


@pytest.mark.parametrize("name", ["t", "p/t", "a.b:c-d_9"])
def test_a_task_is_a_hash_whose_key_is_its_id(client: Client, raw: redis.Redis, keys: Keys, name: str) -> None:
    """MOSQ-12: under the prefix; all keys of a queue and of its tasks share one slot of a cluster."""
    queue = client.queue(name)
    task_id = queue.push({"a": 1})
    tag = name.split("/")[0]
    key = keys.queue(name).task(task_id)
    assert key == f"{keys.prefix}:{{{tag}}}:task:{task_id}".encode()
    assert raw.type(key) == b"hash"
    assert raw.hget(key, "id") == task_id.encode()
    assert tag_of_id(task_id) == tag
    queue.reserve()[0].rollback(delay=9)
    queue.pause()
    of_all = (keys.queues, keys.format, keys.events)
    written = [key for key in raw.scan_iter(match=f"{keys.prefix}:*") if key not in of_all]
    assert len(written) >= 6
    assert {key_slot(key) for key in written} == {key_slot(tag.encode())}


def test_a_queue_is_four_sorted_sets(queue: Queue, raw: redis.Redis, keys: Keys) -> None:
    """MOSQ-13"""
    for state in EMPTY.keys() - {"done"}:
        assert raw.type(f"{keys.prefix}:{{t}}:t:{state}") == b"none"
    queue.push_many([Item("dead", max_attempts=1), Item("pending")])
    queue.reserve(2)[0].rollback()
    queue.push_many([Item("waiting"), Item("scheduled", in_=60)])
    for state in EMPTY.keys() - {"done"}:
        key = f"{keys.prefix}:{{t}}:t:{state}"
        assert raw.type(key) == b"zset", state
        assert raw.zcard(key) == 1, state
        assert [member.decode() for member in raw.zrange(key, 0, -1)] == queue.ids(state)


def test_sets_hold_ids_and_no_payloads(queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys) -> None:
    """MOSQ-14: 100 tasks of 100 KiB go through all four sets, none of which needs 20 KiB."""
    ids = queue.push_many([Item(bytes(102_400), max_attempts=2) for _ in range(100)])

    def look(state: str) -> None:
        key = getattr(keys.queue("t"), state)
        assert [member.decode() for member in raw.zrange(key, 0, -1)] == ids, state
        assert 0 < raw.memory_usage(key, samples=0) < 20 * 1024, state

    look("waiting")
    leases = queue.reserve(100)
    look("pending")
    for lease in leases:
        lease.rollback(delay=5)
    look("scheduled")
    clock.advance(6000)
    for lease in queue.reserve(100):
        lease.rollback()
    look("dead")


def test_a_task_is_stored_and_put_at_the_end_in_one_step(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, audit: Audit, fault_proxy: FaultProxy
) -> None:
    """MOSQ-15: its score is greater than all of equal priority, whatever the clock does; cut off: both or none."""
    waiting = keys.queue("t").waiting
    last = {0: float("-inf"), 1: float("-inf"), 2: float("-inf")}
    for number in range(300):
        priority = number % 3
        task_id = queue.push(number, priority=priority)
        score = raw.zscore(waiting, task_id)
        assert score is not None
        assert score > last[priority]
        last[priority] = score
        clock.advance((0, 0.001, 7, -5000)[number % 4])
    with Client(fault_proxy.url, keys.prefix, now_ms=clock, retry_timeout=0) as cut_off:
        for size in range(0, 1000, 50):
            assert cut_off.queue("t").counts()
            fault_proxy.cut_request = size
            try:
                cut_off.queue("t").push(b"x" * 300)
            except OutcomeUnknown:
                assert size < 900
            fault_proxy.cut_request = None
            audit("t")
    assert 301 <= queue.counts()["waiting"] < 320


def test_a_task_begins_by_one_move_from_waiting_to_pending(
    server: Server, keys: Keys, client: Client, raw: redis.Redis
) -> None:
    """MOSQ-16: two workers and an observer, which sees every task in exactly one of the two sets at any time."""
    total = 4000
    for _ in range(total // 1000):
        client.queue("t").push_many([b""] * 1000)
    taken: list[str] = []
    seen: list[tuple[int, int]] = []
    is_over = threading.Event()

    def work() -> None:
        with Client(server.url, keys.prefix) as own:
            while leases := own.queue("t").reserve(7, keepalive=60):
                taken.extend(lease.id for lease in leases)

    def observe() -> None:
        names = keys.queue("t")
        with server.connect() as connection:
            while not is_over.is_set():
                seen.append(tuple(connection.pipeline().zcard(names.waiting).zcard(names.pending).execute()))

    observer = threading.Thread(target=observe)
    workers = [threading.Thread(target=work) for _ in range(2)]
    for thread in (observer, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    is_over.set()
    observer.join()
    assert len(taken) == len(set(taken)) == total
    assert {sum(pair) for pair in seen} == {total}
    assert len(set(seen)) > 20


def test_an_id_without_a_hash_is_dropped_and_counted(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, work: Work, ledger: Ledger, current: Client
) -> None:
    """MOSQ-17: found in waiting, in scheduled when due, in pending when its lease ends; the next task runs."""
    names = keys.queue("t")
    lost = queue.push("lost")
    behind = queue.push("behind")
    raw.delete(names.task(lost))
    assert [lease.id for lease in queue.reserve()] == [behind]
    assert queue.delete(behind)
    assert queue.totals()["orphaned"] == 1

    later = queue.push("later", in_=5)
    raw.delete(names.task(later))
    clock.advance(6000)
    assert queue.reserve() == []
    held = queue.push("held")
    assert len(queue.reserve(keepalive=1)) == 1
    raw.delete(names.task(held))
    clock.advance(1000)
    assert queue.reserve() == []
    assert queue.totals()["orphaned"] == 3
    assert queue.counts() == EMPTY

    clock.ms = None
    ghost, task = (rows_jobs.Flaky(failures=0).enqueue() for _ in range(2))
    raw.delete(names.task(ghost.id))
    drain(current)
    assert list(ledger.times("run")) == [task.id]
    assert queue.totals()["orphaned"] == 4


def test_a_finished_task_is_kept_for_its_time_and_no_longer(
    work: Work, raw: redis.Redis, keys: Keys, ledger: Ledger, audit: Audit
) -> None:
    """MOSQ-18: the job's `keep`, 3 s here; 0 deletes at once; 60 s when it says nothing; never without an end."""
    work()
    names = keys.queue("t")
    kept, unkept, default = (
        kind(failures=0).enqueue() for kind in (rows_jobs.Kept, rows_jobs.Unkept, rows_jobs.ByDefault)
    )
    wait_for(lambda: kept.record().state == "succeeded")
    left_ms = raw.pttl(names.task(kept.id))
    found_at = time.monotonic()
    assert 0 < left_ms <= 3000
    wait_for(lambda: default.record().state == "succeeded")
    assert 50_000 < raw.pttl(names.task(default.id)) <= 60_000
    wait_for(lambda: not raw.exists(names.task(unkept.id)))
    wait_for(lambda: not kept.exists())
    assert left_ms / 1000 - 0.1 < time.monotonic() - found_at < left_ms / 1000 + SLACK_S
    cancelled = rows_jobs.Flaky(failures=0).enqueue(in_=60)
    assert cancelled.cancel()
    assert raw.pttl(names.task(cancelled.id)) > 0
    assert audit("t") == EMPTY


def test_a_delayed_task_that_fails_is_delayed_again(
    work: Work, ledger: Ledger, queue: Queue, clock: Clock, audit: Audit
) -> None:
    """MOSQ-19: delayed 1 s, it runs at 1 s and at 1 s + backoff; exact on a clock, and in real time with a worker."""
    queue.push("x", in_=1)
    for at_ms, is_there in ((999.9, False), (1000, True)):
        clock.set(1_700_000_000_000 + at_ms)
        leases = queue.reserve()
        assert bool(leases) is is_there
    leases[0].rollback(delay=2)
    clock.set(1_700_000_002_999.9)
    assert queue.reserve() == []
    clock.set(1_700_000_003_000)
    assert take(queue) == ["x"]

    clock.ms = None
    work()
    began_at = time.monotonic()
    task = rows_jobs.Late(failures=1).enqueue(in_=0.5)
    assert task.result(timeout=10) == 1
    first, second = (entry.at for entry in ledger.entries("run"))
    assert 0.5 <= first - began_at < 0.5 + SLACK_S
    assert 0.4 <= second - first < 0.4 + SLACK_S


def test_a_delay_of_nothing_or_less_is_now(queue: Queue, clock: Clock) -> None:
    """MOSQ-20: 0 and negative are waiting at once, 180 s and ten years and more are scheduled, nonsense is refused."""
    for delay in (0, -1, -0.0, timedelta(0), timedelta(minutes=-3), None):
        queue.push("now", in_=delay)
    assert queue.counts() == EMPTY | {"waiting": 6}
    for delay in (180, timedelta(minutes=3), 0.001, 11 * 365 * 86_400, timedelta(days=36_000)):
        queue.push("later", in_=delay)
    assert queue.counts() == EMPTY | {"waiting": 6, "scheduled": 5}
    for wrong in (float("nan"), float("inf"), "3", True, 1e12):
        with pytest.raises(InvalidOption):
            queue.push("never", in_=wrong)
    clock.advance(180_000)
    assert queue.counts() == EMPTY | {"waiting": 9, "scheduled": 2}


def test_a_delayed_task_is_not_waiting(queue: Queue, server: Server, raw: redis.Redis, keys: Keys) -> None:
    """MOSQ-21: an observer sees it in scheduled alone, from the first moment."""
    names = keys.queue("t")
    seen: set[tuple[int, int]] = set()
    is_over = threading.Event()

    def observe() -> None:
        with server.connect() as connection:
            while not is_over.is_set():
                seen.add(tuple(connection.pipeline().zcard(names.waiting).zcard(names.scheduled).execute()))

    observer = threading.Thread(target=observe)
    observer.start()
    for number in range(1, 101):
        queue.push("x", in_=60)
        assert (raw.zcard(names.waiting), raw.zcard(names.scheduled)) == (0, number)
    is_over.set()
    observer.join()
    assert {waiting for waiting, _ in seen} == {0}
    assert queue.counts() == EMPTY | {"scheduled": 100}


def test_the_score_of_a_delayed_task_is_its_due_time(client: Client, raw: redis.Redis, keys: Keys) -> None:
    """MOSQ-22: the server's now and the delay, in Unix ms."""
    queue = client.queue("t")

    def now_ms() -> float:
        seconds, microseconds = raw.time()
        return seconds * 1000 + microseconds / 1000

    for delay_s in (0.5, 180, 86_400 * 365 * 12):
        before = now_ms()
        task_id = queue.push("x", in_=delay_s)
        after = now_ms()
        score = raw.zscore(keys.queue("t").scheduled, task_id)
        assert score is not None
        assert before + delay_s * 1000 <= score <= after + delay_s * 1000 + 1
        assert client.task(task_id).record().when == datetime.fromtimestamp(score / 1000, UTC)


def leader_of(fleet: Fleet, raw: redis.Redis, keys: Keys) -> WorkerProcess | None:
    """The worker that leads, None while none of those that live does."""
    held = raw.hget(keys.leader, "worker")
    by_pid = {str(worker.pid): worker for worker in fleet.workers if worker.alive}
    return by_pid.get(held.decode().split(".")[-2]) if held else None


def test_one_of_many_runners_promotes_and_another_follows_it(
    fleet: Fleet, ledger: Ledger, client: Client, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOSQ-23: 200 tasks due at one instant run once each; the leader maintains a queue that no worker serves, and
    after kill -9 of the leader another one does, within the time of its lock."""
    unserved = keys.queue("u")
    client.queue("u").push("registers the queue")
    fleet.start(3, modules=[JOBS], leader_ttl=1.0, sweep=0.3, concurrency=4)
    at = datetime.now(UTC) + timedelta(seconds=1)
    due = [rows_jobs.Flaky(failures=0).enqueue(at=at) for _ in range(200)]
    client.queue("u").push("first", at=at)
    wait_for(lambda: raw.zcard(unserved.waiting) == 2)
    assert (datetime.now(UTC) - at).total_seconds() < SLACK_S
    wait_for(lambda: client.queue("t").counts() == EMPTY)
    assert audit("t") == EMPTY
    assert ledger.times("run") == {task.id: 1 for task in due}

    leader = wait_for(lambda: leader_of(fleet, raw, keys))
    leader.kill()
    killed_at = time.monotonic()
    client.queue("u").push_many([Item("second", in_=0.2), Item("third", in_=0.3)])
    wait_for(lambda: raw.zcard(unserved.waiting) == 4)
    assert time.monotonic() - killed_at < 1.0 + 0.3 + SLACK_S
    assert wait_for(lambda: leader_of(fleet, raw, keys)) is not leader


def test_many_overdue_tasks_are_promoted_in_slices(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOSQ-24: 20 000 of them; no operation moves more than 1 000, and each costs about one command."""
    names = keys.queue("t")
    for start in range(0, 20_000, 1000):
        queue.push_many([Item(number, in_=60 + number / 1000) for number in range(start, start + 1000)])
    clock.advance(HOUR_MS)

    def commands() -> int:
        """How many the server has run, those of scripts among them."""
        return sum(stats["calls"] for stats in raw.info("commandstats").values())

    left, operations = 20_000, 0
    while left:
        run_before = commands()
        queue.reserve(1) if operations % 2 else queue.counts()
        run = commands() - run_before
        before, left = left, raw.zcard(names.scheduled)
        assert 0 < before - left <= 1000
        assert run <= before - left + 50, "about one command for each that it moves"
        operations += 1
    clock.advance(HOUR_MS)
    handed_out = [payload for _ in range(45) for payload in (popped.payload for popped in queue.pop(500))]
    assert handed_out == list(range(20_000))
    assert audit("t") == EMPTY


def test_a_promoted_task_goes_before_what_was_enqueued_after_it_was_due(queue: Queue, clock: Clock) -> None:
    """MOSQ-25: whenever promotion takes place; it goes behind what was enqueued before that."""
    queue.push("delayed", in_=1)
    queue.push("before")
    clock.advance(1500)
    queue.push("after")
    clock.advance(1500)
    assert take(queue, 3) == ["before", "delayed", "after"]


def test_no_task_overtakes_overdue_ones_that_wait_for_their_slice(queue: Queue, clock: Clock) -> None:
    """MOSQ-25: 600 overdue tasks are more than one slice; a task that was enqueued later runs after all of them."""
    queue.push_many([Item(number, in_=1) for number in range(600)])
    clock.advance(5000)
    queue.push("later")
    handed_out = [payload for _ in range(3) for payload in take(queue, 600)]
    assert len(handed_out) == len(set(handed_out)) == 601
    place = handed_out.index("later") + 1
    assert place == 601, f"it was number {place}: reserve(n) with n above 500, the slice of upkeep, takes it too soon"


def test_declaring_a_periodic_job_enqueues_nothing(
    declare: Callable[..., None], client: Client, raw: redis.Redis
) -> None:
    """MOSQ-26: importing its module writes no key at all."""
    declare("RowsDeclared", every=0.1, then="pass")
    assert registry.lookup("RowsDeclared").periodic is not None
    assert list(raw.scan_iter()) == []
    assert client.queue("t").counts() == EMPTY


def test_a_periodic_job_runs_although_the_leader_does_not_know_it(
    fleet: Fleet, work: Work, ledger: Ledger, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-27: worker B leads and knows only other jobs; worker A knows P, and runs it."""
    known_to_a = PERIODIC.format(name="RowsKnown", queue="u", every=0.4, overlap="skip", then="pass")
    module = fleet.module("rows_known", known_to_a)
    b = work(leader_ttl=20.0)
    leader = wait_for(lambda: raw.hget(keys.leader, "worker"))
    assert leader.decode() == b.id
    a = fleet.start_one(modules=[module], queues=["u"], leader_ttl=20.0)
    wait_for(lambda: len(ledger.entries("RowsKnown")) >= 3)
    assert raw.hget(keys.leader, "worker") == leader
    assert registry.find("RowsKnown") is None
    runs = ledger.entries("RowsKnown")
    assert {run.pid for run in runs} == {a.pid}
    assert {run.attempt for run in runs} == {1}
    a.stop()
    a.wait()


def tick_s(task_id: str) -> float:
    """The tick that a task of a periodic job was made for, Unix seconds."""
    return (int(task_id[:16], 16) >> 16) / 1000


def _are_ticks(made: list[float], start: float, every: float) -> bool:
    """Whether these are ticks of one grid, each later than the one before; a busy machine may miss some."""
    steps = [(tick - start) / every for tick in made]
    on_grid = steps == pytest.approx([round(step) for step in steps], abs=0.01 / every)
    return on_grid and all(earlier + 0.5 < later for earlier, later in itertools.pairwise(steps))


@pytest.mark.processes
def test_each_tick_of_a_periodic_job_is_one_run(
    fleet: Fleet, work: Work, declare: Callable[..., None], ledger: Ledger, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-28: at once when it never ran; with three runners, a killed leader, all runners away for a while."""
    every = 0.4
    declare("RowsTick", every=every, overlap="allow", then="pass")
    state = keys.queue("t").periodic("RowsTick")

    def runs(after: float = 0) -> list[Entry]:
        """The first run for each tick after that one."""
        first = {run.task: run for run in reversed(ledger.entries("RowsTick")) if tick_s(run.task) > after + 0.001}
        return [first[task] for task in sorted(first)]

    def is_grid(made: list[Entry], start: float) -> bool:
        return _are_ticks([tick_s(run.task) for run in made], start, every)

    fleet.start(3, modules=["rows_rowstick"], leader_ttl=1.0)
    wait_for(lambda: len(runs()) >= 7)
    assert is_grid(runs(), tick_s(runs()[0].task))
    assert {run.attempt for run in runs()} == {1}

    leader = wait_for(lambda: leader_of(fleet, raw, keys))
    leader.kill()
    killed_at = time.monotonic()
    known = tick_s(runs()[-1].task)
    wait_for(lambda: len(runs(known)) >= 3)
    assert runs(known)[0].at - killed_at < 1.0 + every + SLACK_S

    survivors = [worker for worker in fleet.workers if worker.alive]
    for worker in survivors:
        worker.stop()
    for worker in survivors:
        worker.wait()
    last = float(raw.hget(state, "last") or 0) / 1000
    wait_for(lambda: time.time() > last + 4 * every)  # nobody is there for several ticks
    successor = work(leader_ttl=1.0)
    wait_for(lambda: len(runs(last)) >= 3)
    missed = tick_s(runs(last)[0].task)
    assert missed >= last + 4 * every - 0.01, "a tick was made up for that was not the last one missed"
    assert is_grid(runs(last), missed)

    wait_for(lambda: int(raw.hget(state, "fired") or 0) == len(runs()))
    assert len({tick_s(run.task) for run in runs()}) == len(runs()), "a tick became two tasks"
    attempts = [(run.task, run.attempt) for run in ledger.entries("RowsTick")]
    assert len(attempts) == len(set(attempts)), "a tick ran twice"
    again = [attempt for _, attempt in attempts if attempt > 1]
    assert again in ([], [2]), "only what the killed leader had in hand may run again"
    successor.stop(grace=5)


def test_a_periodic_job_that_is_slow_does_not_pile_up(
    declare: Callable[..., None], work: Work, ledger: Ledger, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-28: a run takes three intervals; a second run never overlaps it nor queues up after it."""
    declare("RowsSlow", every=0.25, then="time.sleep(0.8)")
    worker = work(leader_ttl=1.0, concurrency=4)
    most = 0

    def three_are_over() -> bool:
        nonlocal most
        counts = client.queue("t").counts()
        most = max(most, sum(counts.values()))
        return len(ledger.entries("RowsSlow-end")) >= 3

    wait_for(three_are_over)
    worker.stop(grace=5)
    assert most == 1
    events = [entry.event for entry in ledger.entries()]
    assert events == ["RowsSlow", "RowsSlow-end"] * (len(events) // 2)
    assert int(raw.hget(keys.queue("t").periodic("RowsSlow"), "skipped") or 0) >= 2, "at least one in a run"


def test_a_periodic_job_that_fails_waits_for_its_next_tick(
    declare: Callable[..., None], work: Work, ledger: Ledger, client: Client, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOSQ-29: it is a normal task, but its next run is that of the next tick: once it ran it is never scheduled."""
    every = 0.3
    declare("RowsFails", every=every, then="raise ValueError('always')")
    worker = work(leader_ttl=1.0)
    retried: set[str] = set()

    def four_began() -> bool:
        began = ledger.times("RowsFails")
        retried.update(began.keys() & {task_id.decode() for task_id in raw.zrange(keys.queue("t").scheduled, 0, -1)})
        return len(began) >= 4

    wait_for(four_began)
    worker.stop(grace=5)
    runs = ledger.entries("RowsFails")
    ticks = [tick_s(run.task) for run in runs]
    assert not retried
    assert _are_ticks(ticks, ticks[0], every)
    assert {run.attempt for run in runs} == {1}
    counted = audit("t")
    assert counted == EMPTY | {"dead": len(runs), "waiting": counted["waiting"]}
    assert counted["waiting"] <= 1, "its next tick, when that came while the worker stopped"
    assert client.task(runs[0].task).error.startswith("ValueError: always")


def test_a_failed_task_is_scheduled_in_one_step(
    client: Client, server: Server, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOSQ-30: an observer sees each of 1 000 tasks in exactly one set while they fail, half of them for good."""
    queue, names = client.queue("t"), keys.queue("t")
    queue.push_many([Item(n, max_attempts=1 + n % 2) for n in range(1000)])
    leases = queue.reserve(1000, keepalive=60)
    seen: list[tuple[int, ...]] = []
    is_over = threading.Event()

    def observe() -> None:
        with server.connect() as connection:
            while not is_over.is_set():
                pipeline = connection.pipeline().zcard(names.pending).zcard(names.scheduled).zcard(names.dead)
                seen.append(tuple(pipeline.execute()))

    observer = threading.Thread(target=observe)
    observer.start()
    for lease in leases:
        assert lease.rollback(delay=60, error="no")
    is_over.set()
    observer.join()
    assert {sum(found) for found in seen} == {1000}
    assert len(set(seen)) > 20
    assert audit("t") == EMPTY | {"scheduled": 500, "dead": 500}
    assert queue.totals()["failed"] == 1000


def wait_s(raw: redis.Redis, scheduled: bytes, clock: Clock) -> float:
    """How long the one task that is scheduled has to wait."""
    ((_, due_ms),) = raw.zrange(scheduled, 0, 0, withscores=True)
    assert clock.ms is not None
    return (due_ms - clock.ms) / 1000


def test_each_further_failure_waits_longer(
    work: Work, queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, ledger: Ledger
) -> None:
    """MOSQ-31: geometric, factor 2, jitter of 10 % to both sides: each wait is 1.6 to 2.5 times the one before."""
    scheduled = keys.queue("t").scheduled
    queue.configure(max_attempts=0)
    waits: dict[str, list[float]] = {task_id: [] for task_id in queue.push_many(range(30))}
    for _ in range(5):
        now = clock.advance(HOUR_MS)
        for lease in queue.reserve(30):
            lease.rollback()
        for task_id, ms in raw.zrange(scheduled, 0, -1, withscores=True):
            waits[task_id.decode()].append((ms - now) / 1000)
    assert queue.purge("scheduled") == 30

    task = rows_jobs.Growing(failures=5).enqueue()
    work()
    by_worker = waits[task.id] = []
    for _ in range(5):
        wait_for(lambda: queue.counts()["scheduled"] == 1)
        by_worker.append(wait_s(raw, scheduled, clock))
        wait_for_turn(queue, clock, raw, scheduled)
    assert task.result(timeout=10) == 5

    for found in waits.values():
        assert len(found) == 5
        assert 1.8 <= found[0] <= 2.21
        ratios = [later / earlier for earlier, later in itertools.pairwise(found)]
        assert all(1.6 < ratio < 2.5 for ratio in ratios), found
    assert len({found[0] for found in waits.values()}) > 10, "there is no jitter"


def test_a_task_runs_as_often_as_it_may_and_is_dead_then(
    work: Work, current: Client, ledger: Ledger, queue: Queue, clock: Clock, audit: Audit
) -> None:
    """MOSQ-32: three attempts are three executions, one is one; by the job's option, the queue's, the item's."""
    clock.ms = None
    tasks: list[TaskHandle[Any]] = [kind(failures=99).enqueue() for kind in (rows_jobs.Thrice, rows_jobs.Once)]
    drain(current)
    assert [ledger.times("run")[task.id] for task in tasks] == [3, 1]
    assert [(task.record().state, task.record().attempts) for task in tasks] == [("dead", 3), ("dead", 1)]
    assert audit("t") == EMPTY | {"dead": 2}
    assert queue.purge("dead") == 2

    clock.set(time.time() * 1000 + HOUR_MS)
    for configured, own in ((3, None), (9, 3)):
        queue.configure(max_attempts=configured)
        queue.push("x", max_attempts=own)
        executions = 0
        while leases := queue.reserve():
            executions += 1
            leases[0].rollback(error="no")
            clock.advance(HOUR_MS)
        assert executions == 3
        assert queue.counts() == EMPTY | {"dead": 1}
        assert queue.purge("dead") == 1


def test_dead_tasks_go_after_their_time(
    work: Work, queue: Queue, client: Client, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-33: id and hash together; also in a queue without traffic, as long as any worker runs."""
    names = keys.queue("t")
    queue.configure(dead_ttl=2)
    task_id = queue.push("x", max_attempts=1)
    queue.reserve()[0].rollback(error="no")
    clock.advance(1999)
    assert queue.counts()["dead"] == 1
    assert raw.exists(names.task(task_id))
    clock.advance(1001)
    queue.counts()
    assert raw.zcard(names.dead) == 0
    assert not raw.exists(names.task(task_id))
    assert queue.totals()["trimmed"] == 1

    clock.ms = None
    other, untouched = client.queue("u"), keys.queue("u")
    other.configure(dead_ttl=0.3)
    task_id = other.push("x", max_attempts=1)
    other.reserve()[0].rollback(error="no")
    work("t", sweep=0.1)
    wait_for(lambda: not raw.zcard(untouched.dead))
    assert not raw.exists(untouched.task(task_id))
