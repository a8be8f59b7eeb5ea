"""Rows MOABX-01 to MOABX-09 from Moab's other pages, as far as they are met; the others and why: decision 5.

Where a row is not met as written, the test shows the behaviour that replaces it.
"""


import traceback
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis

from jobrunner import Backoff, Client, Item, Job, Queue, RateLimit, TaskHandle, Unique, Worker, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.errors import InvalidName, InvalidOption, TaskGone, UnknownOption
from jobrunner.periodic import PeriodicDefinition
from jobrunner.schedule import Cron
from tests.acceptance.row_queues import NOW_MS, Audit, states, take
from tests.support.clock import Clock


@pytest.fixture
def queue(client: Client, clock: Clock) -> Queue:
    """A queue on a stopped clock."""
    clock.set(NOW_MS)
    return client.queue("q")


@pytest.fixture(autouse=True)
def conserved(audit: Audit) -> Iterator[None]:
    """Every test ends with the books of its queue in order."""
    yield
    audit("q")


def fail_until_dead(queue: Queue, clock: Clock, error: str = "no") -> int:
    """How many attempts the only task there is was given."""
    attempts = 0
    while leases := queue.reserve():
        attempts += 1
        assert leases[0].attempts == attempts
        leases[0].rollback(delay=1, error=error)
        clock.advance(1000)
    return attempts


def test_a_lease_that_ends_puts_its_task_back(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """MOABX-01: out of the index of those in flight, into the main one; attempts grow with the next pick-up."""
    own = keys.queue("q")
    task = client.task(queue.push("x"))
    assert take(queue, keepalive=1).attempts == task.attempts == 1
    assert (raw.zcard(own.pending), raw.zcard(own.leases), raw.zcard(own.waiting)) == (1, 1, 0)
    clock.advance(1000)
    assert queue.counts() == states(waiting=1)
    assert (raw.zcard(own.pending), raw.zcard(own.leases), raw.zcard(own.waiting)) == (0, 0, 1)
    assert (task.record().state, task.attempts, task.retry_count) == ("waiting", 1, 1)
    assert take(queue).attempts == task.record().attempts == 2


@pytest.mark.parametrize(
    ("configured", "own", "attempts"),
    [(1, 3, 3), (3, 1, 1), (3, None, 3), (1, None, 1), (None, None, 5), (None, 2, 2), (2, 0, None), (0, None, None)],
)
def test_a_task_may_be_retried_otherwise_than_its_queue(
    queue: Queue, clock: Clock, configured: int | None, own: int | None, attempts: int | None
) -> None:
    """MOABX-02, MOAB-34: its own number of attempts counts, else that of the queue, else five; 0 is no limit."""
    queue.configure(max_attempts=configured)
    queue.push("x", max_attempts=own)
    if attempts is not None:
        assert fail_until_dead(queue, clock) == attempts
        assert queue.counts() == states(dead=1)
        return
    for attempt in range(1, 51):
        lease = take(queue)
        assert lease.attempts == attempt
        lease.rollback(delay=0)
        clock.advance(1)


def test_a_queue_has_a_strategy_of_retries_and_a_job_its_own(queue: Queue, clock: Clock, client: Client) -> None:
    """MOABX-02, MOAB-34: how long they wait is the queue's choice too; one report may say otherwise."""
    queue.configure(backoff=Backoff(base=3, factor=2, jitter=0))
    task = client.task(queue.push("x"))
    for wait_s in (3, 6, 12):
        take(queue).rollback()
        assert task.record().when == datetime.fromtimestamp((clock.ms or 0) / 1000 + wait_s, UTC)
        clock.advance(wait_s * 1000)
    take(queue).rollback(delay=0.5)
    clock.advance(500)
    assert take(queue).attempts == 5


def test_a_task_without_attempts_left_is_dead_as_its_queue_keeps_the_dead(
    queue: Queue, clock: Clock, client: Client, raw: redis.Redis, keys: Keys
) -> None:
    """MOABX-03: gone at once without history; limited in number and in time; unlimited in number by default."""
    queue.configure(max_attempts=1, dead_ttl=0)
    gone = client.task(queue.push("gone"))
    take(queue).rollback(error="no")
    assert not gone.exists()
    assert not raw.exists(keys.queue("q").task(gone.id))
    assert queue.counts() == states()

    queue.configure(dead_ttl=timedelta(days=1), dead_max=2)
    ids = queue.push_many(list("abc"))
    for lease in queue.reserve(3):
        lease.rollback(error="no")
        clock.advance(1)
    assert queue.counts() == states(dead=2)
    assert [client.task(task_id).exists() for task_id in ids] == [False, True, True]

    queue.configure(dead_max=0)
    queue.push_many(range(200))
    for lease in queue.reserve(200):
        lease.rollback(error="no")
    assert queue.counts() == states(dead=202)
    clock.advance(86_400_000 - 4)
    assert queue.counts() == states(dead=202)
    clock.advance(4)
    assert queue.counts() == states()
    assert not list(raw.scan_iter(match=keys.queue("q").tasks + b"*"))
    totals = queue.totals()
    assert (totals["dead"], totals["trimmed"]) == (204, 204)


def test_a_failure_may_say_why_and_the_dead_may_be_started_again(queue: Queue, clock: Clock, client: Client) -> None:
    """MOABX-04: dead tasks keep free text, such as a traceback; a requeued task has all its attempts."""
    queue.configure(max_attempts=2)
    one, two = (client.task(task_id) for task_id in queue.push_many(["one", "two"]))
    try:
        raise ValueError("in the \N{SNOWMAN} of it")
    except ValueError:
        text = traceback.format_exc()
    for _ in range(2):
        for lease in queue.reserve(2):
            lease.rollback(delay=0, error=text)
            assert client.task(lease.id).error == text
        clock.advance(1)
    for task in (one, two):
        assert (task.record().state, task.record().attempts, task.record().error) == ("dead", 2, text)
    assert queue.requeue_dead([one.id, "unknown"]) == 1
    assert two.requeue() is True
    assert (one.requeue(), two.requeue()) == (False, False)
    for task in (one, two):
        assert (task.record().state, task.attempts, task.retry_count) == ("waiting", 0, 0)
    assert [lease.attempts for lease in queue.reserve(2)] == [1, 1]


@job(queue="q", name="RowsPerishable", expires_in=1, max_attempts=1)
class Perishable(Job):
    """Is of use for a second."""

    def run(self) -> None:
        """Nothing."""


def test_a_task_that_expired_is_never_returned(queue: Queue, clock: Clock, current: Client) -> None:
    """MOABX-05: by the queue's setting or the job's own; the time it is delayed counts; at the instant it is over."""
    delayed = Perishable().enqueue(in_=2)
    lasting = queue.push("no setting")
    clock.advance(2000)
    assert [lease.id for lease in queue.reserve(9)] == [lasting]
    assert (delayed.state, delayed.error) == ("dead", "expired before it started")

    queue.configure(expires_in=timedelta(seconds=1))
    perished = queue.push_many(["x", Item("delayed", in_=0.5), Item("delayed past it", in_=2)])
    clock.advance(999.999)
    assert [lease.id for lease in queue.reserve(9)] == perished[:2]
    clock.advance(0.001)
    assert [current.task(task_id).state for task_id in perished] == ["pending", "pending", "scheduled"]
    fresh = queue.push("fresh")
    clock.advance(1000)
    assert queue.pop(9) == []
    assert {current.task(task_id).state for task_id in (fresh, perished[2])} == {"dead"}
    assert queue.totals()["expired"] == 3
    for wrong in (0, -1, float("inf"), "1"):
        with pytest.raises(InvalidOption, match="expires_in"):
            queue.configure(expires_in=wrong)


def test_lengths_sizes_and_names_are_checked(queue: Queue, client: Client) -> None:
    """Instead of MOABX-06: any keepalive above 0, batches of any size, names with dots and colons too."""
    for wrong in (0, -5, float("nan"), "5", True):
        with pytest.raises(InvalidOption, match="keepalive"):
            queue.configure(keepalive=wrong)
        with pytest.raises(InvalidOption, match="keepalive"):
            queue.push("x", keepalive=wrong)
    for right in (0.001, 5, 60, 3600, timedelta(days=7)):
        queue.configure(keepalive=right)
    for wrong in (0, -1, 1.5, "3", True, None):
        with pytest.raises(InvalidOption, match="n="):
            queue.reserve(wrong)
    queue.push_many(range(30))
    assert [len(queue.reserve()), len(queue.reserve(20)), len(queue.reserve(100))] == [1, 20, 9]
    for name in ("a", "A-z_0.9:x", "x" * 128, "p/a"):
        assert client.queue(name).counts()["waiting"] == 0
    for name in ("", "x" * 129, "a b", "a/b/c", "ä", "a{b}", "a\n", "*", None):
        with pytest.raises(InvalidName):
            client.queue(name)
    with pytest.raises(UnknownOption, match="did you mean 'keepalive'"):
        queue.configure(keep_alive=5)


@job(queue="q", name="RowsDeduplicated", unique=Unique(by=["key"]), result_ttl=60)
class Deduplicated(Job):
    """One for each key."""

    key: str
    value: int = 0

    def run(self) -> int:
        """Its value."""
        return self.value


@job(queue="q", name="RowsOverwritten", unique=Unique(by=["key"], on_clash="replace"), result_ttl=60)
class Overwritten(Deduplicated):
    """One for each key: the last that was asked for."""


def run_all(client: Client) -> None:
    Worker([], ["q"], client=client).run(drain=True)


def test_there_is_one_task_for_each_key(queue: Queue, clock: Clock, current: Client) -> None:
    """MOABX-07: waiting, delayed, in flight or between two attempts; a second one is skipped and no error. Its handle
    is that of the first one."""
    clock.ms = None
    first = Deduplicated(key="k", value=1).enqueue()
    assert Deduplicated(key="k", value=2).enqueue().id == first.id
    other = Deduplicated(key="other", value=3).enqueue(in_=0.01)
    assert [task.id for task in Deduplicated.enqueue_many([Deduplicated(key=key) for key in ("k", "other", "k")])] == [
        first.id, other.id, first.id,
    ]  # fmt: skip
    assert sum(queue.counts().values()) == 2
    lease, *_ = queue.reserve()
    assert (lease.id, Deduplicated(key="k", value=4).enqueue().id) == (first.id, first.id)
    lease.rollback(delay=0)
    assert Deduplicated(key="k", value=5).enqueue().id == first.id
    run_all(current)
    assert (first.result(timeout=0), other.result(timeout=0)) == (1, 3)
    assert queue.totals()["enqueued"] == 2

    again = Deduplicated(key="k", value=6).enqueue()
    assert again.id != first.id
    run_all(current)
    assert again.result(timeout=0) == 6


def test_a_second_task_for_a_key_may_overwrite_the_first(queue: Queue, clock: Clock, current: Client) -> None:
    """MOABX-07: its payload and due time, as long as it was not begun."""

    def due(task: TaskHandle[Any]) -> float:
        when = task.record().when
        assert when is not None
        return when.timestamp() * 1000 - NOW_MS

    task = Overwritten(key="k", value=1).enqueue(in_=60)
    assert due(task) == 60_000
    assert Overwritten(key="k", value=2).enqueue(in_=90).id == task.id
    assert (due(task), task.record().payload) == (90_000, b'{"key":"k","value":2}')
    assert Overwritten(key="k", value=3).enqueue().id == task.id
    assert queue.counts() == states(waiting=1)
    lease = take(queue)
    assert lease.id == task.id
    assert msgspec.json.decode(current.task(task.id).record().payload) == {"key": "k", "value": 3}
    assert Overwritten(key="k", value=4).enqueue().id == task.id
    assert current.task(task.id).record().payload == b'{"key":"k","value":3}'
    lease.commit()
    assert Overwritten(key="k", value=5).enqueue().id != task.id


def test_a_tick_becomes_a_task_when_it_is_there_and_names_its_exact_time(
    queue: Queue, clock: Clock, broker: Broker, keys: Keys
) -> None:
    """Instead of MOABX-08: the leader wakes at the tick by the server's clock, not at intervals; a leader that is late
    makes one task for the last tick, whose id contains the tick's time in milliseconds."""
    schedule = Cron("* * * * *", "Europe/Madrid")
    definition = PeriodicDefinition(name="minutely", queue="q", schedule=schedule.spec(), payload=b"{}",
                                    catch_up="last", overlap="allow", jitter=0.0)  # fmt: skip
    leader = PeriodicTicks(broker, keys, None)

    def look_at(second: float) -> float:
        """One scan of the leader; a worker still knows the job. Returns when the next tick is due."""
        clock.set(NOW_MS + second * 1000)
        broker.run(leader_calls.define_periodics(keys, {"minutely": msgspec.json.encode(definition)}))
        return second + leader.step(1, datetime.fromtimestamp(NOW_MS / 1000 + second, UTC))

    def ticks() -> list[float]:
        return [((int(task_id[:16], 16) >> 16) - NOW_MS) / 1000 for task_id in queue.ids("waiting")]

    assert datetime.fromtimestamp(NOW_MS / 1000, UTC).second == 20
    assert look_at(0) <= 30  # it reads the definitions again by then
    assert look_at(39.9) == pytest.approx(40)
    assert ticks() == []
    assert look_at(40) > 40
    assert ticks() == [40]
    look_at(137)
    assert ticks() == [40, 100]
    for wrong in ("* * * *", "* * * * * * * *", "61 * * * *", "@reboot"):
        with pytest.raises(InvalidOption):
            Cron(wrong)
    with pytest.raises(InvalidOption, match="Mars"):
        Cron("* * * * *", "Mars/Olympus")


def test_configure_changes_what_it_names_and_none_takes_it_away(queue: Queue, clock: Clock) -> None:
    """Instead of MOABX-09: settings are changed one by one, without a version; settings that are not named stay."""
    queue.push_many(range(30))
    queue.configure(rate=RateLimit(max_tokens=3), max_inflight=20, keepalive=9)
    assert len(queue.reserve(30)) == 3
    queue.configure(max_inflight=10)
    assert (queue.settings().rate, queue.settings().keepalive) == (RateLimit(max_tokens=3), 9)
    assert queue.reserve(30) == []
    queue.configure(rate=None)
    assert (queue.settings().rate, queue.settings().max_inflight) == (None, 10)
    assert len(queue.reserve(30)) == 7


def test_a_dead_task_that_is_gone_says_so(queue: Queue, client: Client) -> None:
    """MOABX-03: a later request for the result fails with the reason that it is no longer kept."""
    queue.configure(max_attempts=1, dead_ttl=0)
    task = client.task(queue.push("x"))
    take(queue).rollback()
    with pytest.raises(TaskGone):
        task.record()
    assert task.exists() is False
    assert queue.requeue_dead() == 0
