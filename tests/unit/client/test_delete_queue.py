"""Queues are deleted with all that belongs to them, and lose nothing that is enqueued meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import redis

from jobrunner import Client, Item, Job, PeriodicJob, RateLimit, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import batches, queues
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.batches import Batches
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.coordinator.scan import ScanBudget
from jobrunner.errors import BatchLost, InvalidName, QueueNotEmpty, UsageError
from jobrunner.jobs.build import published
from jobrunner.jobs.registry import forget, lookup
from jobrunner.task import Lock, Task, new_id
from tests.support.clock import Clock
from tests.support.waiting import wait_for

WEEK_MS = 604_800_000


def left_of(raw: redis.Redis, keys: Keys, tag: str = "mail") -> list[bytes]:
    """Keys of a tag; notes of calls that were applied expire within seconds."""
    return [key for key in raw.keys(f"{keys.prefix}:{{{tag}}}:*") if b":sent:" not in key]


def test_a_drained_queue_leaves_nothing(way: Any, raw: redis.Redis, keys: Keys) -> None:
    queue = way.queue("mail")
    queue.configure(max_inflight=3)
    queue.push("x")
    queue.reserve()[0].commit()
    assert way.queues() == ["mail"]

    assert queue.delete() is True
    assert way.queues() == []
    assert left_of(raw, keys) == []
    assert queue.delete() is False
    assert raw.xrevrange(keys.events, count=1)[0][1][b"kind"] == b"queue_deleted"


@pytest.mark.parametrize("state", ["waiting", "scheduled", "pending", "dead", "done"])
def test_what_holds_anything_is_deleted_by_force_only(way: Any, raw: redis.Redis, keys: Keys, state: str) -> None:
    queue = way.queue("mail")
    queue.configure(max_attempts=1, history=60)
    queue.push("x", **({"in_": 60} if state == "scheduled" else {}))
    if state in ("pending", "dead", "done"):
        (lease,) = queue.reserve()
        if state == "dead":
            lease.rollback(error="no")
        if state == "done":
            lease.commit()
    with pytest.raises(QueueNotEmpty, match=f"holds 1 {state}"):
        queue.delete()
    assert queue.counts()[state] == 1

    assert queue.delete(force=True)
    assert left_of(raw, keys) == []
    assert way.queues() == []


def test_all_groups_of_errors_go_with_their_queue(way: Any, raw: redis.Redis, keys: Keys) -> None:
    errors = keys.queue("mail").errors
    for group in ("g1", "g2", "g3"):
        raw.zadd(errors, {group: 1})
        raw.hset(errors + b":" + group.encode(), "count", 1)
    way.queue("mail").push("x")

    assert way.queue("mail").delete(force=True)
    assert left_of(raw, keys) == []


def test_history_whose_records_are_gone_is_deleted(way: Any, raw: redis.Redis, keys: Keys) -> None:
    queue = way.queue("mail")
    queue.configure(history=60)
    queue.push("x", id="x")
    queue.reserve()[0].commit()
    assert raw.delete(keys.queue("mail").task("x"))

    assert queue.delete(force=True)
    assert left_of(raw, keys) == []


def test_more_than_a_slice_is_deleted(way: Any, raw: redis.Redis, keys: Keys) -> None:
    queue = way.queue("mail")
    queue.push_many([Item(n, partition=f"k{n % 700}") for n in range(1400)])
    queue.configure(fair=True)
    queue.reserve(3)

    assert queue.delete(force=True)
    assert left_of(raw, keys) == []


def test_a_queue_whose_outbox_has_an_entry_is_kept_until_that_is_delivered(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    queue = keys.queue("mail")
    client.queue("mail").push("x")
    client.queue("mail").reserve()[0].commit()
    raw.hset(queue.outbox, "succeeded:joined", "")
    assert broker.run(queues.delete(queue, force=True, states=[])) == ["posted"]
    assert raw.hgetall(queue.counters)
    raw.delete(queue.outbox)
    assert broker.run(queues.delete(queue, force=True, states=[])) == ["deleted"]


def test_a_write_that_is_open_keeps_its_queue(broker: Broker, keys: Keys) -> None:
    queue = keys.queue("mail")
    broker.run(batches.begin(queue, "w", lease_ms=1000, shared={}))
    assert broker.run(queues.delete(queue, force=False, states=[])) == ["held", 0, 0, 0, 0, 0, 1]
    assert broker.run(queues.delete(queue, force=True, states=[])) == ["more", 0]
    assert broker.run(queues.delete(queue, force=True, states=[])) == ["deleted"]


def test_the_rates_of_its_partitions_go_with_it(way: Any, raw: redis.Redis, keys: Keys) -> None:
    queue = way.queue("mail")
    queue.configure(rate_per_partition=RateLimit(1, per=timedelta(hours=1)))
    queue.push_many([Item(n, partition=f"k{n % 3}") for n in range(6)])
    assert len(queue.reserve(6)) == 3
    assert len(raw.keys(f"{keys.prefix}:*:bucket:k*")) == 3

    assert queue.delete(force=True)
    assert left_of(raw, keys) == []


def test_a_batch_goes_with_its_queue(client: Client, broker: Broker, raw: redis.Redis, keys: Keys) -> None:
    queue = client.queue("orders/raw")
    ids = queue.push_many(range(5))
    lease = Batches(broker, keys.queue("orders/raw")).take(5, lease_s=30)
    assert lease is not None
    lease.stage("n", [ids[0], "clean", b"1", ""])
    with pytest.raises(QueueNotEmpty, match="1 batches"):
        queue.delete()

    assert queue.delete(force=True)
    assert left_of(raw, keys, "orders") == []


def test_a_batch_with_many_lists_of_rows_goes_with_its_queue(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    queue, batch = client.queue("orders/raw"), keys.queue("orders/raw").base + b"batch:b"
    queue.push("x")
    raw.zadd(keys.queue("orders/raw").batches, {"b": 1})
    raw.hset(batch, "state", "filling")
    raw.sadd(batch + b":nonces", *[f"n{n}" for n in range(1200)])
    for n in range(1200):
        raw.rpush(batch + b":rows:n%d" % n, "row")

    assert queue.delete(force=True)
    assert left_of(raw, keys, "orders") == []


def test_parts_of_a_batch_go_with_its_queue_and_so_does_their_list(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    queue = client.queue("mail")
    queue.push_many(["x", "y"])
    lease = Batches(broker, keys.queue("mail")).take(2, lease_s=10)
    assert lease is not None
    lease.fail("ValueError: no", delay_s=0.0, fate="divided")
    assert len([key for key in left_of(raw, keys) if key.endswith(b":members")]) == 1

    queue.delete(force=True)
    assert left_of(raw, keys) == []


def test_a_decided_batch_is_finished_first(client: Client, broker: Broker, keys: Keys) -> None:
    queue = client.queue("orders/raw")
    ids = queue.push_many(range(2))
    lease = Batches(broker, keys.queue("orders/raw")).take(2, lease_s=30)
    assert lease is not None
    lease.stage("n", [word for one in ids for word in (one, "clean", b"1", "")])
    lease.decide(["n"], rest="dropped")

    with pytest.raises(QueueNotEmpty, match="decided"):
        queue.delete(force=True)
    while not lease.advance().done:
        pass
    assert queue.delete()
    assert client.queue("orders/clean").counts()["waiting"] == 2


def test_a_write_that_waits_for_capacity_goes_with_its_queue(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    """It entered the queue, which it is for, again and again, so the queue could not be deleted by force."""
    queue = client.queue("mail")
    queue.configure(max_size=2)
    write = Batches(broker, keys.queue("mail")).open(lease_s=30)
    write.stage("n", [word for n in range(5) for word in (f"a{n}", "mail", b"1", '{"new":1}')])
    write.decide(["n"], rest="succeeded")
    assert (write.advance().full, queue.counts()["waiting"]) == ("mail", 2)

    assert queue.delete(force=True)
    assert left_of(raw, keys) == []
    with pytest.raises(BatchLost):
        write.advance()


def test_members_of_a_decided_part_end_as_decided_though_other_parts_are_open(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys
) -> None:
    """The parts share a list of members. It was deleted with the first open part, so that nobody could end them."""
    queue, parts = client.queue("mail"), Batches(broker, keys.queue("mail"))
    queue.push_many(range(4))
    whole = parts.take(4, lease_s=30)
    assert whole is not None
    whole.fail("ValueError: no", delay_s=0.0, fate="divided")
    part = parts.take(4, lease_s=30)
    assert part is not None
    part.decide([], rest="succeeded")

    for write in ("v", "w"):  # before it in the order
        broker.run(batches.begin(keys.queue("mail"), write, lease_ms=-3_600_000, shared={}))
    assert raw.zrange(keys.queue("mail").finishing, 0, -1) == [b"v", b"w", part.id.encode()]

    with pytest.raises(QueueNotEmpty, match="decided"):
        queue.delete(force=True)
    assert queue.counts()["pending"] == 4
    while not part.advance().done:
        pass
    assert raw.hget(keys.queue("mail").counters, "succeeded") == b"1"


def test_a_deletion_that_is_broken_off_leaves_what_is_pending_with_its_batch(
    client: Client, broker: Broker, keys: Keys
) -> None:
    """Its members had no batch, so that they were out of reach until leases of a week ended."""
    client.queue("mail").push_many(range(1001))
    lease = Batches(broker, keys.queue("mail")).take(1001, lease_s=30)
    assert lease is not None

    word, gone = broker.run(queues.delete(keys.queue("mail"), force=True, states=[]))

    assert word == "more"
    assert gone > 0
    lease.dissolve()
    assert client.queue("mail").counts()["waiting"] == 1001 - gone


def test_locks_of_its_tasks_are_free(current: Client, raw: redis.Redis, keys: Keys) -> None:
    @job(name="deleting.once", queue="mail", unique=True)
    class Once(Job):
        def run(self) -> None: ...

    Once().enqueue()
    assert current.queue("mail").delete(force=True)
    assert left_of(raw, keys) == []
    assert Once().enqueue().state == "waiting"


@pytest.fixture
def ticking() -> Iterator[None]:
    """A periodic job, which no worker of a later test may publish and fire."""

    @job(name="deleting.tick", queue="mail", every=3600)
    class Tick(PeriodicJob):
        def run(self) -> None: ...

    yield
    forget("deleting.tick")


def test_periodic_jobs_are_forgotten_with_their_state(
    client: Client, broker: Broker, raw: redis.Redis, keys: Keys, ticking: None
) -> None:
    broker.run(leader_calls.define_periodics(keys, published([lookup("deleting.tick")])))
    broker.run(leader_calls.start_periodic(keys.queue("mail"), "deleting.tick", 1))
    with pytest.raises(QueueNotEmpty, match="deleting"):
        client.queue("mail").delete()

    assert client.queue("mail").delete(force=True)
    assert left_of(raw, keys) == []
    assert client.periodics() == []


def test_a_queue_that_is_used_again_appears_again(server: Any, keys: Keys, client: Client) -> None:
    """Also when a client registered it before and does not know of its deletion."""
    with Client(server.url, keys.prefix) as other:
        queue = other.queue("mail")
        lock = Lock(digest="d", lasts="finished", ttl_ms=60_000, on_clash="existing")
        for again in (
            lambda: queue.push("x"),
            lambda: queue.push("x"),
            lambda: other.enqueue(Task(id=new_id("mail"), queue="mail", payload=b"1")),
            lambda: other.enqueue(Task(id=new_id("mail"), queue="mail", payload=b"1")),
            lambda: other.enqueue(Task(id=new_id("mail"), queue="mail", payload=b"1", lock=lock)),
            lambda: other.enqueue_many([Task(id=new_id("mail"), queue="mail", payload=b"1") for _ in range(2)]),
            lambda: queue.push("x", in_=60),
        ):
            again()
            assert client.queues() == ["mail"]
            assert client.queue("mail").delete(force=True)
            assert client.queues() == []


def test_items_are_acknowledged_as_before(way: Any) -> None:
    queue = way.queue("mail")
    task_id = queue.push("x")
    queue.reserve()
    assert queue.delete(task_id) is True
    with pytest.raises(InvalidName):
        queue.delete(None)
    with pytest.raises(UsageError, match="without an id"):
        queue.delete(task_id, force=True)
    assert way.queues() == ["mail"]


def test_nothing_is_lost_that_is_pushed_while_queues_are_deleted(server: Any, keys: Keys, client: Client) -> None:
    over = threading.Event()

    def delete() -> None:
        with Client(server.url, keys.prefix) as other:
            while not over.is_set():
                with suppress(QueueNotEmpty):
                    other.queue("mail").delete()

    thread = threading.Thread(target=delete)
    thread.start()
    queue, done = client.queue("mail"), 0
    try:
        for n in range(300):
            queue.push(n)
            (lease,) = queue.reserve()
            assert lease.payload == n
            lease.commit()
            done += 1
    finally:
        over.set()
        thread.join()
    queue.push("last")
    wait_for(lambda: client.queues() == ["mail"])
    assert done == 300


def test_the_leader_forgets_what_was_unused_for_a_week(
    broker: Broker, client: Client, clock: Clock, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScanBudget, "pause", 0.0)  # else a slow machine scans quiet queues some steps later
    clock.set()
    for name in ("old", "kept", "full"):
        client.queue(name).push("x")
        client.queue(name).reserve()[0].commit()
    client.queue("kept").configure(max_inflight=2)
    client.queue("full").push("x")

    def lead() -> None:
        leader = Coordinator(
            broker, keys, "a", LeaderTimes(60, 0.0, WEEK_MS / 1000), OwnQueues(), cron=PeriodicTicks(broker, keys, None)
        )
        leader.step()
        leader.step()
        wait_for(lambda: leader.step() and not leader._unused_queues.is_busy)
        leader.resign()

    lead()
    clock.advance(WEEK_MS / 2)
    lead()
    assert client.queues() == ["full", "kept", "old"]
    clock.advance(WEEK_MS / 2)
    lead()
    assert client.queues() == ["full", "kept"]
    assert left_of(raw, keys, "old") == []
    assert client.queue("kept").settings().max_inflight == 2
    client.queue("old").push("again")
    assert client.queues() == ["full", "kept", "old"]


def test_a_queue_that_was_about_to_leave_is_looked_after(
    broker: Broker, client: Client, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """The deleting process was killed after it removed the queue from the registry, and another process wrote since."""
    now_ms = clock.set()
    client.queue("mail").push("x")
    broker.run(queues.leaving(keys, ["mail"], now_ms))
    raw.srem(keys.queues, "mail")

    clock.advance(61_000)
    leader = Coordinator(broker, keys, "a", LeaderTimes(60, 0.0), OwnQueues(), cron=PeriodicTicks(broker, keys, None))
    leader.step()
    assert client.queues() == ["mail"]
    assert raw.zcard(keys.queues_leaving) == 0


def test_a_deletion_that_is_refused_leaves_the_note_of_an_earlier_one(
    client: Client, broker: Broker, clock: Clock, keys: Keys, raw: redis.Redis
) -> None:
    """An earlier one was killed after it took the queue out of the registry, and another process wrote since: the
    leader is to look at it again. The queue was in no list until a client registered it anew."""
    now_ms = clock.set(time.time() * 1000)
    client.queue("mail").push("x")
    broker.run(queues.leaving(keys, ["mail"], now_ms))
    raw.srem(keys.queues, "mail")
    with pytest.raises(QueueNotEmpty):
        client.queue("mail").delete()

    clock.advance(120_000)
    leader = Coordinator(broker, keys, "a", LeaderTimes(60, 0.0), OwnQueues(), cron=PeriodicTicks(broker, keys, None))
    leader.step()
    assert client.queues() == ["mail"]


def test_what_a_deletion_took_counts_as_purged_when_it_was_broken_off(
    broker: Broker, client: Client, keys: Keys
) -> None:
    queue = client.queue("mail")
    queue.configure(history=60)
    queue.push_many(["x", "y", "z"])
    queue.reserve()[0].commit()
    for count in (2, 1):  # one state after the other
        assert broker.run(queues.delete(keys.queue("mail"), force=True, states=[])) == ["more", count]
    totals = broker.run(queues.counts(keys.queue("mail"))).totals
    assert (totals["enqueued"], totals["succeeded"], totals["purged"], totals["history_purged"]) == (3, 1, 2, 1)
