"""The leader fires periodic jobs that were added at run time as those that workers publish."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import redis

from jobrunner import Client, Job, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import events, queues
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.periodic import PeriodicDefinition
from jobrunner.schedule import Every
from tests.support.clock import Clock


@job(name="fired.report", queue="reports", max_attempts=3, priority=2)
class Report(Job):
    customer: str

    def run(self) -> None: ...


@pytest.fixture
def start(clock: Clock) -> datetime:
    return datetime.fromtimestamp(clock.set() / 1000, UTC)


class Leader:
    """A leader, which reads the definitions only when it is told that they changed."""

    def __init__(self, broker: Broker, keys: Keys, clock: Clock, start: datetime) -> None:
        self.ticks = PeriodicTicks(broker, keys, None)
        self._clock, self._start = clock, start

    def at(self, seconds: float, *, reads: bool = False) -> None:
        instant = self._start + timedelta(seconds=seconds)
        self._clock.set(instant.timestamp() * 1000)
        if reads:
            self.ticks.reread()
        self.ticks.step(1, instant)


@pytest.fixture
def leader(broker: Broker, keys: Keys, clock: Clock, start: datetime) -> Leader:
    return Leader(broker, keys, clock, start)


def waiting(broker: Broker, keys: Keys, queue: str = "reports") -> list[str]:
    return broker.run(queues.ids(keys.queue(queue), "waiting", start=0, count=100))


def test_each_tick_is_a_task_of_its_job_with_its_parameters(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, broker: Broker
) -> None:
    client.add_periodic("acme", Report(customer="acme").using(timeout=5), every=60, overlap="allow")
    for second in (0, 30, 60, 120):
        leader.at(second)
    found = waiting(broker, keys)
    assert len(found) == 3
    task = raw.hgetall(keys.queue("reports").task(found[0]))
    assert (task[b"type"], task[b"payload"]) == (b"fired.report", b'{"customer":"acme"}')
    assert (task[b"max_attempts"], task[b"priority"], b"timeout" in task[b"headers"]) == (b"3", b"2", True)
    (record,) = client.periodics()
    assert (record.fired, record.recent[0].outcome) == (3, "fired")


def test_jobs_of_one_kind_tick_by_their_names(leader: Leader, client: Client, keys: Keys, broker: Broker) -> None:
    for name in ("acme", "bolt"):
        client.add_periodic(name, Report(customer=name), every=60)
    leader.at(0)
    leader.at(60)
    assert len(waiting(broker, keys)) == 2, "each is kept single for itself"


def test_no_tick_fires_after_a_removal_that_the_leader_has_not_heard_of(
    leader: Leader, client: Client, keys: Keys, broker: Broker
) -> None:
    client.add_periodic("acme", Report(customer="acme"), every=60, overlap="allow")
    leader.at(0)
    client.remove_periodic("acme")
    leader.at(60)
    assert len(waiting(broker, keys)) == 1
    client.add_periodic("acme", Report(customer="acme"), every=60, overlap="allow")
    leader.at(120)
    assert len(waiting(broker, keys)) == 1, "that of the removed one"
    leader.at(130, reads=True)
    assert len(waiting(broker, keys)) == 2, "the first of its successor"


def test_a_replaced_one_goes_on_with_its_ticks(leader: Leader, client: Client, keys: Keys, broker: Broker) -> None:
    client.add_periodic("acme", Report(customer="acme"), every=600, overlap="allow")
    leader.at(0)
    client.add_periodic("acme", Report(customer="other"), every=600, overlap="allow")
    leader.at(300, reads=True)
    assert len(waiting(broker, keys)) == 1, "no tick anew"
    client.add_periodic("acme", Report(customer="other").using(queue="slow"), every=60, overlap="allow", catch_up=9)
    leader.at(330, reads=True)
    leader.at(331)
    assert waiting(broker, keys, "slow") == [], "no tick from before the change"
    leader.at(361)
    assert len(waiting(broker, keys, "slow")) == 1
    kinds = [one.kind for one in broker.run(events.newest(keys, count=100))]
    assert kinds.count("periodic_changed") == 1


def test_a_disabled_one_stays_so_when_replaced(leader: Leader, client: Client, keys: Keys, broker: Broker) -> None:
    client.add_periodic("acme", Report(customer="acme"), every=60)
    client.disable_periodic("acme")
    client.add_periodic("acme", Report(customer="other"), every=60)
    leader.at(0)
    assert waiting(broker, keys) == []


@pytest.mark.parametrize("damage", [b"{}", b"x", b""])
def test_a_damaged_one_holds_up_no_other(
    leader: Leader, client: Client, keys: Keys, broker: Broker, raw: redis.Redis, damage: bytes
) -> None:
    raw.hset(keys.periodics_added, "a", damage)
    client.add_periodic("b", Report(customer="b"), every=60)
    leader.at(0)
    assert len(waiting(broker, keys)) == 1
    assert [record.name for record in client.periodics()] == ["b"]
    client.remove_periodic("a")
    assert raw.hkeys(keys.periodics_added) == [b"b"]


def test_a_job_that_code_declares_later_by_its_name_takes_its_place(
    leader: Leader, client: Client, keys: Keys, broker: Broker
) -> None:
    client.add_periodic("nightly", Report(customer="acme"), every=60)
    known: dict[str, Any] = {"schedule": Every(60).spec(), "catch_up": "last", "overlap": "allow", "jitter": 0.0}
    declared = PeriodicDefinition(name="nightly", queue="q", payload=b"{}", **known)
    broker.run(leader_calls.define_periodics(keys, {"nightly": msgspec.json.encode(declared)}))
    leader.at(0)
    assert (len(waiting(broker, keys)), len(waiting(broker, keys, "q"))) == (0, 1)
    assert [(record.name, record.added) for record in client.periodics()] == [("nightly", False)]
    client.remove_periodic("nightly")
    assert [(record.name, record.added) for record in client.periodics()] == [("nightly", False)]


def fired_at(raw: redis.Redis, keys: Keys, client: Client, start: datetime) -> list[float]:
    """Seconds from the start of the test to the ticks that fired, oldest first."""
    (record,) = client.periodics()
    return [(one.at - start).total_seconds() for one in record.recent if one.outcome == "fired"][::-1]


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [({"every": 60}, [90, 150, 210]), ({"cron": "* * * * *"}, [100, 160, 220])],  # the clock begins at second 20
)
def test_ticks_fire_from_the_start_to_the_end(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, start: datetime, schedule: Any, expected: list[float]
) -> None:
    begin, end = start + timedelta(seconds=expected[0]), start + timedelta(seconds=expected[-1])
    client.add_periodic("acme", Report(customer="a"), overlap="allow", start=begin, end=end, **schedule)
    for second in range(0, 400, 5):
        leader.at(second)
    assert fired_at(raw, keys, client, start) == expected
    assert [(one.next, one.overdue, one.fired) for one in client.periodics()] == [(None, False, 3)]


@pytest.mark.parametrize(("ago", "expected"), [(0, [0, 60]), (10, [-10, 50]), (11, [49]), (3600, [60])])
def test_a_start_that_was_just_now_counts_and_an_earlier_one_is_a_grid(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, start: datetime, ago: int, expected: list[float]
) -> None:
    """`start=datetime.now(UTC)` fires at once, although the leader reads it some seconds later."""
    client.add_periodic("acme", Report(customer="a"), every=60, overlap="allow", start=start - timedelta(seconds=ago))
    for second in (0, 30, 60):
        leader.at(second)
    assert fired_at(raw, keys, client, start) == expected


def test_a_start_that_passed_while_nobody_led_is_caught_up(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, start: datetime
) -> None:
    client.add_periodic("a", Report(customer="a"), every=3600, start=start + timedelta(seconds=30))
    leader.at(0)
    leader.ticks.forget()
    leader.at(900)
    assert fired_at(raw, keys, client, start) == [30]


def test_no_tick_fires_after_so_many_tasks_whoever_leads(
    leader: Leader, broker: Broker, client: Client, clock: Clock, raw: redis.Redis, keys: Keys, start: datetime
) -> None:
    client.add_periodic("acme", Report(customer="a"), every=60, overlap="allow", catch_up=10, limit=3)
    leader.at(0)
    other = Leader(broker, keys, clock, start)
    other.at(60)
    leader.at(120)  # this one has not heard of the second tick
    leader.at(121)
    for second in (180, 600):
        leader.at(second)
        other.at(second)
    assert fired_at(raw, keys, client, start) == [0, 60, 120]
    assert client.periodics()[0].next is None
    assert client.periodics()[0].schedule == "every minute, 3 tasks at most"

    client.add_periodic("acme", Report(customer="a"), every=60, overlap="allow", catch_up=10, limit=5)
    for second in (601, 660, 720, 1200):
        leader.at(second, reads=True)
    assert len(fired_at(raw, keys, client, start)) == 5


def test_ticks_that_are_caught_up_or_skipped_count_as_the_tasks_they_become(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, start: datetime, broker: Broker
) -> None:
    client.add_periodic("acme", Report(customer="a"), every=60, catch_up=10, limit=4)
    leader.at(0)
    leader.at(60)
    leader.at(120)
    assert client.periodics()[0].skipped == 2
    broker.run(queues.purge(keys.queue("reports"), "waiting"))
    leader.at(600)
    assert len(fired_at(raw, keys, client, start)) == 4


def test_another_start_moves_the_ticks_of_one_that_runs(
    leader: Leader, client: Client, raw: redis.Redis, keys: Keys, start: datetime
) -> None:
    client.add_periodic("acme", Report(customer="a"), every=60, overlap="allow")
    leader.at(0)
    leader.at(60)
    client.add_periodic("acme", Report(customer="a"), every=60, overlap="allow", start=start + timedelta(seconds=205))
    leader.at(61, reads=True)
    for second in (62, 120, 204, 205, 265):
        leader.at(second)
    assert fired_at(raw, keys, client, start) == [0, 60, 205, 265]
