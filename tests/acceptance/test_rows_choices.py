"""D-01 to D-27: where the sources of the semantics disagree, what jobrunner does."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from jobrunner import Backoff, Client, Item, Lease, PeriodicJob, Queue, RateLimit, job
from jobrunner.broker.keys import Keys
from jobrunner.client.current import forget, use
from jobrunner.errors import InvalidOption, LeaseLost, NotReserved, UsageError
from jobrunner.jobs.options import JobOptions
from jobrunner.queue_settings import QueueSettings
from jobrunner.settings import ClientSettings
from jobrunner.worker.worker import Worker
from tests.support.clock import Clock
from tests.support.waiting import wait_for


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    clock.set()
    return client.queue("q")


def names(leases: list[Lease]) -> list[Any]:
    return [lease.payload for lease in leases]


def test_one_lease_for_each_attempt_and_as_many_as_are_needed(queue: Queue, clock: Clock) -> None:
    """D-01: at most once per attempt, at least once over all of them; a pop is at most once."""
    queue.push_many(["a", Item("b", priority=0)])
    (first,) = queue.reserve(1, keepalive=1)
    clock.advance(1000)
    (second,) = queue.reserve(1)
    assert (second.id, second.attempts) == (first.id, 2)
    assert first.token != second.token
    assert [item.payload for item in queue.pop(9)] == ["b"]
    clock.advance(86_400_000)
    assert queue.counts()["waiting"] == 1


def test_a_silent_end_keeps_the_place_and_a_reported_failure_loses_it(queue: Queue, clock: Clock) -> None:
    """D-02, D-03: [A, C] after a lease that ended; after a failure its new due time decides."""
    queue.push_many(["a", "c"])
    queue.reserve(1, keepalive=1)
    clock.advance(1000)
    assert names(queue.reserve(2, keepalive=1)) == ["a", "c"]
    clock.advance(1000)
    (again,) = queue.reserve(1)
    again.rollback(delay=1)
    clock.advance(500)
    queue.push("d")
    clock.advance(500)
    queue.push("e")
    assert names(queue.reserve(9)) == ["c", "d", "a", "e"]


def test_a_crash_counts_as_an_attempt_and_has_a_limit_of_its_own(queue: Queue, clock: Clock) -> None:
    """D-04, D-05: attempts from 1, retry_count from 0; two ended leases are enough where two are allowed."""
    queue.push("a", max_stalled=2)
    counts = []
    for _ in range(2):
        (lease,) = queue.reserve(1, keepalive=1)
        counts.append((lease.attempts, lease.retry_count))
        clock.advance(1000)
    assert counts == [(1, 0), (2, 1)]
    assert queue.reserve() == []
    assert queue.counts()["dead"] == 1


def test_order_is_priority_then_due_time_then_the_order_of_pushing(queue: Queue, clock: Clock) -> None:
    """D-06, D-07, D-08: 0 to 2, higher first, 1 unless given; a clock that steps back changes nothing."""
    queue.push_many([Item("low", priority=0), Item("first"), Item("second", priority=1), Item("high", priority=2)])
    clock.advance(-5000)
    queue.push("third")
    queue.push_many([Item(n, in_=10) for n in range(3)])
    clock.advance(12_000)
    assert names(queue.reserve(9)) == ["high", "first", "second", "third", 0, 1, 2, "low"]


def test_a_report_is_answered_by_what_there_is(queue: Queue, clock: Clock) -> None:
    """D-09, D-11: ok, gone, not leased, leased by another; the deadline decides, whatever was read since."""
    queue.push("a")
    (lease,) = queue.reserve(1, keepalive=1)
    clock.advance(1000)
    with pytest.raises(NotReserved):
        lease.commit()
    (other,) = queue.reserve()
    with pytest.raises(LeaseLost):
        lease.commit()
    assert other.commit() is True
    assert other.commit() is False
    assert queue.delete("never-was") is False


def test_the_length_of_a_lease_is_the_items_the_calls_or_the_queues(queue: Queue, raw: redis.Redis, keys: Keys) -> None:
    """D-10, D-25: and `pending` is sorted by the end of leases."""
    queue.configure(keepalive=5)
    queue.push_many([Item("own", keepalive=1), "queue's"])
    own, queues_own = queue.reserve(2)
    assert (queues_own.deadline - own.deadline).total_seconds() == 4
    found = raw.zrange(keys.queue("q").pending, 0, -1, withscores=True)
    assert found == [(lease.id.encode(), lease.deadline.timestamp() * 1000) for lease in (own, queues_own)]


def test_what_success_and_death_leave_behind(queue: Queue, raw: redis.Redis, keys: Keys) -> None:
    """D-12, D-13: nothing, or history; the dead by age and number, or in another queue."""
    queue.push("a")
    queue.reserve()[0].commit()
    assert not list(raw.scan_iter(match=keys.queue("q").tasks + b"*"))
    queue.configure(history=60, dead_max=1)
    for name in ("b", "c"):
        queue.push(name, max_attempts=1)
        queue.reserve()[0].rollback()
    queue.push("d")
    queue.reserve()[0].commit()
    assert (queue.counts()["dead"], queue.counts()["done"]) == (1, 1)


def test_defaults_of_retrying() -> None:
    """D-14, D-15: five attempts; 2 s, twice as long each time, an hour at most, a tenth of jitter."""
    backoff = QueueSettings().backoff
    assert QueueSettings().max_attempts == 5
    assert (backoff.base, backoff.factor, backoff.cap, backoff.jitter) == (2, 2, 3600, 0.1)
    assert JobOptions().backoff is None, "as the queue says"
    assert Backoff() == backoff


def test_the_clock_is_the_servers(client: Client, raw: redis.Redis) -> None:
    """D-16: read inside the script, so what a producer believes does not matter."""
    queue = client.queue("q")
    queue.push("a")
    seconds, microseconds = raw.time()
    (lease,) = queue.reserve()
    assert abs(lease.enqueue_time.timestamp() - (seconds + microseconds / 1e6)) < 5


def test_a_time_that_has_passed_is_now(queue: Queue) -> None:
    """D-17, D-26: a delay or an instant, not both."""
    queue.push("a")
    queue.push_many([Item("b", at=datetime(2001, 1, 1, tzinfo=UTC)), Item("c", in_=-5)])
    assert names(queue.reserve(9)) == ["a", "b", "c"]
    with pytest.raises(InvalidOption, match="both"):
        queue.push("x", in_=1, at=datetime.now(UTC))


def test_an_empty_queue_answers_at_once_and_a_pause_works_at_once(queue: Queue) -> None:
    """D-18, D-19: the pause may end by itself."""
    assert queue.reserve() == []
    assert queue.reserve(wait=0.01) == []
    queue.push("a")
    queue.pause(for_=60)
    assert queue.reserve() == []
    queue.resume()
    assert len(queue.reserve()) == 1


def test_limits_are_those_of_moab(queue: Queue) -> None:
    """D-20: leases at a time and a token bucket, in the server."""
    queue.configure(max_inflight=3, rate=RateLimit(max_tokens=5, interval=1, interval_unit="HOURS"))
    queue.push_many(range(9))
    first = queue.reserve(9)
    assert len(first) == 3
    queue.commit_many(first)
    assert len(queue.reserve(9)) == 2


def test_durability_is_asked_for(client: Client) -> None:
    """D-21: none by default; the handle has the durability that was reached."""
    assert ClientSettings(url="x").durability == "none"

    @job(name="choices.calm", queue="q")
    def calm() -> None: ...

    use(client)
    try:
        assert calm.enqueue().durability == "none"
    finally:
        forget()


def test_a_payload_is_bytes_in_a_field_and_changes_whole_or_not_at_all(
    queue: Queue, raw: redis.Redis, keys: Keys
) -> None:
    """D-22"""
    pushed = queue.push(b'{"a":[],"n":130775545883395173}', headers={"x": "y"})
    assert raw.hget(keys.queue("q").task(pushed), "payload") == b'{"a":[],"n":130775545883395173}'
    (lease,) = queue.reserve()
    lease.rollback(delay=0)
    assert queue.reserve()[0].payload == b'{"a":[],"n":130775545883395173}'


def test_a_move_is_one_step_within_a_pipeline(client: Client, clock: Clock) -> None:
    """D-23: attempts start anew, lifetime totals go on."""
    clock.set()
    raw, packed = client.queue("orders/raw"), client.queue("orders/packed")
    pushed = raw.push("a")
    raw.reserve()[0].rollback(delay=0)
    raw.reserve()[0].move("packed", payload="b")
    (lease,) = packed.reserve()
    assert (lease.id, lease.payload, lease.attempts) == (pushed, "b", 1)
    assert packed.tasks("pending")[0].fields["total_attempts"] == b"2"
    with pytest.raises(UsageError, match="not of pipeline"):
        lease.move("elsewhere/raw")


def test_what_is_delayed_is_in_a_set_of_its_own_until_someone_looks(
    queue: Queue, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """D-24: every operation on the queue promotes first."""
    queue.push("a", in_=1)
    clock.advance(1000)
    assert raw.zcard(keys.queue("q").scheduled) == 1
    assert names(queue.reserve()) == ["a"]


def test_a_tick_of_a_periodic_job_is_one_task_and_missed_ticks_become_one(client: Client) -> None:
    """D-27: interval or cron; the task's id is made from job and tick. Ticks are not made ahead (decision 5)."""
    ran: list[str] = []

    @job(name="choices.tick", queue="ticks", every=timedelta(hours=1))
    class Tick(PeriodicJob):
        def run(self) -> None:
            ran.append(self.task.id)

    use(client)
    workers = [Worker(queues=["ticks"], client=client) for _ in range(2)]
    try:
        for worker in workers:
            worker.start()
        wait_for(lambda: ran, timeout_s=20)
    finally:
        for worker in workers:
            worker.stop(grace=5)
        forget()
    assert len(ran) == 1


def test_priority_decides_about_retries_and_ended_leases_too(queue: Queue, clock: Clock) -> None:
    """Stated choice 3: a retry of a higher priority goes before what waits, and behind its own kind."""
    queue.push("high", priority=2)
    (lease,) = queue.reserve()
    queue.push_many([Item("low", priority=0), Item("usual"), Item("high too", priority=2)])
    lease.rollback(delay=0)
    assert names(queue.reserve(4, keepalive=1)) == ["high too", "high", "usual", "low"]
    clock.advance(1001)
    queue.push("last high", priority=2)
    assert names(queue.reserve(5)) == ["high too", "high", "last high", "usual", "low"]


def test_a_hint_that_no_worker_gets_delays_a_task_by_a_poll(client: Client, raw: redis.Redis, keys: Keys) -> None:
    """Stated choice 6: hints are hints, polling is the guarantee. The task is there, and no hint comes."""
    ran: list[str] = []

    @job(name="choices.unhinted", queue="unhinted")
    def unhinted() -> None:
        ran.append("ran")

    use(client)
    client.queue("unhinted").pause()
    worker = Worker(queues=["unhinted"], client=client, poll=0.3)
    try:
        worker.start()
        unhinted.enqueue()
        wait_for(lambda: not raw.exists(keys.queue("unhinted").wake))
        raw.hdel(keys.queue("unhinted").settings, "paused")
        wait_for(lambda: ran, timeout_s=20)
    finally:
        worker.stop(grace=5)
        forget()


def test_what_is_given_back_without_a_delay_is_there_for_the_next_reserve_behind_what_came_before(
    client: Client, clock: Clock
) -> None:
    """Amendment: rollback(delay=0) and move(delay=0)."""
    clock.set()
    one, two = client.queue("p/one"), client.queue("p/two")
    one.push_many(["a", "b"])
    first, second = one.reserve(2)
    one.push("c")
    first.rollback(delay=0)
    one.push("d")
    assert names(one.reserve(9)) == ["c", "a", "d"]
    two.push("x")
    second.move("p/two", delay=0)
    two.push("y")
    assert names(two.reserve(9)) == ["x", "b", "y"]


def test_one_lease_for_a_key_keeps_its_order_over_a_crash_and_not_over_a_failure(queue: Queue, clock: Clock) -> None:
    """Amendment, order per key: as decision 5 has it."""
    queue.configure(max_inflight_per_partition=1)
    queue.push_many([Item("a1", partition="a"), Item("a2", partition="a"), Item("b1", partition="b")])
    assert sorted(names(queue.reserve(9, keepalive=1))) == ["a1", "b1"]
    clock.advance(1001)
    leases = queue.reserve(9)
    assert sorted(names(leases)) == ["a1", "b1"]
    leases[names(leases).index("a1")].rollback(delay=5)
    assert names(queue.reserve(9)) == ["a2"]
