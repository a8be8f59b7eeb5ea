"""Rows KEU-01 to KEU-38, from the articles on modelling queues by the author of keuss, one test each.

Stations are played by plain users of queues: an item goes on by `move` and ends by `commit`.
"""
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from jobrunner import Backoff, Client, Item, Lease, Queue
from jobrunner.broker.calls import leases as calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved, OutcomeUnknown, QueueFull, TaskGone, UsageError
from jobrunner.soak.fault_proxy import FaultProxy
from jobrunner.task_record import TaskRecord
from tests.acceptance.row_children import take_and_commit
from tests.acceptance.row_queues import (
    HOUR_MS,
    NOW_MS,
    Audit,
    Start,
    move_all,
    pop_all,
    reserve_and_die,
    states,
    take,
)
from tests.support.clock import Clock
from tests.support.contents import content
from tests.support.server import Server
from tests.support.waiting import wait_for

YEAR_S = 365.25 * 86_400
FALSY = [0, "", None, False, [], {}, b"", 0.0]


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    """A queue on a stopped clock."""
    clock.set(NOW_MS)
    return client.queue("q")


@pytest.fixture
def line(client: Client, clock: Clock) -> list[Queue]:
    """Three queues of one pipeline, on a stopped clock."""
    clock.set(NOW_MS)
    return [client.queue(f"p/{name}") for name in "abc"]


def push_many(queue: Queue, count: int, **options: Any) -> None:
    for number in range(0, count, 1000):
        queue.push_many([Item([n], **options) for n in range(number, min(number + 1000, count))])


def cheapest_reserve_us(queue: Queue, raw: redis.Redis) -> int:
    """The least time the server needed for a reserve of one item, of many."""

    def spent() -> int:
        found: int = raw.info("commandstats")["cmdstat_evalsha"]["usec"]
        return found

    queue.push_many(range(100))
    costs = []
    for _ in range(100):
        before = spent()
        assert len(queue.reserve(keepalive=3600)) == 1
        costs.append(spent() - before)
    return min(costs)


def test_an_item_may_be_delayed_for_any_time(queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys) -> None:
    """KEU-01: for fifty years to the millisecond, and until the year 9999."""
    fifty, far = queue.push("fifty", in_=50 * YEAR_S), queue.push("far", at=datetime(9999, 12, 31, tzinfo=UTC))
    assert queue.counts() == states(scheduled=2)
    assert raw.zscore(keys.queue("q").scheduled, fifty) == NOW_MS + 50 * YEAR_S * 1000
    assert queue.reserve(9) == []
    clock.set(NOW_MS + 50 * YEAR_S * 1000 - 1)
    assert queue.reserve(9) == []
    clock.advance(1)
    assert take(queue).payload == "fifty"
    assert queue.ids("scheduled") == [far]
    clock.set(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1000)
    assert {lease.payload for lease in queue.reserve(9)} == {"fifty", "far"}


@pytest.mark.parametrize("total", [10_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_delayed_items_do_not_slow_the_others_down(
    queue: Queue, client: Client, clock: Clock, raw: redis.Redis, total: int
) -> None:
    """KEU-02: a reserve costs the server less than twice of what it costs in a queue without them."""
    push_many(queue, total, in_=3600)
    assert cheapest_reserve_us(queue, raw) < 2 * cheapest_reserve_us(client.queue("without"), raw)
    assert queue.counts()["scheduled"] == total


def test_an_item_that_is_not_due_holds_up_no_other(queue: Queue, clock: Clock, audit: Audit) -> None:
    """KEU-03: however many of them were there first, and whatever their priority."""
    queue.push("in an hour", in_=3600)
    queue.push_many([Item("later", in_=60, priority=2) for _ in range(1000)])
    queue.push_many(range(10))
    assert [lease.payload for lease in queue.reserve(10)] == list(range(10))
    assert audit("q") == states(scheduled=1001, pending=10)


def test_delays_carry_retries_events_and_recurring_items(queue: Queue, clock: Clock) -> None:
    """KEU-04: a backoff that grows, an event at its time, and an item that comes back every minute."""
    queue.configure(backoff=Backoff(base=10, factor=3, jitter=0), max_attempts=0)
    queue.push_many(["fails", "recurs", Item("event", at=NOW_MS / 1000 + 100)])
    seen: list[tuple[str, float]] = []
    for second in range(200):
        clock.set(NOW_MS + second * 1000)
        for lease in queue.reserve(9):
            seen.append((lease.payload, second))
            if lease.payload == "fails":
                lease.rollback()
            elif lease.payload == "recurs":
                lease.move("q", delay=60)
            else:
                lease.commit()
    assert [second for name, second in seen if name == "fails"] == [0, 10, 40, 130]
    assert [second for name, second in seen if name == "recurs"] == [0, 60, 120, 180]
    assert [second for name, second in seen if name == "event"] == [100]


def test_an_item_travels_in_an_envelope(queue: Queue, clock: Clock, client: Client) -> None:
    """KEU-05: a pushed payload comes back unchanged; due time, headers and counts are attributes of the lease."""
    payload = {"when": "mine", "headers": [], "id": 7}
    task = client.task(queue.push(payload, in_=5, headers={"trace": "abc"}, priority=2))
    record = task.record()
    assert (record.when, record.priority) == (datetime.fromtimestamp(NOW_MS / 1000 + 5, UTC), 2)
    clock.advance(5000)
    lease = take(queue)
    assert lease.payload == payload
    assert (lease.id, lease.headers, lease.attempts, lease.retry_count) == (task.id, {"trace": "abc"}, 1, 0)
    assert lease.enqueue_time == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    lease.release()
    (popped,) = queue.pop()
    assert (popped.id, popped.payload, popped.headers) == (task.id, payload, {"trace": "abc"})


@pytest.mark.parametrize("way", ["reserve", "pop"])
def test_an_item_is_seen_from_its_due_time_on(queue: Queue, clock: Clock, way: str) -> None:
    """KEU-06: at it, and not a microsecond before."""
    queue.push("x", in_=1)
    clock.advance(999.999)
    assert getattr(queue, way)() == []
    clock.advance(0.001)
    assert len(getattr(queue, way)()) == 1


def test_what_is_due_longest_goes_first(queue: Queue, clock: Clock) -> None:
    """KEU-07: in whatever order it was pushed, delayed or not."""
    delays = random.Random(7).sample(range(1, 500), 100)
    for delay in delays:
        queue.push(delay, in_=delay)
    clock.advance(250_500)
    queue.push(250.5)
    clock.advance(HOUR_MS)
    assert [lease.payload for lease in queue.reserve(200)] == sorted([*delays, 250.5])


def test_reserve_then_commit_or_rollback(queue: Queue, server: Server, keys: Keys, clock: Clock, audit: Audit) -> None:
    """KEU-08: a task that one consumer returns reaches another one later, which commits it."""
    with Client(server.url, keys.prefix, now_ms=clock) as another:
        queue.push("x")
        first = take(queue)
        assert another.queue("q").reserve() == []
        assert first.rollback(delay=1, error="not here") is True
        clock.advance(1000)
        second = take(another.queue("q"))
        assert (second.id, second.payload, second.attempts) == (first.id, "x", 2)
        assert second.commit() is True
    assert audit("q") == states()


def test_every_item_is_processed_at_least_once_whatever_becomes_of_its_consumers(
    queue: Queue, clock: Clock, start: Start, audit: Audit
) -> None:
    """KEU-09: five consumers are killed between processing and commit; duplicates are allowed."""
    clock.ms = None
    queue.configure(keepalive=0.2, max_attempts=0)
    ids, processed = list[str](), Counter[str]()
    chance = random.Random(9)
    for _ in range(5):
        consumer = start(take_and_commit, "q")
        ids += queue.push_many(range(30))
        processed.update(consumer.hear()[0] for _ in range(chance.randint(5, 20)))
        consumer.kill()
        processed.update(task_id for task_id, _ in consumer.hear_all())
    last = start(take_and_commit, "q")
    wait_for(lambda: queue.counts() == states(), timeout_s=20)
    last.say("enough")
    processed.update(task_id for task_id, _ in last.hear_all())
    assert processed.keys() == set(ids)
    assert queue.totals()["succeeded"] == 150
    assert audit("q") == states()


@pytest.mark.processes
@pytest.mark.parametrize(("processes", "total"), [(4, 2_000), pytest.param(8, 10_000, marks=pytest.mark.slow)])
def test_what_is_popped_never_comes_back(
    queue: Queue, clock: Clock, start: Start, audit: Audit, processes: int, total: int
) -> None:
    """KEU-10: processes that pop at the same time, one of which is killed: no item twice, and those it had are lost."""
    clock.ms = None
    push_many(queue, total)
    poppers = [start(pop_all, "q", 5) for _ in range(processes)]
    for popper in poppers:
        assert popper.hear() == "ready"
    for popper in poppers:
        popper.say("go")
    victim = poppers.pop(0)
    popped = list(victim.hear())
    victim.kill()
    popped += itertools.chain(*victim.hear_all())
    for popper in poppers:
        popped += itertools.chain(*iter(popper.hear, []))
    numbers = [number for (number,) in popped]
    assert len(numbers) == len(set(numbers))
    assert total - 5 <= len(numbers) <= total
    assert queue.pop() == queue.reserve() == []
    assert queue.totals() == {"enqueued": total, "succeeded": total}
    assert audit("q") == states()


def test_a_new_item_was_never_tried_and_is_not_reserved(queue: Queue, client: Client, clock: Clock) -> None:
    """KEU-11"""
    task = client.task(queue.push("x"))
    record = task.record()
    assert (record.state, record.attempts, record.retry_count, record.error) == ("waiting", 0, 0, "")
    assert queue.ids("pending") == []
    with pytest.raises(NotReserved):
        queue.delete(task.id)


def test_a_reservation_hides_an_item_for_a_time(queue: Queue, client: Client, clock: Clock) -> None:
    """KEU-12: the returned lease has the new state, with its first attempt counted and the end of its time."""
    task = client.task(queue.push("x"))
    lease = take(queue, keepalive=120)
    assert (lease.attempts, lease.retry_count) == (task.attempts, task.retry_count) == (1, 0)
    assert lease.deadline == task.record().when == datetime.fromtimestamp(NOW_MS / 1000 + 120, UTC)
    clock.advance(119_999)
    assert queue.reserve() == queue.pop() == []


def test_a_reservation_counts_from_now_however_old_the_item_is(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """KEU-13: 130 s in the queue and reserved for 120 s, no other consumer gets it for 120 s; then another does."""
    queue.push("x")
    clock.advance(130_000)
    lease = take(queue, keepalive=120)
    assert raw.zscore(keys.queue("q").pending, lease.id) == NOW_MS + 250_000
    assert queue.reserve() == []
    clock.advance(119_999.999)
    assert queue.reserve() == []
    clock.advance(0.001)
    assert take(queue).id == lease.id


def test_commit_deletes_what_was_reserved_and_nothing_else(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys, audit: Audit
) -> None:
    """KEU-14: neither a waiting item nor one whose lease ended or belongs to another; twice counts once."""
    queue.push_many(["a", "b"])
    first = queue.reserve(keepalive=1)[0]
    clock.advance(1000)
    with pytest.raises(NotReserved):
        first.commit()
    second, other = queue.reserve(2)
    assert second.id == first.id
    with pytest.raises(LeaseLost):
        first.commit()
    assert queue.counts() == states(pending=2)
    assert second.commit() is True
    assert second.commit() is first.commit() is False
    assert not raw.exists(keys.queue("q").task(second.id))
    other.release()
    with pytest.raises(NotReserved):
        other.commit()
    assert audit("q") == states(waiting=1)


def test_rollback_gives_back_counts_and_delays(queue: Queue, clock: Clock, client: Client, audit: Audit) -> None:
    """KEU-15: invisible until the delay is over, at once without one; from a reservation that is another's: refused."""
    task = client.task(queue.push("x"))
    assert take(queue).rollback(delay=1, error="no") is True
    assert (task.state, task.retry_count, task.error) == ("scheduled", 1, "no")
    clock.advance(999.999)
    assert queue.reserve() == []
    clock.advance(0.001)
    stale = take(queue, keepalive=1)
    assert stale.retry_count == 1
    clock.advance(1000)
    with pytest.raises(NotReserved):
        stale.rollback()
    holder = take(queue)
    with pytest.raises(LeaseLost):
        stale.rollback(delay=0)
    assert (task.record().state, task.attempts) == ("pending", 3)
    assert holder.rollback(delay=0) is True
    clock.advance(1)
    assert take(queue).attempts == 4
    assert audit("q") == states(pending=1)


def test_a_failing_item_does_not_come_back_in_a_hot_loop(queue: Queue, clock: Clock, client: Client) -> None:
    """KEU-16: ten failures with base 0.1 s take 0.1 + 0.2 + 0.4 + ... seconds, with jitter no less than nine tenths."""
    for jitter in (0.0, 0.1):
        queue.configure(backoff=Backoff(base=0.1, factor=2, jitter=jitter), max_attempts=11)
        began = clock.set(NOW_MS + jitter * HOUR_MS)
        queue.push("x")
        waits = []
        for _ in range(10):
            lease = take(queue)
            lease.rollback()
            when = client.task(lease.id).record().when
            assert when is not None
            waits.append(when.timestamp() * 1000 - (clock.ms or 0))
            clock.advance(waits[-1] - 1)
            assert queue.reserve() == []
            clock.advance(1)
        lasted_ms = (clock.ms or 0) - began
        assert waits == sorted(waits)
        least = sum(100 * 2**n for n in range(10)) * (1 - jitter)
        assert least <= lasted_ms <= least / (1 - jitter) * (1 + jitter) + 50
        assert take(queue).rollback() is True
        assert queue.counts()["dead"] == 1
        assert queue.purge("dead") == 1


def test_no_report_counts_without_a_live_reservation(queue: Queue, clock: Clock, audit: Audit) -> None:
    """KEU-17: the mark is no mere information: before, after the end, and after release every report is refused."""
    queue.push("x")
    reports: list[Callable[[Lease], object]] = [
        Lease.commit, Lease.rollback, Lease.release, Lease.extend, lambda lease: lease.move("q"),
    ]  # fmt: skip
    ended = take(queue, keepalive=1)
    clock.advance(1000)
    released = take(queue)
    released.release()
    for lease, report in itertools.product((ended, released), reports):
        with pytest.raises(NotReserved):
            report(lease)
        assert audit("q") == states(waiting=1)
    assert take(queue).attempts == 2


def test_an_item_that_kills_its_consumers_goes_to_a_separate_queue(client: Client, start: Start, audit: Audit) -> None:
    """KEU-18: three processes take it and die of it; leases that end count as attempts, without a failure report."""
    queue, failed = client.queue("p/a"), client.queue("p/failed")
    queue.configure(keepalive=0.2, max_attempts=3, dead_letter_queue="p/failed")
    item = client.task(queue.push("poison"))
    for attempt in (1, 2, 3):
        assert start(reserve_and_die, "p/a").hear() == [attempt]
    wait_for(lambda: queue.counts() and failed.counts() == states(waiting=1))
    assert queue.counts() == states()
    assert item.record().queue == "p/failed"
    assert "ended without a report" in item.error
    assert queue.totals()["recovered"] == 3
    assert "failed" not in queue.totals()
    assert take(failed).payload == "poison"
    assert audit("p/a") == states()
    assert audit("p/failed") == states(pending=1)


def finish(queue: Queue, way: str, result: object = None) -> None:
    """Takes the first item out of the queue."""
    if way == "pop":
        assert len(queue.pop()) == 1
    elif way == "delete":
        assert queue.delete(take(queue).id) is True
    else:
        assert take(queue).commit(result) is True


@pytest.mark.parametrize("way", ["commit", "pop", "delete"])
def test_history_keeps_what_was_consumed(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys, audit: Audit, way: str
) -> None:
    """KEU-19: it is succeeded, with the time of that and its payload; no set of the four has it."""
    queue.configure(history=timedelta(days=1))
    task = client.task(queue.push({"n": 1}, headers={"trace": "abc"}))
    clock.advance(7000)
    finish(queue, way)
    (record,) = queue.history()
    stored = {one.name: getattr(record, one.name) for one in fields(TaskRecord)}
    assert TaskRecord(**stored | {"payload": record.raw_payload, "result": record.raw_result}) == task.record()
    assert (record.state, record.when) == ("succeeded", datetime.fromtimestamp(NOW_MS / 1000 + 7, UTC))
    assert (record.payload, record.raw_payload) == ({"n": 1}, b'{"n":1}')
    assert record.fields["headers"] == b'{"trace":"abc"}'
    assert queue.counts() == audit("q") == states(done=1)
    assert raw.zscore(keys.queue("q").done, task.id) == NOW_MS + 7000


def test_what_is_not_consumed_is_no_history(line: list[Queue], client: Client) -> None:
    """KEU-19: not what was moved, died, was cancelled or purged."""
    for queue in line:
        queue.configure(history=60, max_attempts=1)
    moved, _, cancelled, _ = line[0].push_many(["moved", "dead", "cancelled", "purged"])
    first, second, *_ = line[0].reserve(2)
    first.move("b")
    second.rollback()
    client.task(cancelled).cancel()
    assert line[0].purge("waiting") == 1
    assert line[0].history() == line[1].history() == []
    take(line[1]).commit()
    assert [record.id for record in line[1].history()] == [moved]
    assert line[0].counts() == states(dead=1)


def test_what_was_consumed_can_be_replayed(queue: Queue, clock: Clock, client: Client, audit: Audit) -> None:
    """KEU-20: as a new item with an id of its own that refers to the first item, which stays unchanged for a while."""
    queue.configure(history=60)
    task = client.task(queue.push(b"\x00x", headers={"trace": "abc"}, priority=2, keepalive=7, max_attempts=3))
    take(queue).commit("result")
    before = task.record()
    clock.advance(5000)
    new_id = queue.replay(task.id)
    assert new_id != task.id
    lease = take(queue)
    assert (lease.id, lease.payload, lease.attempts) == (new_id, b"\x00x", 1)
    assert lease.headers == {"trace": "abc", "replayed_from": task.id}
    assert lease.enqueue_time == datetime.fromtimestamp(NOW_MS / 1000 + 5, UTC)
    assert lease.deadline == datetime.fromtimestamp(NOW_MS / 1000 + 12, UTC)
    assert client.task(new_id).record().priority == 2
    assert task.record() == before
    assert queue.counts() == audit("q") == states(pending=1, done=1)
    lease.commit()
    assert [record.id for record in queue.history()] == [new_id, task.id]
    assert queue.replay(task.id) not in (task.id, new_id)

    waiting = queue.push("not consumed")
    for unknown in (waiting, "never-was", lease.token):
        with pytest.raises(TaskGone, match="in the history of queue 'q'"):
            queue.replay(unknown)
    clock.advance(55_000)
    assert [record.id for record in queue.history()] == [new_id]
    with pytest.raises(TaskGone):
        queue.replay(task.id)


def test_history_is_never_handed_out_nor_reported_on(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """KEU-21: a thousand processed items; late reports find them gone and change nothing."""
    queue.configure(history=60)
    push_many(queue, 1000)
    held = queue.reserve(1000)
    for lease in held:
        lease.commit()
    before = content(raw, keys.queue("q").done)
    clock.advance(30_001)
    assert queue.reserve(1000) == queue.pop(1000) == []
    late = held[500]
    assert [late.commit("again"), late.rollback(), late.release(), late.extend(), late.move("q")] == [False] * 5
    assert queue.delete(late.id) is False
    task = client.task(late.id)
    assert (task.cancel(), task.requeue(), task.state, task.attempts) == (False, False, "succeeded", 1)
    assert queue.requeue_dead([late.id]) == 0
    assert content(raw, keys.queue("q").done) == before


def test_history_ends_by_age(queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys) -> None:
    """KEU-22: twenty seconds after it was processed, index and record together; also when nothing reads them."""
    queue.configure(history=20)
    first = client.task(queue.push("first"))
    finish(queue, "commit")
    clock.advance(15_000)
    second = client.task(queue.push("second"))
    finish(queue, "pop")
    assert [record.id for record in queue.history()] == [second.id, first.id]
    assert (first.exists(), second.exists(), queue.counts()) == (True, True, states(done=2))
    clock.advance(5_000)
    assert [record.id for record in queue.history()] == [second.id]
    assert (first.exists(), second.exists(), queue.counts()) == (False, True, states(done=1))
    assert raw.zrange(keys.queue("q").done, 0, -1) == [second.id.encode()]
    for key in (keys.queue("q").done, keys.queue("q").task(second.id)):
        assert 0 < raw.pttl(key) <= 20_000


def test_history_may_be_limited_by_number(queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys) -> None:
    """KEU-23: without that it is not; a hundred of 150 are the newest hundred, index and record."""
    queue.configure(history=3600)
    push_many(queue, 150)
    for lease in queue.reserve(150):
        lease.commit()
        clock.advance(1)
    ids = [record.id for record in queue.history(1000)][::-1]
    assert len(ids) == queue.counts()["done"] == 150
    queue.configure(history_max=100)
    assert [record.id for record in queue.history(1000)] == ids[50:][::-1]
    assert queue.counts() == states(done=100)
    assert [bool(raw.exists(keys.queue("q").task(task_id))) for task_id in ids] == [False] * 50 + [True] * 100


@pytest.mark.parametrize("total", [10_000, pytest.param(500_000, marks=pytest.mark.slow)])
def test_history_does_not_slow_the_others_down(
    queue: Queue, client: Client, clock: Clock, raw: redis.Redis, total: int
) -> None:
    """KEU-24: a reserve costs the server less than twice of what it costs in a queue without it."""
    queue.configure(history=timedelta(days=7))
    client.queue("without").configure(history=timedelta(days=7))
    for _ in range(total // 1000):
        push_many(queue, 1000)
        assert len(queue.pop(1000)) == 1000
    assert cheapest_reserve_us(queue, raw) < 2 * cheapest_reserve_us(client.queue("without"), raw)
    assert queue.counts()["done"] == total


def test_stations_are_joined_by_queues(line: list[Queue], audit: Audit) -> None:
    """KEU-25: a thousand items go through three of them and have a stamp of each; none is lost on the way."""
    push_many(line[0], 1000)
    for station, to in zip(line, ("b", "c", None), strict=True):
        for lease in station.reserve(1000):
            stamped = [*lease.payload, station.name]
            assert lease.move(to, payload=stamped) if to else lease.commit(stamped)
            if to is None:
                number, *stamps = stamped
                assert stamps == ["p/a", "p/b", "p/c"]
                assert 0 <= number < 1000
    assert [audit(station.name) for station in line] == [states()] * 3
    assert [station.totals()["moved_out"] for station in line[:2]] == [1000, 1000]
    assert line[2].totals() == {"moved_in": 1000, "succeeded": 1000}


def test_a_topology_may_fork_and_loop(line: list[Queue], client: Client, audit: Audit) -> None:
    """KEU-26: a self loop, a loop of two, a diamond; one without an end is stopped by its limit of hops."""
    a, b, c = line
    a.push(0)
    rounds = 0
    for lease in iter(lambda: next(iter(a.reserve()), None), None):
        rounds += 1
        if rounds < 20:
            assert lease.move("a", payload=rounds)
        else:
            assert lease.commit()
    assert (rounds, a.counts()) == (20, states())

    a.push_many(range(10))
    for lease in a.reserve(10):
        lease.move("b" if lease.payload % 2 else "c")
    for branch in (b, c):
        for lease in branch.reserve(10):
            lease.move("end")
    assert sorted(lease.payload for lease in client.queue("p/end").reserve(10)) == list(range(10))

    loop = client.task(a.push("for ever"))
    for hop in range(7):
        here, there = (a, "b") if hop % 2 == 0 else (b, "a")
        assert take(here).move(there, max_hops=7)
    last = take(b)
    with pytest.raises(UsageError, match="7 hops"):
        last.move("a", max_hops=7)
    assert loop.state == "pending"
    assert last.commit() is True
    assert [audit(name)["waiting"] for name in ("p/a", "p/b", "p/c")] == [0, 0, 0]


def test_a_list_is_one_item(line: list[Queue], audit: Audit) -> None:
    """KEU-27: a move makes one item of one, whatever its payload; only a station that is declared to makes more."""
    a, b, _ = line
    a.push([1, 2, 3])
    assert take(a).move("b", payload=[["x"], ["y"]])
    assert take(b).payload == [["x"], ["y"]]
    assert audit("p/b") == states(pending=1)


def test_a_move_that_is_cut_off_neither_loses_nor_doubles(
    line: list[Queue], clock: Clock, fault_proxy: FaultProxy, keys: Keys, audit: Audit
) -> None:
    """KEU-28: at any byte of the request or the reply; the item is in one of the two queues, and goes on from there."""
    a, b, _ = line
    a.configure(max_attempts=0)
    cuts = 0
    with Client(fault_proxy.url, keys.prefix, now_ms=clock, retry_timeout=0) as cut_off:
        far = cut_off.queue("p/a")
        far.counts()
        for number, (direction, size) in enumerate(
            [("cut_request", size) for size in range(0, 1600, 64)] + [("cut_reply", size) for size in range(6)]
        ):
            a.push(["x" * 900, number])
            lease = take(far, keepalive=1)
            setattr(fault_proxy, direction, size)
            try:
                lease.move("b", payload=[*lease.payload, "moved"])
            except OutcomeUnknown:
                cuts += 1
            fault_proxy.cut_request = fault_proxy.cut_reply = None
            there = sum(audit("p/a").values()) + sum(audit("p/b").values())
            assert there == 1, f"{there} items after {direction} at {size}"
            clock.advance(1000)
            for found in a.reserve():
                assert found.payload == ["x" * 900, number]
                assert found.move("b", payload=[*found.payload, "moved"])
            last = take(b)
            assert last.payload == ["x" * 900, number, "moved"]
            assert last.commit()
    assert cuts >= 20
    assert b.totals()["moved_in"] == b.totals()["succeeded"] == number + 1


@pytest.mark.processes
@pytest.mark.parametrize(("moves", "kills"), [(400, 6), pytest.param(5000, 60, marks=pytest.mark.slow)])
def test_a_move_is_one_step_whoever_is_killed(
    client: Client, start: Start, server: Server, keys: Keys, audit: Audit, moves: int, kills: int
) -> None:
    """KEU-29: movers are killed at random points; a reader of both queues in one step sees each item in one."""
    a, b = client.queue("p/a"), client.queue("p/b")
    a.configure(max_attempts=0)
    push_many(a, moves)
    own = [getattr(keys.queue(name), state) for name in ("p/a", "p/b") for state in ("waiting", "pending")]
    seen, is_over = set[tuple[int, ...]](), threading.Event()

    def look() -> None:
        with server.connect() as connection:
            while not is_over.is_set():
                pipeline = connection.pipeline(transaction=True)
                for key in own:
                    pipeline.zcard(key)
                seen.add(tuple(pipeline.execute()))

    observer = threading.Thread(target=look)
    observer.start()
    movers = [start(move_all, "p/a", "b") for _ in range(2)]
    for moved in sorted(random.Random(29).sample(range(1, moves * 9 // 10), kills)):
        wait_for(lambda moved=moved: b.counts()["waiting"] >= moved, timeout_s=30)
        movers.pop(0).kill()
        movers.append(start(move_all, "p/a", "b"))
    for mover in movers:
        mover.kill()
    while b.counts()["waiting"] < moves:
        for lease in a.reserve(100, wait=1):
            assert lease.move("b", payload=[*lease.payload, "moved"])
    is_over.set()
    observer.join()
    assert {sum(counts) for counts in seen} == {moves}
    assert len(seen) > 20, "the observer saw nothing of it"
    assert sorted(lease.payload for lease in b.reserve(moves)) == sorted([n, "moved"] for n in range(moves))
    assert audit("p/a") == states()


def test_all_queues_of_a_pipeline_share_one_store(
    line: list[Queue], client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """KEU-30: one slot of a cluster; a move or a forwarding out of it is refused before anything is sent."""
    a = line[0]
    a.push_many(list("xyz"))
    for lease, to in zip(a.reserve(2), "bc", strict=True):
        lease.move(to)
    lease = take(a)
    written = [key for key in raw.scan_iter(match=f"{keys.prefix}:*") if key not in (keys.queues, keys.format)]
    assert len(written) > 8
    assert {key_slot(key) for key in written} == {key_slot(b"p")}
    asked = raw.info("stats")["total_commands_processed"]
    for elsewhere in ("other/b", "p2/a"):
        with pytest.raises(UsageError, match="is not of pipeline 'p'"):
            lease.move(elsewhere)
        with pytest.raises(InvalidOption, match="another queue of the pipeline"):
            a.configure(dead_letter_queue=elsewhere)
    assert raw.info("stats")["total_commands_processed"] == asked + 1
    plain = client.queue("plain")
    plain.push("x")
    with pytest.raises(UsageError, match="is not of pipeline 'plain'"):
        take(plain).move("other")
    assert lease.commit() is True


def test_every_operation_is_of_one_queue(line: list[Queue], client: Client, clock: Clock, audit: Audit) -> None:
    """KEU-31: one id in two queues is two items; in two queues of a pipeline it is one, and reports on it through the
    wrong queue are refused."""
    one, two = client.queue("one"), client.queue("two")
    assert one.push("first", id="mine") == two.push("second", id="mine") == "mine"
    assert (take(one).commit(), take(two).payload) == (True, "second")
    assert two.delete("mine") is True

    a, b, _ = line
    a.push("a", id="mine")
    b.push("b", id="mine")
    assert (a.counts(), b.counts()) == (states(waiting=1), states())
    lease = take(a)
    with pytest.raises(NotReserved):
        b.delete("mine")
    for wrong in (
        calls.commit(keys_of(b), [("mine", lease.token, 0, "succeeded", b"", b"")]),
        calls.extend(keys_of(b), [("mine", lease.token, 9000)]),
        calls.release(keys_of(b), [("mine", lease.token, "")]),
    ):
        assert broker_of(client).run(wrong) == ["lost"]
    assert b.requeue_dead(["mine"]) == 0
    assert audit("p/a") == states(pending=1)
    assert lease.commit() is True


def test_only_a_reserved_item_can_be_moved(
    line: list[Queue], server: Server, keys: Keys, clock: Clock, audit: Audit
) -> None:
    """KEU-32: not one whose reservation is over or another's, nor one that was moved; of two moves at once one wins."""
    a, b, _ = line
    a.push("x")
    over = take(a, keepalive=1)
    clock.advance(1000)
    with pytest.raises(NotReserved):
        over.move("b")
    assert a.counts() == states(waiting=1)
    released = take(a)
    released.release()
    with pytest.raises(NotReserved):
        released.move("b")
    holder = take(a)
    for lease in (over, released):
        with pytest.raises(LeaseLost):
            lease.move("b", payload="theirs")
    assert audit("p/b") == states()
    assert holder.move("b") is True
    with pytest.raises(LeaseLost):
        holder.move("c")
    assert take(b).payload == "x"

    clock.ms = None
    push_many(a, 40)
    verdicts: list[str] = []

    def race(lease: Lease, go: threading.Barrier, to: str) -> None:
        with Client(server.url, keys.prefix) as own:
            twin = own.queue("p/a")._ref
            go.wait()
            call = calls.move(twin.keys, twin.neighbour(to), [(lease.id, lease.token, "", 0, ())])
            verdicts.extend(broker_of(own).run(call))

    for lease in a.reserve(40, keepalive=60):
        go = threading.Barrier(2)
        racers = [threading.Thread(target=race, args=(lease, go, to)) for to in "bc"]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
    assert Counter(verdicts) == {"ok": 40, "lost": 40}
    assert audit("p/b")["waiting"] + audit("p/c")["waiting"] == 40


def test_a_move_clears_the_mark_and_the_failures(line: list[Queue], clock: Clock, client: Client) -> None:
    """KEU-33: failed twice, then moved: no attempt in the new queue, the next is the first; the total is kept."""
    a, b, c = line
    for queue in line:
        queue.configure(max_attempts=3)
    item = client.task(a.push("x"))
    for _ in range(2):
        take(a).rollback(delay=0, error="no")
        clock.advance(1)
    third = take(a)
    assert third.attempts == 3
    third.move("b")
    record = item.record()
    assert (record.state, record.attempts, record.retry_count, record.error) == ("waiting", 0, 0, "")
    assert record.fields["total_attempts"] == b"3"
    lease = take(b)
    assert (lease.attempts, lease.retry_count) == (1, 0)
    assert lease.rollback(delay=0) is True
    clock.advance(1)
    take(b).move("c")
    record = item.record()
    assert (record.fields["total_attempts"], record.fields["hops"]) == (b"5", b"2")
    assert take(c).attempts == 1


def test_a_move_is_an_update_like_any_other(line: list[Queue], clock: Clock, client: Client, audit: Audit) -> None:
    """KEU-34: with a delay, to itself, to a paused queue, and to a full one, which refuses it and leaves the lease."""
    a, b, c = line
    a.push_many(["delayed", "itself", "paused", "full"])
    delayed, itself, paused, full = a.reserve(4)
    delayed.move("b", delay=1)
    assert b.counts() == states(scheduled=1)
    clock.advance(999.999)
    assert b.reserve() == []
    clock.advance(0.001)
    assert take(b).payload == "delayed"

    assert itself.move("a", priority=2)
    assert take(a).payload == "itself"

    c.pause()
    assert paused.move("c")
    assert (c.reserve(), c.counts()) == ([], states(waiting=1))

    c.configure(max_size=1)
    with pytest.raises(QueueFull, match="stays where it is"):
        full.move("c", payload="changed")
    with pytest.raises(QueueFull):
        full.move("c", delay=5)
    task = client.task(full.id)
    assert (task.state, task.record().queue, task.record().payload) == ("pending", "p/a", b'"full"')
    assert full.extend()
    c.resume()
    assert take(c).payload == "paused"
    assert full.move("c") is True
    assert [audit(queue.name)["pending"] for queue in line] == [1, 1, 1]


def test_a_move_may_change_the_payload(line: list[Queue], clock: Clock) -> None:
    """KEU-35: as a whole, in the same step; every falsy value as it is given; without one it stays."""
    a, b, _ = line
    for value in (*FALSY, {"a": [1]}, b"\x00\xff", "text"):
        a.push({"old": True})
        assert take(a).move("b", payload=value)
        lease = take(b)
        assert (lease.payload, type(lease.payload)) == (value, type(value))
        assert lease.commit()
    for value in FALSY:
        a.push(value)
        assert take(a).move("b")
        lease = take(b)
        assert (lease.payload, type(lease.payload)) == (value, type(value))
        assert lease.commit()


def test_a_commit_may_leave_a_result(queue: Queue, clock: Clock, client: Client) -> None:
    """KEU-36: history shows it with the payload, every falsy value but None unchanged; without history it is
    nowhere."""
    queue.configure(history=60)
    for value in ({"n": [1, 2]}, "done", 7, 0, "", False, []):
        task = client.task(queue.push("payload"))
        assert take(queue).commit(value) is True
        found = task.result(timeout=0)
        assert (found, type(found)) == (value, type(value))
        assert task.record().payload == b'"payload"'
    queue.configure(history=None)
    task = client.task(queue.push("payload"))
    take(queue).commit("done")
    assert not task.exists()


def test_a_moved_item_is_due_at_once(line: list[Queue], clock: Clock) -> None:
    """KEU-37: at the very instant, whatever its reservation had left; behind what was in the other queue before."""
    a, b, _ = line
    b.push("before")
    a.push("moved", in_=1)
    clock.advance(60_000)
    assert take(a, keepalive=3600).move("b")
    b.push("behind")
    assert [lease.payload for lease in b.reserve(9)] == ["before", "moved", "behind"]


def test_id_and_headers_survive_a_move(line: list[Queue], clock: Clock, client: Client) -> None:
    """KEU-38: with the time of the first push; new headers come to the old ones, or in their place."""
    a, b, c = line
    task_id = a.push("x", headers={"trace": "abc", "step": "1"}, priority=2, keepalive=7)
    clock.advance(1000)
    assert take(a).move("b", headers={"step": "2", "by": "a"})
    clock.advance(1000)
    second = take(b)
    assert (second.id, second.headers) == (task_id, {"trace": "abc", "step": "2", "by": "a"})
    assert second.move("c")
    third = take(c)
    assert (third.id, third.headers) == (second.id, second.headers)
    assert third.enqueue_time == datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert third.deadline == datetime.fromtimestamp(NOW_MS / 1000 + 9, UTC)
    assert client.task(task_id).record().priority == 2
    with pytest.raises(InvalidOption, match="header"):
        third.move("a", headers={"n": 1})  # type: ignore[dict-item]
    assert third.commit() is True
