"""The contract of Titan's message queue, rows TITAN-01 to TITAN-23, one test each."""

import random
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, Worker, job
from jobrunner.broker.calls.leases import commit
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import forget, use
from jobrunner.client.queue import Queue
from jobrunner.errors import (
    ClientClosed,
    InvalidOption,
    LeaseLost,
    NotReserved,
    OutcomeUnknown,
    QueueFull,
    ServerError,
    ServerFull,
    ServerRefused,
    TaskTimeout,
)
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.task import Task, new_id
from tests.acceptance import rows_jobs
from tests.acceptance.ledger import VARIABLE, Ledger
from tests.acceptance.row_children import Child, push_priorities
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for

Audit = Callable[..., dict[str, int]]
LEASE_S = 1.0
SLACK_S = 20.0
"""Seconds that a busy machine may add to a span of time before the test fails."""
EMPTY = {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0}


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    """A queue on a stopped clock."""
    clock.set()
    return client.queue("t")


@pytest.fixture(autouse=True)
def conserved(queue: Queue, audit: Audit) -> Any:
    """Every test ends with the books of its queue in order."""
    yield
    audit(queue.name)


def take(queue: Queue, count: int = 1000) -> list[Any]:
    """Payloads in the order they are handed out, each committed."""
    leases = queue.reserve(count)
    assert all(lease.commit() for lease in leases)
    return [lease.payload for lease in leases]


def test_a_priority_is_0_1_or_2_and_1_when_it_is_missing(queue: Queue, client: Client) -> None:
    """TITAN-08: the default is documented as 1; everything else is refused at the push, and nothing is written."""
    ids = queue.push_many([Item(number, priority=number) for number in (0, 1, 2)] + [Item("none")])
    assert [client.task(task_id).record().priority for task_id in ids] == [0, 1, 2, 1]
    for wrong in (3, -1, 1.5, 1.0, True, False, "1"):
        with pytest.raises(InvalidOption, match="priority"):
            queue.push("bad", priority=wrong)
        with pytest.raises(InvalidOption, match="priority"):
            queue.push_many(["good", Item("bad", priority=wrong)])
        with pytest.raises(InvalidOption, match="priority"):
            job(name="RowsWrongPriority", priority=wrong)(lambda: None)
    assert queue.counts()["waiting"] == 4
    assert take(queue) == [2, 1, "none", 0]


def test_a_higher_priority_always_goes_first(queue: Queue, clock: Clock) -> None:
    """TITAN-09: also when it was delayed and becomes due, when it is a retry, and for as long as there is one."""
    queue.push_many([Item("lo", priority=0), Item("mid"), Item("hi", priority=2), Item("hi2", priority=2)])
    assert take(queue) == ["hi", "hi2", "mid", "lo"]

    queue.push("lo", priority=0)
    for number in range(50):
        queue.push(number, priority=2)
        clock.advance(60_000)
        assert take(queue, 1) == [number]

    queue.push("delayed hi", priority=2, in_=5)
    queue.push("failing hi", priority=2)
    (lease,) = queue.reserve()
    lease.rollback(delay=10)
    clock.advance(60_000)
    queue.push("mid")
    assert take(queue) == ["delayed hi", "failing hi", "mid", "lo"]


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_one_priority_is_first_in_first_out(queue: Queue, clock: Clock, priority: int) -> None:
    """TITAN-10: 500 of one call, then 500 single calls in the same microsecond, then some after the clock went back."""
    queue.push_many([Item(number, priority=priority) for number in range(500)])
    for number in range(500, 1000):
        queue.push(number, priority=priority)
    clock.advance(-5000)
    queue.push_many([Item(number, priority=priority) for number in range(1000, 1100)])
    assert take(queue, 1100) == list(range(1100))


def test_a_restored_job_keeps_its_place(queue: Queue, clock: Clock) -> None:
    """TITAN-11: [A, B, C], A reserved, B reserved and deleted, A times out: A, C; and so do many at once."""
    queue.push_many(["A", "B", "C"])
    (a,) = queue.reserve(keepalive=LEASE_S)
    (b,) = queue.reserve(keepalive=LEASE_S)
    assert (a.payload, b.payload) == ("A", "B")
    assert queue.delete(b.id)
    clock.advance(LEASE_S * 1000)
    queue.push("D")
    assert take(queue) == ["A", "C", "D"]

    queue.push_many(range(300))
    assert len(queue.reserve(200, keepalive=LEASE_S)) == 200
    clock.advance(LEASE_S * 1000)
    queue.push("behind")
    queue.push("hi", priority=2)
    assert take(queue) == ["hi", *range(300), "behind"]


def test_delete_removes_a_reserved_job_for_good(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """TITAN-12: it is not seen again in three times its lease."""
    queue.push("X")
    (lease,) = queue.reserve(keepalive=LEASE_S)
    assert queue.delete(lease.id) is True
    assert not raw.exists(keys.queue("t").task(lease.id))
    for _ in range(30):
        clock.advance(LEASE_S * 100)
        assert queue.reserve() == []
        assert queue.counts() == EMPTY
    assert queue.totals()["succeeded"] == 1


def test_delete_of_a_job_that_nobody_holds_is_an_error(queue: Queue, clock: Clock) -> None:
    """TITAN-13: never reserved, over, delayed, dead; and the first holder cannot take it from the second."""
    x = queue.push("X")
    with pytest.raises(NotReserved):
        queue.delete(x)
    assert queue.counts()["waiting"] == 1

    (first,) = queue.reserve(keepalive=LEASE_S)
    clock.advance(LEASE_S * 1000)
    with pytest.raises(NotReserved):
        queue.delete(x)
    with pytest.raises(NotReserved):
        first.commit()
    (second,) = queue.reserve(keepalive=LEASE_S)
    with pytest.raises(LeaseLost):
        first.commit()
    assert (second.id, second.payload) == (x, "X")

    second.rollback(delay=10)
    with pytest.raises(NotReserved):
        queue.delete(x)
    assert queue.counts()["scheduled"] == 1

    y = queue.push("Y", max_attempts=1)
    (lease,) = queue.reserve()
    lease.rollback()
    with pytest.raises(NotReserved):
        queue.delete(y)
    assert queue.counts() == EMPTY | {"scheduled": 1, "dead": 1}


def test_delete_of_a_job_that_does_not_exist_succeeds(queue: Queue, clock: Clock) -> None:
    """TITAN-14: True for what it removed, False for what was gone: deleted, unknown, committed, trimmed from dead."""
    queue.push("X")
    (lease,) = queue.reserve()
    assert [queue.delete(lease.id), queue.delete(lease.id), queue.delete(lease.id)] == [True, False, False]
    assert lease.commit() is False
    assert queue.delete(new_id("t")) is False
    assert queue.delete("an-id-of-mine") is False

    queue.push("Y")
    (lease,) = queue.reserve()
    assert lease.commit() is True
    assert queue.delete(lease.id) is False

    queue.configure(dead_ttl=2)
    z = queue.push("Z", max_attempts=1)
    queue.reserve()[0].rollback()
    clock.advance(2001)
    assert queue.counts() == EMPTY
    assert queue.delete(z) is False


def test_equal_delays_come_out_once_each_and_in_the_order_of_their_enqueueing(queue: Queue, clock: Clock) -> None:
    """TITAN-19: the contract asks for no order; ours is due time, then order of enqueueing."""
    queue.push_many([Item(number, in_=5) for number in range(600)])
    for number in range(600, 700):
        queue.push(number, in_=5)
    queue.push("sooner", in_=4.999)
    clock.advance(4998)
    assert queue.reserve() == []
    clock.advance(10)
    handed_out = [payload for _ in range(8) for payload in take(queue, 100)]
    assert len(handed_out) == len(set(handed_out)) == 701
    assert handed_out == ["sooner", *range(700)]


def test_reserve_takes_from_the_front_for_a_time(queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys) -> None:
    """TITAN-20: an empty queue gives no job and no error, and asking one that was never used writes nothing."""
    assert queue.reserve() == []
    assert queue.reserve(50) == []
    assert queue.counts() == EMPTY
    assert list(raw.scan_iter()) == []

    pushed = queue.push_many(["A", "B", "C"])
    now_ms = clock.ms
    assert now_ms is not None
    leases = queue.reserve(2, keepalive=LEASE_S)
    assert [(lease.id, lease.payload) for lease in leases] == [(pushed[0], "A"), (pushed[1], "B")]
    for lease in leases:
        assert lease.deadline.timestamp() * 1000 == now_ms + LEASE_S * 1000
        assert raw.zscore(keys.queue("t").pending, lease.id) == now_ms + LEASE_S * 1000
    assert take(queue) == ["C"]
    assert queue.reserve() == []


def test_no_job_is_lost_when_a_reserve_is_cut_off(
    queue: Queue, clock: Clock, fault_proxy: FaultProxy, keys: Keys, audit: Audit
) -> None:
    """TITAN-21: 5 000 jobs, the line cut at a random byte of the request or of the reply in half of all reserves."""
    chance = random.Random(21)
    for start in range(0, 5000, 1000):
        queue.push_many(range(start, start + 1000))
    queue.configure(max_attempts=0)
    handed_out: list[int] = []
    cuts = 0
    with Client(fault_proxy.url, keys.prefix, now_ms=clock, retry_timeout=0) as cut_off:
        while any(cut_off.queue("t").counts().values()):
            fault_proxy.cut_request, fault_proxy.cut_reply = chance.choice(
                [(None, None), (chance.randrange(400), None), (None, 0), (None, chance.randrange(25_000))]
            )
            try:
                leases = cut_off.queue("t").reserve(100, keepalive=LEASE_S)
            except (OutcomeUnknown, ServerError):
                cuts += 1
                clock.advance(LEASE_S * 1000)
                leases = []
            fault_proxy.cut_request = fault_proxy.cut_reply = None
            reports = [(lease.id, lease.token, 0, "succeeded", b"") for lease in leases]
            assert set(broker_of(queue).run(commit(keys_of(queue), reports))) <= {"ok"}
            handed_out += [lease.payload for lease in leases]
    assert cuts > 20
    assert sorted(handed_out) == list(range(5000))
    assert queue.totals()["succeeded"] == 5000
    assert audit("t") == EMPTY


class Refusal:
    """A server that refuses a reserve half way, in one of several manners."""

    def __init__(self, server: Server, clock: Clock) -> None:
        self.raw = server.connect()
        self.raw.acl_setuser("limited", enabled=True, passwords=["+pw"], keys=["*"], categories=["+@all"])
        self._limited = f"unix://limited:pw@{server.socket}"
        self.keys = Keys("refused")
        self.client = Client(server.url, "refused", now_ms=clock)
        self.limited = Client(self._limited, "refused", now_ms=clock)

    def deny(self, command: str) -> None:
        """The limited user may not use that command, neither by itself nor in a script."""
        self.raw.execute_command("ACL", "SETUSER", "limited", f"-{command}")

    def allow(self, command: str) -> None:
        """It may again."""
        self.raw.execute_command("ACL", "SETUSER", "limited", f"+{command}")

    def close(self) -> None:
        """Ends the connections."""
        for one in (self.client, self.limited, self.raw):
            one.close()


def test_after_a_failed_reservation_the_job_can_be_got_by_a_later_one(
    start_server: Callable[..., Server], clock: Clock
) -> None:
    """TITAN-22: an ACL that denies one command of the script after another; a server at its maxmemory."""
    clock.set()
    refusal = Refusal(start_server(), clock)
    try:
        queue = refusal.client.queue("t")
        for command in ("hgetall", "hmget", "zrange", "zcard", "zadd", "zremrangebyrank"):
            queue.push_many(range(5))
            refusal.deny(command)
            with pytest.raises(ServerRefused):
                refusal.limited.queue("t").reserve(5, keepalive=LEASE_S)
            refusal.allow(command)
            clock.advance(LEASE_S * 1000)
            assert take(queue) == list(range(5)), f"after {command} was denied"
            assert queue.counts() == EMPTY, f"after {command} was denied"

        queue.push_many(range(5))
        refusal.raw.config_set("maxmemory", 1)
        try:
            held = queue.reserve(5, keepalive=LEASE_S)
        except ServerRefused:
            held = []
        refusal.raw.config_set("maxmemory", 0)
        clock.advance(LEASE_S * 1000)
        assert len(held) in (0, 5)
        assert take(queue) == list(range(5))
        totals = queue.totals()
        assert (totals["enqueued"], totals["succeeded"]) == (35, 35)
        assert queue.counts() == EMPTY
    finally:
        refusal.close()


def test_a_queue_imposes_one_order_on_all_jobs(
    queue: Queue, clock: Clock, server: Server, keys: Keys, raw: redis.Redis
) -> None:
    """TITAN-01: four processes push at once; no two jobs share a place, and a serial order explains what each saw."""
    clock.ms = None
    pushers = [Child(push_priorities, server.url, keys.prefix, "t", seed, 250) for seed in range(4)]
    assert [pusher.hear() for pusher in pushers] == [None] * 4
    places = [place for _, place in raw.zrange(keys.queue("t").waiting, 0, -1, withscores=True)]
    assert len(places) == len(set(places)) == 1000
    served = [(lease.payload, places[n]) for n, lease in enumerate(queue.reserve(1000))]
    for priority in range(3):
        alike = [(seed, number, place) for (seed, number, own), place in served if own == priority]
        assert alike == sorted(alike, key=lambda job: job[2])
        for seed in range(4):
            numbers = [number for own, number, _ in alike if own == seed]
            assert numbers == sorted(numbers)
            assert numbers, "the test has too few jobs"
    assert [own for (_, _, own), _ in served] == sorted((own for (_, _, own), _ in served), reverse=True)


def test_push_adds_a_job(queue: Queue, client: Client) -> None:
    """TITAN-02: exactly one, behind those that are there, under the id that the push returned."""
    ids = []
    for number in range(10):
        ids.append(queue.push(number))
        assert queue.counts() == EMPTY | {"waiting": number + 1}
        assert client.task(ids[-1]).state == "waiting"
    assert len(set(ids)) == 10
    assert queue.ids("waiting") == ids
    assert take(queue) == list(range(10))


def test_dequeue_has_two_steps(queue: Queue, clock: Clock) -> None:
    """TITAN-03: a reserved task is still there, for a timeout or a retry by another worker; a deleted one is gone."""
    queue.push("X")
    (first,) = queue.reserve(keepalive=LEASE_S)
    assert queue.counts() == EMPTY | {"pending": 1}
    clock.advance(LEASE_S * 1000)
    (second,) = queue.reserve()
    second.rollback(delay=1)
    clock.advance(1000)
    (third,) = queue.reserve()
    assert {first.payload, second.payload, third.payload} == {"X"}
    assert (second.attempts, third.attempts) == (2, 3)
    assert queue.delete(third.id) is True
    assert queue.counts() == EMPTY


def test_reserve_returns_jobs_in_the_order_of_the_queue(queue: Queue, clock: Clock) -> None:
    """TITAN-04: one by one or many at once, the same order."""
    chance = random.Random(4)
    pushed = [(chance.randrange(3), number) for number in range(300)]
    order = [number for _, number in sorted(pushed, key=lambda job: -job[0])]
    for _ in range(2):
        for priority, number in pushed:
            queue.push(number, priority=priority)
            clock.advance(0.25)
    served = list[int]()
    while found := take(queue, chance.choice((1, 7))):
        served += found
    low, mid, high = (sum(own == priority for own, _ in pushed) for priority in range(3))
    assert served == [*order[:high] * 2, *order[high:][:mid] * 2, *order[high + mid :] * 2]
    assert low


def test_the_timeout_begins_when_a_job_is_reserved(queue: Queue, clock: Clock) -> None:
    """TITAN-05: five seconds of waiting take nothing off the one second of its reservation."""
    queue.push("X", keepalive=LEASE_S)
    clock.advance(5000)
    (lease,) = queue.reserve()
    clock.advance(LEASE_S * 1000 - 0.001)
    assert queue.reserve() == []
    assert lease.extend() is True
    clock.advance(LEASE_S * 1000 - 0.001)
    assert lease.commit() is True


def test_a_job_that_was_not_deleted_is_put_back(queue: Queue, clock: Clock) -> None:
    """TITAN-06: at the timeout and not before, again and again until its attempts are spent, for any consumer."""
    queue.configure(max_attempts=4)
    job_id = queue.push("X")
    for attempt in range(1, 5):
        (lease,) = queue.reserve(keepalive=LEASE_S)
        assert (lease.id, lease.payload, lease.attempts) == (job_id, "X", attempt)
        clock.advance(LEASE_S * 1000 - 0.001)
        assert queue.counts() == EMPTY | {"pending": 1}
        clock.advance(0.001)
        assert queue.counts() == EMPTY | {"waiting" if attempt < 4 else "dead": 1}
    assert queue.totals()["recovered"] == 4


def test_order_is_by_priority_then_by_a_logical_time(queue: Queue, clock: Clock) -> None:
    """TITAN-07: the server's clock runs, stops, and goes back a second and an hour between two pushes."""
    for number, step in enumerate((0, 5, -1000, 0, 0.001, -3_600_000, 0, 60_000)):
        clock.advance(step)
        for priority in (0, 2, 1):
            queue.push([priority, number], priority=priority)
    assert take(queue) == [[priority, number] for priority in (2, 1, 0) for number in range(8)]


def test_a_push_whose_reply_is_lost_may_be_made_again(
    queue: Queue, clock: Clock, fault_proxy: FaultProxy, keys: Keys, client: Client
) -> None:
    """TITAN-15: its outcome is unknown, and said so; with the same id there is exactly one job then."""
    with Client(fault_proxy.url, keys.prefix, now_ms=clock, retry_timeout=0) as cut_off:
        far = cut_off.queue("t")
        far.push("before")
        assert far.counts()["waiting"] == 1
        for number, (direction, size) in enumerate(
            [("cut_reply", 0), ("cut_reply", 2), *(("cut_request", size) for size in (0, 1, 50, 300))]
        ):
            job_id = f"mine-{number}"
            setattr(fault_proxy, direction, size)
            with pytest.raises(OutcomeUnknown, match="applied or it was not"):
                far.push(number, id=job_id)
            assert client.task(job_id, queue="t").exists() is (direction == "cut_reply")
            assert far.push("again", id=job_id) == job_id
            assert queue.counts()["waiting"] == number + 2
    assert take(queue) == ["before", 0, 1, *["again"] * 4]


def test_a_push_that_is_refused_queues_nothing(start_server: Callable[..., Server], clock: Clock) -> None:
    """TITAN-15: an ACL that denies one command of the script after another; a server at its maxmemory; a full queue."""
    clock.set()
    refusal = Refusal(start_server(), clock)
    try:
        queue, limited = refusal.client.queue("t"), refusal.limited.queue("t")
        limited.push("before")
        for command in ("get", "exists", "hmget", "hset", "zadd"):
            refusal.deny(command)
            for options in ({}, {"in_": 5}):
                with pytest.raises(ServerRefused):
                    limited.push_many([Item("X", **options), Item("Y", **options)])
            refusal.allow(command)
            assert queue.counts() == EMPTY | {"waiting": 1}, f"after {command} was denied"
        refusal.raw.config_set("maxmemory", 1)
        with pytest.raises(ServerFull):
            queue.push("X")
        refusal.raw.config_set("maxmemory", 0)
        queue.configure(max_size=2)
        with pytest.raises(QueueFull):
            queue.push_many(["X", "Y"])
        assert take(queue) == ["before"]
        assert queue.totals() == {"enqueued": 1, "succeeded": 1}
    finally:
        refusal.close()


def test_what_cannot_be_registered_is_not_queued(start_server: Callable[..., Server], clock: Clock) -> None:
    """TITAN-15: a server near its maxmemory may refuse one command of a round trip and take the next one."""
    refusal = Refusal(start_server(), clock)
    try:
        refusal.deny("sadd")
        tasks = [Task(id=new_id("t"), type="x", queue="t", payload=b"{}") for _ in range(2)]
        for enqueue in (
            lambda: refusal.limited.queue("t").push("X"),
            lambda: refusal.limited.enqueue(tasks[0]),
            lambda: refusal.limited.enqueue_many(tasks),
        ):
            with pytest.raises(ServerRefused):
                enqueue()
        assert refusal.client.queue("t").counts() == EMPTY
        refusal.allow("sadd")
        refusal.limited.enqueue_many(tasks)
        assert refusal.client.queues() == ["t"]
    finally:
        refusal.close()


def test_a_consumer_can_tell_a_job_it_has_seen(
    queue: Queue, clock: Clock, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """TITAN-16: pushed twice under one id it is one job, and its handler gets that id at every attempt."""
    assert [queue.push(payload, id="order-7") for payload in ("first", "second")] == ["order-7"] * 2
    assert queue.push_many([Item("third", id="order-7"), Item("other", id="order-8")]) == ["order-7", "order-8"]
    (lease, _) = queue.reserve(2, keepalive=LEASE_S)
    assert queue.push("fourth", id="order-7") == "order-7"
    clock.advance(LEASE_S * 1000)
    again, other = queue.reserve(2)
    assert [(one.id, one.payload) for one in (lease, again, other)] == [
        ("order-7", "first"), ("order-7", "first"), ("order-8", "other"),
    ]  # fmt: skip
    assert (again.commit(), other.commit()) == (True, True)
    assert queue.push("a new one", id="order-7") == "order-7"
    assert take(queue) == ["a new one"]

    clock.ms = None
    ledger = Ledger(tmp_path / "ledger")
    monkeypatch.setenv(VARIABLE, str(ledger.path))
    use(client)
    try:
        rows_jobs.Flaky(failures=2).enqueue(id="order-9")
        rows_jobs.Flaky(failures=0).enqueue(id="order-9")
        Worker([], ["t"], client=client).run(drain=True)
    finally:
        forget()
    assert [(entry.task, entry.attempt) for entry in ledger.entries("run")] == [("order-9", n) for n in (1, 2, 3)]


def test_a_delayed_job_is_not_enqueued_now(queue: Queue) -> None:
    """TITAN-17: with a delay of nothing or less it is."""
    queue.push("later", in_=1)
    queue.push_many([Item("later", in_=0.001), Item("later", in_=timedelta(days=1))])
    assert queue.counts() == EMPTY | {"scheduled": 3}
    assert queue.reserve() == queue.pop() == []
    for delay in (0, -1, timedelta(seconds=-5), None):
        queue.push("now", in_=delay)
    assert queue.counts() == EMPTY | {"scheduled": 3, "waiting": 4}
    assert take(queue) == ["now"] * 4


def test_a_delayed_job_is_available_after_its_delay_and_never_before(queue: Queue, clock: Clock) -> None:
    """TITAN-18: of a hundred none a microsecond before its time, all at it; and so on the server's clock."""
    queue.push_many([Item(number, in_=1) for number in range(100)])
    clock.advance(999.999)
    assert queue.reserve(100) == []
    clock.advance(0.001)
    assert take(queue) == list(range(100))

    clock.ms = None
    pushed = [(time.monotonic(), queue.push(number, in_=0.5)) for number in range(100)]
    seen = dict[str, float]()
    while len(seen) < 100:
        for lease in queue.reserve(100, wait=5):
            seen[lease.id] = time.monotonic()
            lease.commit()
    delays = [seen[job_id] - pushed_at for pushed_at, job_id in pushed]
    assert min(delays) >= 0.5
    assert max(delays) < 0.5 + SLACK_S


def test_close_releases_the_connections(
    queue: Queue, server: Server, keys: Keys, clock: Clock, raw: redis.Redis
) -> None:
    """TITAN-23: its connections and threads are gone; every use after it is an error that says so and sends nothing."""
    threads = set(threading.enumerate())
    known = {entry["id"] for entry in raw.client_list()}
    opened = Client(server.url, keys.prefix, now_ms=clock)
    own = opened.queue("t")
    task_id = own.push("X")
    (lease,) = own.reserve(wait=1)
    assert own.reserve(wait=0.01) == []
    with pytest.raises(TaskTimeout):
        opened.task(task_id).result(timeout=0.01)
    assert {entry["id"] for entry in raw.client_list()} > known
    opened.close()
    wait_for(lambda: {entry["id"] for entry in raw.client_list()} <= known)
    assert set(threading.enumerate()) <= threads
    asked = raw.info("stats")["total_connections_received"]
    for use_it in (own.reserve, own.counts, lambda: own.push("Y"), lease.commit, lease.extend, own.pop, opened.queues,
                   lambda: own.reserve(wait=1), opened.task(task_id).record, lambda: own.delete(task_id)):  # fmt: skip
        with pytest.raises(ClientClosed, match="open a new one"):
            use_it()
    opened.close()
    assert raw.info("stats")["total_connections_received"] == asked
    assert queue.counts() == EMPTY | {"pending": 1}
    with Client(server.url, keys.prefix, now_ms=clock) as reopened:
        assert reopened.queue("t").delete(task_id) is True
