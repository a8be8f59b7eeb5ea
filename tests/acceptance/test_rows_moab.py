"""The rows MOAB-01 to MOAB-33 of the queue's semantics, each through the API that users have.

Time is set by the test wherever a row is about time; a row about processes gets real ones, and real signals.
"""

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, Lease, Queue, Worker
from jobrunner.broker.keys import Keys
from jobrunner.errors import (
    InvalidOption,
    NaiveDatetime,
    NotReserved,
    OutcomeUnknown,
    PayloadTooLarge,
    UnsafeServer,
    UsageError,
)
from jobrunner.soak.fault_proxy import FaultProxy
from tests.acceptance.fleet import Fleet, WorkerProcess, wait_ended
from tests.acceptance.ledger import Entry
from tests.acceptance.row_children import (
    JOBS,
    Child,
    LongOnce,
    Quit,
    Step,
    act_at_random,
    push_numbers,
    reserve_and_leave,
    sleep_over_lease,
    take_and_commit,
    take_until_empty,
)
from tests.support.clock import Clock
from tests.support.server import Server
from tests.support.waiting import wait_for

Audit = Callable[..., dict[str, int]]
Start = Callable[..., Child]
YEAR_MS = 365.25 * 86_400_000


def states(**counts: int) -> dict[str, int]:
    """The result of `counts` and `audit`, with zeros for all states that are not passed."""
    return {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0} | counts


@pytest.fixture
def queue(client: Client) -> Queue:
    return client.queue("q")


def take(queue: Queue) -> Lease:
    """The only lease that there is to be had."""
    (lease,) = queue.reserve(100)
    return lease


def take_all(queue: Queue, n: int = 100) -> list[Lease]:
    """Leases of all waiting tasks, `n` at a time."""
    return [lease for batch in iter(lambda: queue.reserve(n), []) for lease in batch]


def total(counts: dict[str, int]) -> int:
    return sum(counts.values())


def server_ms(raw: redis.Redis) -> float:
    seconds, microseconds = raw.time()
    return seconds * 1000 + microseconds / 1000


def test_a_queue_hands_out_in_its_own_order(client: Client, raw: redis.Redis, audit: Audit) -> None:
    """MOAB-01: two queues share no order, and asking one that was never used finds nothing and creates nothing."""
    mine, other = client.queue("mine"), client.queue("other")
    for n in range(100):
        mine.push(n)
        other.push(-n)
    assert [lease.payload for lease in take_all(mine, 1)] == list(range(100))
    assert [lease.payload for lease in take_all(other, 1)] == [-n for n in range(100)]
    known = set(raw.keys())
    never = client.queue("never")
    assert never.reserve() == never.pop() == never.ids("waiting") == []
    assert (never.counts(), never.totals(), never.delete("x"), never.is_paused()) == (states(), {}, False, False)
    assert set(raw.keys()) == known
    assert audit("mine") == audit("other") == states(pending=100)


PAYLOADS = [b"", os.urandom(1024 * 1024), "nul \0 and \N{GRINNING FACE}"]
OPAQUE = [os.urandom(4096), b'{"a":[],"n":130775545883395173}', b"[]", {"a": [], "n": 2**53 + 1}]


def follow(client: Client, clock: Clock, payload: object) -> Iterator[object]:
    """The payload at the first attempt, after a failed attempt, and after a move."""
    clock.set()
    raw_queue = client.queue("line/raw")
    raw_queue.push(payload)
    first = take(raw_queue)
    yield first.payload
    first.rollback(delay=0)
    clock.advance(1)
    second = take(raw_queue)
    yield second.payload
    second.move("clean")
    last = take(client.queue("line/clean"))
    yield last.payload
    last.commit()


@pytest.mark.parametrize("payload", PAYLOADS, ids=["empty", "1 MiB", "text"])
def test_a_payload_comes_back_as_it_was_sent(client: Client, clock: Clock, audit: Audit, payload: Any) -> None:
    """MOAB-02: at the first attempt, after a failed one, and after a move."""

    def digest(value: Any) -> str:
        return sha256(value if isinstance(value, bytes) else value.encode()).hexdigest()

    assert [digest(found) for found in follow(client, clock, payload)] == [digest(payload)] * 3
    assert audit("line/raw") == audit("line/clean") == states()


@pytest.mark.parametrize("payload", OPAQUE, ids=["noise", "like JSON", "empty list", "JSON"])
def test_nobody_looks_inside_a_payload(client: Client, clock: Clock, audit: Audit, payload: Any) -> None:
    """MOAB-03: ciphertext, JSON that a round trip through Lua would damage, and bytes that look like it."""
    found = list(follow(client, clock, payload))
    assert found == [payload] * 3
    assert {type(one) for one in found} == {type(payload)}
    assert audit("line/raw") == audit("line/clean") == states()


def test_a_thousand_operations_and_ten_kills_leave_no_index_astray(
    client: Client, clock: Clock, raw: redis.Redis, start: Start, audit: Audit
) -> None:
    """MOAB-04: every id in a set has a hash, every live hash is in exactly one set, and all that is left is usable."""
    names = ("mix/a", "mix/b")
    queues = [client.queue(name) for name in names]
    rng = random.Random(4)
    children = [start(act_at_random, names, seed) for seed in range(3)]
    for seed in range(3, 13):
        victim = children.pop(0)
        heard = [victim.hear() for _ in range(rng.randint(90, 130))]
        assert all(heard), "the child ended by itself"
        victim.kill()
        children.append(start(act_at_random, names, seed))
    for child in children:
        child.kill()
    assert [queue.counts() for queue in queues] == [audit(name) for name in names]
    assert total(audit("mix/a")) + total(audit("mix/b")) > 0
    clock.set(server_ms(raw) + 60_000)
    for queue in queues:
        wait_for(lambda queue=queue: _emptied(queue))
    assert audit("mix/a") == audit("mix/b") == states()


def _emptied(queue: Queue) -> bool:
    queue.pop(1000)
    queue.requeue_dead()
    return total(queue.counts()) == 0


def test_the_line_is_ordered_by_due_time(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-05: whatever the order of the calls."""
    clock.set()
    queue.push("B", in_=2)
    queue.push("A", in_=1)
    clock.advance(3000)
    assert [lease.payload for lease in queue.reserve(2)] == ["A", "B"]
    assert audit("q") == states(pending=2)


def test_a_batch_is_enqueued_whole_and_in_order(queue: Queue, audit: Audit) -> None:
    """MOAB-06: batches of 0, 1 and 1 000, and one with an id twice."""
    assert queue.push_many([]) == []
    (alone,) = queue.push_many(["alone"])
    ids = queue.push_many(range(1000))
    twin = queue.push_many([Item("first", id="twin"), Item("second", id="twin")])
    assert twin == ["twin", "twin"]
    assert queue.counts() == states(waiting=1002)
    leases = take_all(queue)
    assert [lease.payload for lease in leases] == ["alone", *range(1000), "first"]
    assert [lease.id for lease in leases] == [alone, *ids, "twin"]
    assert audit("q") == states(pending=1002)


def test_what_was_acknowledged_survives_the_server(start_server: Callable[..., Server]) -> None:
    """MOAB-07: append-only file, always synced; 500 tasks, kill -9, restart, 500 tasks."""
    server = start_server(appendonly="yes", appendfsync="always")
    with Client(server.url, "kept") as client:
        queue = client.queue("q")
        ids = [queue.push(n) for n in range(500)]
        server.kill()
        server.start()
        assert queue.counts() == states(waiting=500)
        assert [(lease.id, lease.payload) for lease in take_all(queue)] == list(zip(ids, range(500), strict=True))
        assert queue.totals()["enqueued"] == 500


def test_a_worker_refuses_a_server_that_may_evict_tasks(start_server: Callable[..., Server]) -> None:
    """MOAB-07: unless it is explicitly allowed."""
    server = start_server(maxmemory="50mb", maxmemory_policy="allkeys-lru")
    with Client(server.url, "evicted") as client:
        with pytest.raises(UnsafeServer, match=r"'allkeys-lru'.*noeviction"):
            Worker(queues=["q"], client=client).start()
        permitted = Worker(queues=["q"], client=client, allow_eviction=True)
        permitted.start()
        permitted.stop(0)


BAD_ITEMS = [
    pytest.param(lambda: Item(b"x" * (1024 * 1024 + 1)), PayloadTooLarge, id="too large"),
    pytest.param(lambda: Item("x", priority=7), InvalidOption, id="priority"),
    pytest.param(lambda: Item(object()), UsageError, id="no JSON"),
    pytest.param(lambda: Item("x", at=float("nan")), InvalidOption, id="no instant"),
]


@pytest.mark.parametrize("position", [0, 50, 99])
@pytest.mark.parametrize(("bad", "error"), BAD_ITEMS)
def test_one_bad_item_refuses_the_whole_batch(
    queue: Queue, raw: redis.Redis, bad: Callable[[], Item], error: type[Exception], position: int
) -> None:
    """MOAB-08: together with 99 good ones, and nothing was written."""
    batch: list[Any] = list(range(99))
    batch.insert(position, bad())
    with pytest.raises(error):
        queue.push_many(batch)
    assert queue.counts() == states()
    assert raw.dbsize() == 0


def test_a_new_task_can_be_picked_up_at_once(queue: Queue, audit: Audit) -> None:
    """MOAB-09: a thousand times, without one empty answer, on the server's own clock."""
    latencies = []
    for n in range(1000):
        began = time.perf_counter()
        queue.push(n)
        lease = take(queue)
        latencies.append(time.perf_counter() - began)
        assert lease.payload == n
        lease.commit()
    assert sorted(latencies)[100] < 0.05, "the slower ones may be the machine's, and none was empty"
    assert queue.totals() == {"enqueued": 1000, "succeeded": 1000}
    assert audit("q") == states()


NOW_S = 1_700_000_000
LATER = [
    pytest.param({"in_": 1}, 1000, id="int"),
    pytest.param({"in_": 1.0}, 1000, id="float"),
    pytest.param({"in_": timedelta(seconds=1)}, 1000, id="timedelta"),
    pytest.param({"in_": 0.001}, 1, id="a millisecond"),
    pytest.param({"at": NOW_S + 1}, 1000, id="at int"),
    pytest.param({"at": NOW_S + 1.0}, 1000, id="at float"),
    pytest.param({"at": datetime.fromtimestamp(NOW_S + 1, UTC)}, 1000, id="at datetime"),
    pytest.param({"in_": timedelta(days=3652.5)}, 10 * YEAR_MS, id="ten years"),
]


@pytest.mark.parametrize(("option", "due_in_ms"), LATER)
def test_a_task_for_later_stays_invisible_until_then(
    queue: Queue, clock: Clock, audit: Audit, option: dict[str, Any], due_in_ms: float
) -> None:
    """MOAB-10: reserved fifty times before it is due."""
    began = clock.set(NOW_S * 1000)
    queue.push("later", **option)
    for step in range(50):
        clock.set(began + due_in_ms * step / 50)
        assert queue.reserve() == []
    assert queue.counts() == states(scheduled=1)
    clock.set(began + due_in_ms)
    assert take(queue).payload == "later"
    assert audit("q") == states(pending=1)


def test_a_time_without_a_zone_is_refused(queue: Queue, raw: redis.Redis) -> None:
    """MOAB-10"""
    with pytest.raises(NaiveDatetime, match="no time zone"):
        queue.push("when?", at=datetime(2040, 1, 1))
    assert raw.dbsize() == 0


PAST = [
    pytest.param({"at": NOW_S - 3600}, id="an hour ago"),
    pytest.param({"at": 0}, id="1970"),
    pytest.param({"at": -5.5}, id="negative"),
    pytest.param({"at": 999_999_999}, id="2001"),
    pytest.param({"at": datetime(1, 1, 1, tzinfo=UTC)}, id="the year 1"),
    pytest.param({"in_": -3600}, id="negative delay"),
]


@pytest.mark.parametrize("option", PAST)
def test_a_time_in_the_past_means_now(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, audit: Audit, option: dict[str, Any]
) -> None:
    """MOAB-11: it cannot jump the queue, nor block its head."""
    now = clock.set(NOW_S * 1000)
    queue.push("X")
    past = queue.push("Y", **option)
    queue.push("Z")
    place = raw.hget(keys.queue("q").task(past), "place")
    assert place is not None
    assert float(place) >= now
    assert [lease.payload for lease in queue.reserve(3)] == ["X", "Y", "Z"]
    assert audit("q") == states(pending=3)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), True, "now"])
def test_what_is_no_time_is_refused(queue: Queue, raw: redis.Redis, at: Any) -> None:
    """MOAB-11"""
    with pytest.raises(InvalidOption, match="at="):
        queue.push("when?", at=at)
    assert raw.dbsize() == 0


def test_five_hundred_tasks_may_share_one_due_time(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-12: each comes out once, in the order they were enqueued, in one call or in many."""
    at = clock.set(NOW_S * 1000) / 1000 + 60
    sent = queue.push_many(Item(n, at=at) for n in range(250))
    sent += [queue.push(n, at=at) for n in range(250, 500)]
    assert queue.reserve(500) == []
    clock.advance(60_001)
    leases = take_all(queue, 30)
    assert [lease.id for lease in leases] == sent
    assert [lease.payload for lease in leases] == list(range(500))
    assert audit("q") == states(pending=500)


@pytest.mark.parametrize("off_s", [3600, -3600])
def test_now_is_the_time_of_the_server(
    queue: Queue, raw: redis.Redis, audit: Audit, monkeypatch: pytest.MonkeyPatch, off_s: int
) -> None:
    """MOAB-13: the clock of the producer is an hour wrong; a delay of a second lasts a second."""
    true_ns, true_s = time.time_ns, time.time
    with monkeypatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: true_ns() + off_s * 10**9)
        patched.setattr(time, "time", lambda: true_s() + off_s)
        queue.push("now")
        assert take(queue).payload == "now"
        before = server_ms(raw)
        queue.push("in a second", in_=1)
        after = server_ms(raw)
    (lease,) = queue.reserve(wait=30)
    seen = server_ms(raw)
    assert lease.payload == "in a second"
    assert before + 1000 <= seen <= after + 1000 + 30_000, "a busy machine is late by seconds, a wrong clock by an hour"
    assert audit("q") == states(pending=2)


def test_a_clock_that_steps_back_loses_nothing_and_keeps_the_order(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-14: five seconds back between two calls; neither is stuck until the clock is where it was."""
    clock.set()
    queue.push("A")
    clock.advance(-5000)
    queue.push("B")
    clock.advance(1)
    queue.push("C")
    assert [lease.payload for lease in queue.reserve(10)] == ["A", "B", "C"]
    assert audit("q") == states(pending=3)


def test_one_producer_is_served_in_its_order(queue: Queue, audit: Audit) -> None:
    """MOAB-15: 2 000 calls."""
    for n in range(2000):
        queue.push(n)
    assert [lease.payload for lease in take_all(queue)] == list(range(2000))
    assert audit("q") == states(pending=2000)


def test_each_of_many_producers_is_served_in_its_order(queue: Queue, start: Start, audit: Audit) -> None:
    """MOAB-15: four processes with 500 calls each, at the same time."""
    producers = [start(push_numbers, "q", name, 500) for name in "abcd"]
    for producer in producers:
        assert producer.hear() is None
    served = [lease.payload for lease in take_all(queue)]
    for name in "abcd":
        assert [n for own, n in served if own == name] == list(range(500))
    assert len(set(map(tuple, served))) == 2000
    assert audit("q") == states(pending=2000)


def test_the_queue_pushes_nothing_to_a_worker_that_does_not_ask(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-16: two seconds of other people's pushing and counting give it nothing new."""
    clock.set()
    queue.push_many(range(5))
    (held,) = queue.reserve()
    for n in range(20):
        clock.advance(100)
        queue.push(n)
        assert queue.counts() == states(waiting=4 + n + 1, pending=1)
        assert queue.ids("pending") == [held.id]
    assert audit("q") == states(waiting=24, pending=1)


@pytest.mark.processes
def test_an_idle_worker_is_cheap(fleet: Fleet, raw: redis.Redis) -> None:
    """MOAB-17: at most 12 calls about its queue while it polls ten times, and less than 2 % of a CPU.

    The best of five looks counts: its processes may still be starting, and a busy machine adds to what they use.
    """
    idle = fleet.start_one(modules=[JOBS], queues=["idle"], poll=0.3)
    for looks_left in reversed(range(5)):
        calls, burnt = _watch(raw, [idle.pid, *idle.children()])
        if burnt < 0.02 and 5 <= len(calls) <= 12:
            return
        assert looks_left, f"{len(calls)} calls in ten polls, {burnt:.1%} of a CPU: {calls}"


def _watch(raw: redis.Redis, processes: list[int]) -> tuple[list[str], float]:
    """The calls about the queue "idle" in three seconds, and the part of a CPU the processes used."""
    calls, lasted_s, burnt = list[str](), 0.0, _cpu_s(processes)
    with raw.monitor() as monitor:
        began = time.monotonic()
        for command in monitor.listen():
            lasted_s = time.monotonic() - began
            if lasted_s >= 3:
                break
            if command["client_type"] != "lua" and "{idle}" in command["command"]:
                calls.append(command["command"][:50])
    return calls, (_cpu_s(processes) - burnt) / lasted_s


def _cpu_s(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def test_a_task_is_handed_out_from_its_due_time_on(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-18: a microsecond before it there is nothing, at it there is one; the oldest goes first."""
    due = clock.set() + 1000
    queue.push("second", in_=1.5)
    queue.push("first", in_=1)
    clock.set(due - 0.001)
    assert queue.reserve(10) == []
    clock.set(due)
    assert take(queue).payload == "first"
    clock.set(due + 500)
    assert take(queue).payload == "second"
    assert audit("q") == states(pending=2)


def test_a_task_goes_to_one_worker_only(queue: Queue, start: Start, audit: Audit) -> None:
    """MOAB-19: four processes at once, 2 000 tasks, no task twice."""
    takers = [start(take_until_empty, "q", 3) for _ in range(4)]
    for taker in takers:
        assert taker.hear() == "ready"
    sent = queue.push_many(range(2000))
    taken = list[str]()
    for _ in ("once", "until it is empty"):
        for taker in takers:
            taker.say("go")
        taken += itertools.chain(*(taker.hear() for taker in takers))
    assert Counter(taken) == Counter(sent)
    assert audit("q") == states(pending=2000)


def test_an_attempt_is_delivered_once_whoever_is_killed(queue: Queue, start: Start, audit: Audit) -> None:
    """MOAB-20: seven consumers are killed; no pair of id and attempt is seen twice."""
    queue.configure(keepalive=0.2, max_attempts=0)
    rng, sent, delivered = random.Random(20), list[str](), list[tuple[str, int]]()
    for _ in range(7):
        taker = start(take_and_commit, "q")
        sent += queue.push_many(range(40))
        delivered += [taker.hear() for _ in range(rng.randint(5, 20))]
        taker.kill()
        delivered += taker.hear_all()
    last = start(take_and_commit, "q")
    wait_for(lambda: queue.totals().get("succeeded") == len(sent))
    last.say("enough")
    delivered += last.hear_all()
    assert {task for task, _ in delivered} == set(sent)
    assert len(delivered) == len(set(delivered)), "an attempt was delivered twice"
    assert max(attempts for _, attempts in delivered) > 1, "the kills hit nothing"
    assert audit("q") == states()


def test_an_attempt_whose_reply_is_lost_is_spent(
    queue: Queue, fault_proxy: FaultProxy, keys: Keys, clock: Clock, audit: Audit
) -> None:
    """MOAB-20: the task comes back as the second attempt when the lease is over, and never as the first again."""
    clock.set()
    with Client(fault_proxy.url, keys.prefix, now_ms=clock) as cut_off:
        far = cut_off.queue("q")
        assert far.reserve() == [], "it knows by now that the queue has no partitions"
        queue.push("once")
        fault_proxy.cut_reply = 0
        with pytest.raises(OutcomeUnknown, match="applied or it was not"):
            far.reserve(keepalive=2)
    clock.advance(1999)
    assert queue.reserve() == []
    assert audit("q") == states(pending=1)
    clock.advance(1)
    assert take(queue).attempts == 2
    assert audit("q") == states(pending=1)


def test_attempts_count_the_times_a_task_was_picked_up(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-21: one at first, two after an ended lease, three after a failure; a release spends none."""
    clock.set()
    queue.configure(keepalive=1)
    queue.push("x")
    assert take(queue).attempts == 1
    clock.advance(1000)
    second = take(queue)
    assert second.attempts == 2
    second.rollback(delay=0)
    clock.advance(1)
    third = take(queue)
    assert third.attempts == 3
    third.release()
    assert take(queue).attempts == 3
    assert audit("q") == states(pending=1)


def test_a_task_changes_its_index_in_one_step(queue: Queue, server: Server, keys: Keys, audit: Audit) -> None:
    """MOAB-22: a reader sees each of 2 000 tasks in exactly one state while they are reserved."""
    queue.push_many(range(2000))
    own, seen, done = keys.queue("q"), list[tuple[int, int]](), threading.Event()

    def look() -> None:
        with server.connect() as connection:
            while not done.is_set():
                pipeline = connection.pipeline(transaction=True)
                seen.append(tuple(pipeline.zcard(own.waiting).zcard(own.pending).execute()))

    observer = threading.Thread(target=look)
    observer.start()
    wait_for(lambda: seen)
    leases = take_all(queue, 1)
    done.set()
    observer.join()
    assert len(leases) == 2000
    assert {waiting + pending for waiting, pending in seen} == {2000}
    assert len(set(seen)) > 10, "the observer saw nothing of it"
    assert audit("q") == states(pending=2000)


def test_a_lease_ends_its_keepalive_from_now(queue: Queue, raw: redis.Redis, keys: Keys, audit: Audit) -> None:
    """MOAB-23: by the clock of the server, and the lease knows it."""
    queue.push("x", keepalive=7)
    before = server_ms(raw)
    lease = take(queue)
    after = server_ms(raw)
    ends = raw.zscore(keys.queue("q").pending, lease.id)
    assert isinstance(ends, float)
    assert before + 7000 <= ends <= after + 7000
    assert abs(lease.deadline.timestamp() * 1000 - ends) < 1
    assert audit("q") == states(pending=1)


def test_a_task_may_have_a_keepalive_of_its_own(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-24: else that of the call counts, else that of the queue as it is when the task is reserved."""
    clock.set()
    queue.configure(keepalive=60)
    a, b = queue.push_many([Item("A", keepalive=1), "B"])
    queue.configure(keepalive=5)
    assert len(queue.reserve(2)) == 2
    c, d = queue.push_many([Item("C", keepalive=1), "D"])
    assert len(queue.reserve(2, keepalive=3)) == 2
    ends = {}
    for ms in (999, 1000, 2999, 3000, 4999, 5000):
        clock.set(NOW_S * 1000 + ms)
        queue.counts()
        ends[ms] = set(queue.ids("waiting"))
    assert ends == {
        999: set(), 1000: {a, c}, 2999: {a, c}, 3000: {a, c, d}, 4999: {a, c, d}, 5000: {a, b, c, d},
    }  # fmt: skip
    assert audit("q") == states(waiting=4)


@pytest.mark.parametrize("keepalive", [0, -1, float("nan"), "5"])
def test_a_keepalive_out_of_range_is_refused(queue: Queue, raw: redis.Redis, keepalive: Any) -> None:
    """MOAB-24"""
    for ask in (lambda: queue.push("x", keepalive=keepalive), lambda: queue.reserve(keepalive=keepalive)):
        with pytest.raises(InvalidOption, match="keepalive"):
            ask()
    with pytest.raises(InvalidOption, match="keepalive"):
        queue.configure(keepalive=keepalive)
    assert raw.dbsize() == 0


REPORTS = [Lease.commit, Lease.rollback, Lease.release, Lease.extend]


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize(("at_ms", "is_taken"), [(1800, True), (1999.999, True), (2000, False), (2200, False)])
def test_a_report_counts_until_the_lease_is_over(
    queue: Queue, clock: Clock, audit: Audit, report: Callable[[Lease], bool], at_ms: float, is_taken: bool
) -> None:
    """MOAB-25: the deadline decides, not whether anyone has swept yet; a refused report changes nothing."""
    began = clock.set()
    queue.push("x", keepalive=2)
    lease = take(queue)
    clock.set(began + at_ms)
    if is_taken:
        assert report(lease) is True
    else:
        with pytest.raises(NotReserved, match="changed nothing"):
            report(lease)
        assert audit("q") == states(pending=1)
        assert queue.counts() == states(waiting=1)
    assert audit("q") == queue.counts()


def test_a_report_that_is_none_is_refused_before_it_is_sent(queue: Queue, raw: redis.Redis, audit: Audit) -> None:
    """MOAB-26: there are five reports, and what is wrong with one is found without the server."""
    queue.push("x")
    lease = take(queue)
    reports = {name for name in dir(Lease) if callable(getattr(Lease, name)) and not name.startswith("_")}
    assert reports == {"commit", "rollback", "release", "extend", "move"}
    asked = raw.info("stats")["total_commands_processed"]
    for wrong in (
        lambda: lease.commit(result=object()),
        lambda: lease.rollback(delay="soon"),  # type: ignore[arg-type]
        lambda: lease.rollback(delay=-1),
        lambda: lease.move("q", priority=9),
        lambda: lease.move("other-pipeline/q"),
        lambda: lease.move("q", payload=object()),
    ):
        with pytest.raises(UsageError):
            wrong()
    assert raw.info("stats")["total_commands_processed"] == asked + 1
    assert audit("q") == states(pending=1)
    assert lease.commit() is True


def test_a_report_made_twice_finds_the_task_gone(queue: Queue, audit: Audit) -> None:
    """MOAB-26: and a report on a task without a lease is refused."""
    done, unheld = queue.push_many(["done", "unheld"])
    (lease,) = queue.reserve()
    assert lease.commit() is True
    assert [report(lease) for report in (*REPORTS, lambda lease: lease.move("q"))] == [False] * 5
    assert queue.delete(done) is False
    with pytest.raises(NotReserved, match=unheld):
        queue.delete(unheld)
    (held,) = queue.reserve()
    held.release()
    with pytest.raises(NotReserved, match=unheld):
        held.commit()
    assert queue.totals() == {"enqueued": 2, "succeeded": 1}
    assert audit("q") == states(waiting=1)


def test_a_lease_may_be_renewed_without_limit(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-27: for a hundred times its length, while other consumers poll the queue."""
    clock.set()
    queue.push("long", keepalive=1)
    lease = take(queue)
    for _ in range(250):
        clock.advance(400)
        assert lease.extend() is True
        assert queue.reserve() == []
    assert lease.commit() is True
    assert queue.totals() == {"enqueued": 1, "succeeded": 1}
    assert audit("q") == states()


def test_a_worker_renews_the_lease_of_a_job_that_only_sleeps(fleet: Fleet, client: Client, audit: Audit) -> None:
    """MOAB-27: a keepalive of one second, two and a half seconds in one call; it runs once."""
    fleet.start_one(modules=[JOBS], queues=["rows"])
    task = Step(seconds=2.5).enqueue()
    task.result(timeout=10)
    assert [entry.attempt for entry in fleet.ledger.entries("start")] == [1]
    assert task.attempts == 1
    assert client.queue("rows").totals() == {"enqueued": 1, "succeeded": 1}
    assert audit("rows") == states()


def test_success_removes_the_task(queue: Queue, raw: redis.Redis, keys: Keys, audit: Audit) -> None:
    """MOAB-28: it is in no set, it has no hash, and all counts are 0."""
    task = queue.push("x")
    take(queue).commit()
    own = keys.queue("q")
    assert not raw.exists(own.task(task))
    assert [raw.zscore(members, task) for members in (own.waiting, own.scheduled, own.pending, own.dead)] == [None] * 4
    assert raw.zscore(own.leases, task) is None
    assert queue.counts() == audit("q") == states()


def test_a_renewal_counts_from_now_with_the_keepalive_of_the_task(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOAB-29: not with that of the queue, and never to an earlier end."""
    began = clock.set()
    queue.configure(keepalive=60)
    queue.push("x", keepalive=2)
    lease = take(queue)
    pending = keys.queue("q").pending
    clock.set(began + 1500)
    lease.extend()
    assert raw.zscore(pending, lease.id) == began + 3500
    assert lease.deadline.timestamp() * 1000 == began + 3500
    clock.set(began + 500)
    lease.extend()
    assert raw.zscore(pending, lease.id) == began + 3500
    assert audit("q") == states(pending=1)


def test_a_failed_task_is_tried_again(queue: Queue, clock: Clock, audit: Audit) -> None:
    """MOAB-30: until its attempts are spent."""
    clock.set()
    queue.push("x", max_attempts=3)
    for attempt in (1, 2):
        lease = take(queue)
        assert lease.attempts == attempt
        lease.rollback(delay=1, error="no")
        assert queue.reserve() == []
        assert audit("q") == states(scheduled=1)
        clock.advance(1000)
    assert take(queue).rollback(delay=1, error="no") is True
    clock.advance(1000)
    assert queue.reserve() == []
    assert queue.totals() == {"enqueued": 1, "failed": 3, "dead": 1}
    assert audit("q") == states(dead=1)


def test_the_task_of_a_killed_worker_goes_to_another_when_its_lease_ends(
    fleet: Fleet, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """MOAB-31: not before, and within half a second. More tries, in case the machine itself stalls for as long."""
    late_s = [_seconds_late(fleet, raw, keys)]
    while late_s[-1] > 0.5 and len(late_s) < 8:
        late_s.append(_seconds_late(fleet, raw, keys))
    assert -0.002 <= min(late_s) <= 0.5, late_s
    assert audit("rows") == states()


def _seconds_late(fleet: Fleet, raw: redis.Redis, keys: Keys) -> float:
    """From the end of the lease of a worker that was killed with its keeper to the next start of its task."""
    workers = {worker.pid: worker for worker in fleet.start(2, modules=[JOBS], queues=["rows"], concurrency=1)}
    task = LongOnce().enqueue()

    def starts() -> list[Entry]:
        return [entry for entry in fleet.ledger.entries("start") if entry.task == task.id]

    (first,) = wait_for(starts)
    victim = workers.pop(first.pid)
    keeper = victim.children()
    for pid in keeper:
        os.kill(pid, signal.SIGSTOP)  # or it would hand the task back at once
    victim.kill()
    for pid in keeper:
        os.kill(pid, signal.SIGKILL)
    wait_ended(keeper)
    ends = raw.zscore(keys.queue("rows").pending, task.id)
    assert isinstance(ends, float)
    _, second = wait_for(lambda: len(starts()) == 2 and starts())
    ((pid, other),) = workers.items()
    assert (second.pid, second.attempt) == (pid, 2)
    task.result(timeout=30)
    other.kill()
    return second.at + (time.time() - time.monotonic()) - ends / 1000


def test_the_report_of_a_worker_that_overslept_is_refused(queue: Queue, start: Start, audit: Audit) -> None:
    """MOAB-31: SIGSTOP for longer than the lease; another has the task by then."""
    queue.configure(keepalive=0.5)
    task = queue.push("x")
    sleeper = start(sleep_over_lease, "q")
    assert sleeper.hear() == task
    (lease,) = queue.reserve(wait=5, keepalive=30)
    assert lease.attempts == 2
    sleeper.signal(signal.SIGCONT)
    assert sleeper.hear() == "LeaseLost"
    assert audit("q") == states(pending=1)
    assert lease.commit() is True
    assert audit("q") == states()


def test_only_success_deletes_a_task(fleet: Fleet, client: Client, start: Start, audit: Audit) -> None:
    """MOAB-32: not an error, sys.exit, os._exit, SIGTERM in mid-job, a result that is none, or silence."""
    ways = ("raise", "exit", "generator", "vanish", "hang")
    workers = {way: fleet.launch(modules=[JOBS], queues=[way], grace=0.1) for way in ways[2:]}
    for way in ways:
        Quit(how=way).enqueue(queue=way)
    by_hand = client.queue("by-hand")
    by_hand.push("x", keepalive=0.1)
    assert start(reserve_and_leave, "by-hand").hear() is None
    _run_to_its_end(fleet, workers, client)
    assert wait_for(by_hand.reserve)[0].attempts == 2
    left = {way: audit(way) for way in (*ways, "by-hand")}
    assert {way: total(counts) for way, counts in left.items()} == dict.fromkeys(left, 1)
    assert left["hang"] == states(waiting=1)
    assert left["generator"] == states(dead=1)
    assert not any("succeeded" in client.queue(way).totals() for way in left)


def _run_to_its_end(fleet: Fleet, workers: dict[str, WorkerProcess], client: Client) -> None:
    both = fleet.start_one(modules=[JOBS], queues=["raise", "exit"])
    for way in ("raise", "exit"):
        wait_for(lambda way=way: client.queue(way).totals().get("failed"))
    wait_for(lambda: client.queue("generator").totals().get("failed"))
    assert both.alive
    workers["vanish"].wait()
    wait_for(lambda: "hang" in {entry.note for entry in fleet.ledger.entries("start")})
    workers["hang"].stop()
    assert workers["hang"].summary()["released"] == 1


@pytest.mark.processes
def test_killed_workers_and_lost_replies_cost_no_task(
    fleet: Fleet, client: Client, fault_proxy: FaultProxy, audit: Audit
) -> None:
    """MOAB-33: 200 tasks, three workers on a bad line; one is killed every thirty tasks, replies are cut on the way."""
    options = {"modules": [JOBS], "queues": ["rows"], "concurrency": 5, "url": fault_proxy.url}
    rng, rows = random.Random(33), client.queue("rows")
    workers = fleet.start(3, **options)
    tasks = Step.enqueue_many([Step(seconds=0.1) for _ in range(200)])
    for ended in range(15, 200, 15):
        wait_for(lambda ended=ended: len(fleet.ledger.times("end")) >= ended)
        fault_proxy.cut_reply = rng.randrange(1500)
        if ended % 30 == 0 and ended < 150:
            workers.pop(0).kill()
            workers.append(fleet.launch(**options))
    wait_for(lambda: total(rows.counts() | {"dead": 0}) == 0, timeout_s=20)
    assert set(fleet.ledger.times("end")) | set(rows.ids("dead")) == {task.id for task in tasks}
    totals = rows.totals()
    assert totals["enqueued"] == 200 == totals["succeeded"] + totals.get("dead", 0)
    assert totals.get("recovered"), "the faults hit nothing"
    starts = [(entry.task, entry.attempt) for entry in fleet.ledger.entries("start")]
    assert len(starts) == len(set(starts)), "an attempt was delivered twice"
    assert audit("rows") == states(dead=totals.get("dead", 0))
