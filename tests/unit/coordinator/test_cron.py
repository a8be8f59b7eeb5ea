"""Each tick becomes exactly one task, however many processes fire it. Time is passed in; the server's clock is set."""

from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import redis

from jobrunner import Client, Worker
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import command
from jobrunner.broker.calls import events, leases, queues
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.periodic_state import switch
from jobrunner.coordinator.cron import PeriodicTicks, tick_id
from jobrunner.errors import OutcomeUnknown
from jobrunner.periodic import PeriodicDefinition, read_definition
from jobrunner.schedule import Cron, Every
from tests.support.clock import Clock
from tests.support.waiting import wait_for

SECOND = timedelta(seconds=1)


@pytest.fixture
def start(clock: Clock) -> datetime:
    """The instant at which the clock is stopped at first."""
    return datetime.fromtimestamp(clock.set() / 1000, UTC)


@pytest.fixture
def fire(broker: Broker, keys: Keys) -> PeriodicTicks:
    return PeriodicTicks(broker, keys, None)


class Town:
    """Publishes jobs, moves the clock, and reads the queue."""

    def __init__(self, broker: Broker, keys: Keys, clock: Clock, start: datetime) -> None:
        self.broker, self.keys, self.clock, self.start = broker, keys, clock, start

    def publish(self, name: str = "tick", *, queue: str = "q", **fields: Any) -> PeriodicDefinition:
        known: dict[str, Any] = {"schedule": Every(1).spec(), "catch_up": "last", "overlap": "allow", "jitter": 0.0}
        made = PeriodicDefinition(name=name, queue=queue, payload=b"{}", **{**known, **fields})
        self.broker.run(leader_calls.define_periodics(self.keys, {name: msgspec.json.encode(made)}))
        return made

    def at(self, seconds: float) -> datetime:
        """Sets the clock to that many seconds after the start."""
        instant = self.start + timedelta(seconds=seconds)
        self.clock.set(instant.timestamp() * 1000)
        return instant

    def switch(self, name: str = "tick", *, enabled: bool) -> None:
        time = command("ECHO", repr(self.clock.ms), read=float)
        with patch("jobrunner.client.periodic_state.server_time", lambda: time):
            run_operation(self.broker, switch(self.keys, name, enabled=enabled))

    def waiting(self, queue: str = "q") -> list[str]:
        return self.broker.run(queues.ids(self.keys.queue(queue), "waiting", start=0, count=100))

    def ticks(self, queue: str = "q") -> list[float]:
        """Seconds after the start of the ticks whose tasks wait, read from their ids."""
        start_ms = self.start.timestamp() * 1000
        return [((int(task_id[:16], 16) >> 16) - start_ms) / 1000 for task_id in self.waiting(queue)]

    def finish(self, queue: str = "q") -> None:
        """Runs all that waits."""
        keys = self.keys.queue(queue)
        taken = self.broker.run(leases.reserve(keys, 100, token=f"t{self.clock.ms}")).attempts
        assert taken
        self.broker.run(leases.commit(keys, [(one.id, one.token, 0, "succeeded", b"") for one in taken]))

    def state(self, name: str = "tick", queue: str = "q") -> dict[str, bytes]:
        return self.broker.run(leader_calls.periodic_state(self.keys.queue(queue), name))


@pytest.fixture
def town(broker: Broker, keys: Keys, clock: Clock, start: datetime) -> Town:
    return Town(broker, keys, clock, start)


def test_a_job_that_never_ran_runs_at_once_and_then_at_its_interval(fire: PeriodicTicks, town: Town) -> None:
    """MOSQ-27, MOSQ-28"""
    town.publish()
    assert fire.step(1, town.at(0)) == 1.0
    assert town.ticks() == [0]
    assert fire.step(1, town.at(0.4)) == pytest.approx(0.6)
    assert town.ticks() == [0]
    for second in (1, 2, 3):
        fire.step(1, town.at(second))
    assert town.ticks() == [0, 1, 2, 3]


def test_jobs_that_are_due_together_share_round_trips(
    fire: PeriodicTicks, town: Town, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One each would hold a leader up for minutes, with thousands of jobs on a server that is some milliseconds away.
    One of them has no state that can be read, and is no matter of the others."""
    for number in range(30):
        town.publish(f"tick{number}")
    town.broker.run(command("SET", town.keys.queue("q").periodic("tick7"), "damaged", read=str))
    fire.step(1, town.at(0))
    trips: list[int] = []
    for name in ("run", "run_many", "run_each"):
        real = getattr(broker, name)
        monkeypatch.setattr(broker, name, lambda calls, *_, ask=real: trips.append(1) or ask(calls))
    fire.step(1, town.at(1))
    assert len(trips) < 5
    assert town.ticks().count(1.0) == 29
    assert len(town.ticks()) == 58


def test_publishing_alone_creates_no_task(town: Town) -> None:
    """MOSQ-26"""
    town.publish()
    assert town.waiting() == []


def test_a_tick_becomes_a_task_like_any_other(fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys) -> None:
    """MOSQ-29"""
    town.publish(priority=2, max_attempts=7, keepalive_ms=900)
    fire.step(1, town.at(0))
    (task_id,) = town.waiting()
    task = raw.hgetall(keys.queue("q").task(task_id))
    assert task[b"type"] == b"tick"
    assert (task[b"priority"], task[b"max_attempts"], task[b"keepalive_ms"]) == (b"2", b"7", b"900")
    assert raw.hgetall(keys.queue("q").counters)[b"enqueued"] == b"1"


@pytest.fixture
def read_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Definitions are read at each turn."""
    monkeypatch.setattr("jobrunner.coordinator.periodic_jobs._READ_EVERY_S", 0.0)


DAY_S = 86_400


@pytest.mark.usefixtures("read_anew")
def test_the_state_of_a_job_that_was_removed_has_an_end(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    town.publish()
    fire.step(1, town.at(0))
    state = keys.queue("q").periodic("tick")
    assert raw.pttl(state) == -1

    fire.step(1, town.at(7 * DAY_S - 1))
    assert raw.hlen(keys.periodics) == 1
    assert raw.pttl(state) == -1
    fire.step(1, town.at(7 * DAY_S + 1))
    assert raw.hlen(keys.periodics) == raw.zcard(keys.periodics_seen) == raw.hlen(keys.periodics_deployed) == 0
    assert 399 * DAY_S < raw.ttl(state) <= 400 * DAY_S
    assert raw.hlen(keys.periodics_queues) == 0

    town.publish(catch_up="none")
    fire.step(1, town.at(7 * DAY_S + 2))
    assert raw.pttl(state) == -1, "it is known again"
    assert town.ticks() == [0, 7 * DAY_S + 2], "and goes on from its last tick"


@pytest.mark.usefixtures("read_anew")
def test_a_removed_job_that_somebody_disabled_stays_so(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    town.publish()
    fire.step(1, town.at(0))
    town.broker.run(leader_calls.enable_periodic(keys.queue("q"), "tick", enabled=False))

    fire.step(1, town.at(7 * DAY_S + 1))
    assert raw.hlen(keys.periodics) == 0
    assert raw.pttl(keys.queue("q").periodic("tick")) == -1

    town.publish()
    fire.step(1, town.at(1000 * DAY_S))
    assert town.ticks() == [0]


def test_three_leaders_fire_each_tick_once(broker: Broker, keys: Keys, town: Town) -> None:
    """MOSQ-28: all three believe that they lead."""
    leaders = [PeriodicTicks(broker, keys, None) for _ in range(3)]
    town.publish()
    for half in range(20):
        now = town.at(half / 2)
        for leader in leaders[half % 3 :] + leaders[: half % 3]:
            leader.step(1, now)
    assert town.ticks() == list(range(10))


@pytest.mark.parametrize(
    ("catch_up", "missed"), [("last", [10]), ("none", []), (3, [8, 9, 10]), (50, list(range(1, 11)))]
)
def test_missed_ticks_are_caught_up_as_the_job_says(
    fire: PeriodicTicks, town: Town, catch_up: Any, missed: list[int]
) -> None:
    """MOSQ-28: nothing ran for ten intervals and a bit; the grid does not shift."""
    town.publish(catch_up=catch_up, schedule=Every(20).spec())
    fire.step(1, town.at(0))
    town.finish()
    now = town.at(215)
    town.publish(catch_up=catch_up, schedule=Every(20).spec())
    fire.forget()
    fire.step(1, now)
    assert town.ticks() == [tick * 20 for tick in missed]
    fire.step(1, town.at(220))
    assert town.ticks()[-1] == 220


@pytest.mark.parametrize(("late_s", "fired"), [(40, 1), (80, 0)])
def test_a_tick_that_waits_for_the_next_leader_is_not_missed(
    fire: PeriodicTicks, town: Town, client: Client, late_s: float, fired: int
) -> None:
    """With catch_up="none" it was left out when another worker led later than ten seconds after it."""
    town.publish(catch_up="none", schedule=Every(3600).spec(), overlap="allow")
    town.publish("other", queue="other", schedule=Every(3600).spec())
    fire.step(1, town.start - timedelta(seconds=3600 + late_s))
    town.broker.run(queues.purge(town.keys.queue("q"), "waiting"))

    worker = Worker(queues=["unserved"], client=client, leader_ttl=60)
    worker.start()
    try:
        wait_for(lambda: len(town.waiting("other")) == 2)
        wait_for(lambda: len(town.waiting()) == fired)
    finally:
        worker.stop(grace=0)


def test_a_tick_is_skipped_while_the_task_of_an_earlier_one_is_not_finished(fire: PeriodicTicks, town: Town) -> None:
    """MOSQ-28: no pile-up behind a slow job."""
    town.publish(overlap="skip")
    for second in range(4):
        fire.step(1, town.at(second))
    assert town.ticks() == [0]
    assert town.state()["skipped"] == b"3"
    town.finish()
    fire.step(1, town.at(4))
    assert town.ticks() == [4]


def test_ticks_that_are_made_up_for_together_are_no_overlap(fire: PeriodicTicks, town: Town) -> None:
    """MOSQ-28: the task of the newest tick that is still there keeps later ticks out, not those of its own batch."""
    town.publish(overlap="skip", catch_up=3, schedule=Every(20).spec())
    fire.step(1, town.at(0))
    town.publish(overlap="skip", catch_up=3, schedule=Every(20).spec())
    fire.forget()
    fire.step(1, town.at(205))
    assert town.ticks() == [0]

    town.finish()
    town.at(310)
    town.publish(overlap="skip", catch_up=3, schedule=Every(20).spec())
    fire.forget()
    fire.step(1, town.at(310))
    assert town.ticks() == [260, 280, 300]
    fire.step(1, town.at(320))
    assert town.ticks() == [260, 280, 300]


def test_ticks_are_caught_up_though_the_leader_dies_between_them(
    fire: PeriodicTicks, town: Town, broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: dict[str, Any] = {"schedule": Every(20).spec(), "overlap": "skip", "catch_up": 5}
    turns(fire, town, 0, **job)
    town.finish()
    fires, run_each = [], broker.run_each

    def run_and_die(calls: Any) -> Any:
        said = run_each(calls)
        fires.extend(one for one in said if one == "fired")
        if len(fires) == 2:
            raise OutcomeUnknown("the leader never reads this reply")
        return said

    with monkeypatch.context() as patched:
        patched.setattr(broker, "run_each", run_and_die)
        with pytest.raises(OutcomeUnknown):
            turns(PeriodicTicks(broker, keys, None), town, 105, epoch=2, **job)
    turns(PeriodicTicks(broker, keys, None), town, 106, 120, epoch=3, **job)
    assert town.ticks() == [20, 40, 60, 80, 100]


def test_overlapping_runs_are_allowed_when_the_job_says_so(fire: PeriodicTicks, town: Town) -> None:
    town.publish(overlap="allow")
    for second in range(3):
        fire.step(1, town.at(second))
    assert town.ticks() == [0, 1, 2]


def test_a_cron_job_waits_for_its_time(fire: PeriodicTicks, town: Town, start: datetime) -> None:
    town.publish(schedule=Cron("* * * * *").spec())
    until = 60 - start.second
    assert fire.step(1, town.at(0)) <= until
    assert town.waiting() == []
    fire.step(1, town.at(until - 0.001))
    assert town.waiting() == []
    fire.step(1, town.at(until))
    assert town.ticks() == [until]


def test_a_turn_computes_no_ticks_of_a_job_that_is_not_due(
    fire: PeriodicTicks, town: Town, start: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tick of any job is a turn: with hundreds of cron jobs, those that are not due took a tenth of a core."""
    first = 60 - start.second
    town.publish(schedule=Cron("* * * * *").spec())
    for second in (0, first):
        fire.step(1, town.at(second))
    asked: list[datetime] = []
    for name in ("next_after", "last_until"):
        ask = getattr(Cron, name)
        monkeypatch.setattr(Cron, name, lambda self, at, ask=ask: asked.append(at) or ask(self, at))

    for second in (0.001, 59.001):
        assert fire.step(1, town.at(first + second)) <= 60 - second
    assert asked == []
    fire.step(1, town.at(first + 60))
    assert asked
    assert town.ticks() == [first, first + 60]


def test_the_start_of_a_cron_job_is_remembered_over_a_change_of_leaders(broker: Broker, keys: Keys, town: Town) -> None:
    town.publish(schedule=Cron("* * * * *").spec())
    PeriodicTicks(broker, keys, None).step(1, town.at(0))
    PeriodicTicks(broker, keys, None).step(2, town.at(60))
    assert len(town.waiting()) == 1


def test_an_older_leader_is_fenced_off(broker: Broker, keys: Keys, town: Town) -> None:
    """It was suspended, another one led meanwhile, and it goes on as if nothing had happened."""
    old, new = PeriodicTicks(broker, keys, None), PeriodicTicks(broker, keys, None)
    town.publish()
    old.step(1, town.at(0))
    new.step(2, town.at(1))
    before = town.state()
    pause = old.step(1, town.at(2))
    assert town.ticks() == [0, 1]
    assert town.state() == before
    assert pause >= 0.05, "it does not spin until it learns that it leads no more"


def test_a_clock_that_steps_back_doubles_no_tick(fire: PeriodicTicks, town: Town) -> None:
    """MOAB-14"""
    town.publish()
    for seconds in (0, 1, 2, -3, 0, 1, 2, 3):
        fire.step(1, town.at(seconds))
    assert town.ticks() == [0, 1, 2, 3]


def test_a_job_that_no_worker_knows_any_more_is_not_fired(fire: PeriodicTicks, town: Town) -> None:
    town.publish("known")
    town.publish("gone", queue="other")
    fire.step(1, town.at(0))
    town.at(120)
    town.publish("known")
    fire.forget()
    fire.step(1, town.at(121))
    assert len(town.waiting("q")) == 2
    assert len(town.waiting("other")) == 1


def test_a_job_that_is_known_again_is_fired_again_soon(
    fire: PeriodicTicks, town: Town, broker: Broker, keys: Keys
) -> None:
    """The worker that knew it comes back: the version of the definitions changes, so the leader reads them."""
    made = town.publish()
    fire.step(1, town.at(0))
    before = broker.run(leader_calls.take_leadership(keys, "w", ttl_ms=1000)).version
    town.at(120)
    assert broker.run(leader_calls.define_periodics(keys, {"tick": msgspec.json.encode(made)})) == 1
    assert broker.run(leader_calls.take_leadership(keys, "w", ttl_ms=1000)).version > before
    assert broker.run(leader_calls.define_periodics(keys, {"tick": msgspec.json.encode(made)})) == 0


def test_a_job_unknown_for_a_week_is_forgotten(fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys) -> None:
    town.publish()
    fire.step(1, town.at(8 * 86400))
    assert raw.hlen(keys.periodics) == raw.zcard(keys.periodics_seen) == 0


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b'{"name": 3}', b"\xff", b'{"name":"a","queue":"q","schedule":{},"payload":"","catch_up":"x"}'],
)
def test_a_damaged_definition_holds_up_no_other(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys, damaged: bytes
) -> None:
    raw.hset(keys.periodics, "broken", damaged)
    raw.zadd(keys.periodics_seen, {"broken": 1e15})
    town.publish()
    fire.step(1, town.at(0))
    assert town.ticks() == [0]


def test_a_definition_with_an_impossible_queue_holds_up_no_other(fire: PeriodicTicks, town: Town) -> None:
    town.publish("a", queue="no queue {at} all")
    town.publish("b")
    fire.step(1, town.at(0))
    assert len(town.waiting()) == 1


@pytest.mark.parametrize("last", [b"9" * 40, b"-5", b"x", b""])
def test_a_damaged_memory_of_the_last_tick_holds_up_no_other(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys, last: bytes
) -> None:
    raw.hset(keys.queue("q").periodic("a"), "last", last)
    town.publish("a")
    town.publish("b", queue="r")
    for second in range(3):
        fire.step(1, town.at(second))
    assert len(town.waiting("r")) == 3


def test_a_queue_of_the_wrong_type_holds_up_no_other(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    raw.set(keys.queue("q").waiting, "not a sorted set")
    town.publish("a")
    town.publish("b", queue="r")
    for second in range(3):
        fire.step(1, town.at(second))
    assert len(town.waiting("r")) == 3


def test_jitter_moves_the_task_but_not_the_tick(fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys) -> None:
    town.publish(jitter=30.0, schedule=Every(60).spec())
    fire.step(1, town.at(0))
    ((task_id, due_ms),) = raw.zrange(keys.queue("q").scheduled, 0, -1, withscores=True)
    start_ms = town.start.timestamp() * 1000
    assert task_id.decode() == tick_id("tick", round(start_ms), "q")
    assert 0 < due_ms - start_ms < 30_000


def test_a_periodic_job_may_run_in_a_pipelines_queue(fire: PeriodicTicks, town: Town) -> None:
    town.publish(queue="orders/raw")
    fire.step(1, town.at(0))
    assert town.ticks("orders/raw") == [0]


@pytest.mark.parametrize("last", [b"9" * 40, b"x", b""])
def test_a_damaged_last_tick_keeps_no_job_disabled(town: Town, raw: redis.Redis, last: bytes) -> None:
    town.at(0)
    town.publish()
    town.switch(enabled=False)
    raw.hset(town.keys.queue("q").periodic("tick"), "last", last)
    town.switch(enabled=True)
    assert town.state() == {"last": last}


def test_ticks_of_a_job_that_was_switched_off_are_not_made_up_for(fire: PeriodicTicks, town: Town) -> None:
    town.publish(catch_up=10)
    fire.step(1, town.at(0))
    town.finish()
    town.broker.run(leader_calls.enable_periodic(town.keys.queue("q"), "tick", enabled=False))
    fire.step(1, town.at(5))

    town.broker.run(leader_calls.enable_periodic(town.keys.queue("q"), "tick", enabled=True))
    fire.step(1, town.at(6))
    assert town.ticks() == [6.0]


def test_nor_are_those_that_passed_while_no_leader_ran(fire: PeriodicTicks, town: Town) -> None:
    job: dict[str, Any] = {"schedule": Every(DAY_S).spec(), "catch_up": 10}
    turns(fire, town, 0, **job)
    town.switch(enabled=False)
    town.at(3.5 * DAY_S)
    town.switch(enabled=True)
    for epoch, days in ((2, 3.6), (3, 4)):
        fire.forget()
        turns(fire, town, days * DAY_S, epoch=epoch, **job)
    assert town.ticks() == [0, 4 * DAY_S]


@pytest.mark.usefixtures("read_anew")
def test_a_job_that_is_moved_to_another_queue_stays_disabled(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    turns(fire, town, 0)
    town.switch(enabled=False)
    turns(fire, town, 1)
    turns(fire, town, 2, 3, queue="reports")
    assert town.ticks("reports") == []
    assert town.state(queue="reports")["recent"].startswith(b"%d,disabled,;" % (round(town.at(3).timestamp() * 1000)))
    assert raw.exists(keys.queue("q").periodic("tick")) == 0

    town.at(3)
    town.switch(enabled=True)
    turns(fire, town, 4, queue="reports")
    turns(fire, town, 5, queue="mail")
    assert [town.ticks(queue) for queue in ("q", "reports", "mail")] == [[0], [4], [5]]
    assert town.state(queue="mail")["fired"] == b"3"


def test_a_job_that_is_switched_before_a_leader_saw_it_move_is_switched_where_it_is(
    fire: PeriodicTicks, town: Town
) -> None:
    turns(fire, town, 0)
    for enabled, queue in ((False, "reports"), (True, "mail")):
        town.publish(queue=queue)
        town.switch(enabled=enabled)
        assert ("disabled" in town.state(queue=queue)) != enabled
    fire.forget()
    turns(fire, town, 1, queue="mail")
    assert town.ticks("mail") == [1]


@pytest.mark.usefixtures("read_anew")
def test_what_was_left_on_a_queue_at_an_earlier_time_is_not_in_force(fire: PeriodicTicks, town: Town) -> None:
    reports = town.keys.queue("reports")
    town.broker.run(leader_calls.set_periodic_state(reports, "tick", {"disabled": b"1", "last": b"5", "fired": b"9"}))
    turns(fire, town, 0)
    turns(fire, town, 1, queue="reports")
    assert town.ticks("reports") == [1]
    assert town.state(queue="reports")["fired"] == b"2"


@pytest.mark.parametrize("disabled", [False, True])
def test_a_tick_of_a_leader_that_moved_no_state_stays_the_last_one(
    fire: PeriodicTicks, town: Town, disabled: bool
) -> None:
    """A worker of the version before led for a while."""
    turns(fire, town, 0)
    town.broker.run(leader_calls.enable_periodic(town.keys.queue("q"), "tick", enabled=not disabled))
    last = b"%d" % round(town.at(7).timestamp() * 1000)
    town.broker.run(leader_calls.set_periodic_state(town.keys.queue("reports"), "tick", {"last": last}))
    fire.forget()
    turns(fire, town, 7, queue="reports")
    assert town.ticks("reports") == []
    state = town.state(queue="reports")
    assert (state["last"], "disabled" in state) == (last, disabled)


def test_to_enable_a_job_that_is_enabled_costs_no_tick(fire: PeriodicTicks, town: Town) -> None:
    turns(fire, town, 0)
    town.at(5)
    town.switch(enabled=True)
    turns(fire, town, 5)
    assert town.ticks() == [0, 5]


def test_where_nothing_is_published_one_command_tells(fire: PeriodicTicks, raw: redis.Redis, start: datetime) -> None:
    calls = raw.info("commandstats").get("cmdstat_zrange", {}).get("calls", 0)
    fire.step(1, start)
    assert raw.info("commandstats").get("cmdstat_zrange", {}).get("calls", 0) == calls


@pytest.mark.parametrize("schedule", [Every(1).spec(), Cron("* * * * * *").spec()])
def test_a_clock_that_was_ahead_silences_no_job(
    fire: PeriodicTicks, town: Town, broker: Broker, keys: Keys, schedule: dict[str, Any]
) -> None:
    town.publish(schedule=schedule)
    for second in (0, 1):
        fire.step(1, town.at(second))
    fire.step(1, town.at(3601))
    assert 3601 in town.ticks()
    before = len(town.ticks())

    fire.step(1, town.at(4))
    fire.step(1, town.at(4.2))
    for second in (5, 6, 7):
        fire.step(1, town.at(second))
    assert len(town.ticks()) - before == 3
    (event,) = [one for one in broker.run(events.newest(keys, count=100)) if one.kind == "periodic_reanchored"]
    assert (event.queue, event.job, event.details) == ("q", "tick", {"ahead_s": "3597"})


NOON = datetime(2024, 3, 20, 12, tzinfo=UTC)
HOUR_S = 3600


def turns(fire: PeriodicTicks, town: Town, *seconds: float, epoch: int = 1, **fields: Any) -> None:
    """Turns of the leader at these instants, with a worker that publishes the job at each."""
    for second in seconds:
        town.at(second)
        town.publish(**fields)
        fire.step(epoch, town.at(second))


@pytest.mark.usefixtures("read_anew")
def test_a_changed_schedule_counts_from_the_moment_of_the_change(fire: PeriodicTicks, town: Town) -> None:
    """Deployed at 14:00: no tick of the new schedule since 03:00 is made up for. Another leader changes nothing."""
    town.start = NOON
    turns(fire, town, 0, 15 * HOUR_S, schedule=Cron("0 3 * * *").spec(), catch_up=100)
    changed: dict[str, Any] = {"schedule": Cron("0 4,*/6 * * *").spec(), "catch_up": 100}
    turns(fire, town, 26 * HOUR_S, 26 * HOUR_S + 1, **changed)
    fire.forget()
    turns(fire, town, 30 * HOUR_S + 1, epoch=2, **changed)
    assert town.ticks() == [15 * HOUR_S, 30 * HOUR_S]


@pytest.mark.usefixtures("read_anew")
def test_a_schedule_that_is_changed_while_the_clock_steps_back_goes_on_behind_its_last_tick(
    fire: PeriodicTicks, town: Town
) -> None:
    """It went on from an instant before, so ticks that had fired or been passed came again."""
    turns(fire, town, 0, 10, schedule=Every(10).spec(), catch_up=100)
    turns(fire, town, 8, 9, 10.5, 13, 14.5, schedule=Every(4).spec(), catch_up=100)
    assert town.ticks() == [0, 10, 14]


@pytest.mark.usefixtures("read_anew")
def test_a_job_that_has_not_run_yet_has_its_schedule_noted(fire: PeriodicTicks, town: Town) -> None:
    town.start = NOON
    turns(fire, town, 0, schedule=Cron("0 3 * * *").spec())
    turns(fire, town, 4 * HOUR_S, 4 * HOUR_S + 1, schedule=Cron("0 13 * * *").spec())
    assert town.ticks() == []


@pytest.mark.usefixtures("read_anew")
def test_a_changed_interval_keeps_its_grid(fire: PeriodicTicks, town: Town) -> None:
    turns(fire, town, 0, schedule=Every(86_400).spec(), catch_up=100)
    turns(fire, town, 6010, 6011, 6599, 6600, schedule=Every(600).spec(), catch_up=100)
    assert town.ticks() == [0, 6600]


def test_the_state_of_a_version_that_did_not_note_the_schedule_is_taken_as_it_is(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    town.publish(schedule=Every(20).spec())
    fire.step(1, town.at(0))
    noted = town.state()["schedule"]
    raw.hdel(keys.queue("q").periodic("tick"), "schedule")
    fire.forget()
    fire.step(2, town.at(41))
    assert town.ticks() == [0, 40]
    assert town.state()["schedule"] == noted


def test_a_task_that_waits_by_a_clock_that_was_ahead_keeps_no_tick_out(fire: PeriodicTicks, town: Town) -> None:
    """A day ahead, and back before the task of an hourly job with jitter was due."""
    job: dict[str, Any] = {"schedule": Every(HOUR_S).spec(), "overlap": "skip", "jitter": 600.0}
    turns(fire, town, DAY_S, **job)
    for hour in (1, 2, 3):
        turns(fire, town, hour * HOUR_S + 1, hour * HOUR_S + 2, **job)
        town.at(hour * HOUR_S + 601)
        town.finish()
    assert (town.state()["fired"], town.state().get("skipped")) == (b"3", None)


def test_the_grid_stays_when_a_clock_was_ahead(fire: PeriodicTicks, town: Town) -> None:
    town.publish(schedule=Every(10).spec())
    fire.step(1, town.at(0))
    fire.step(1, town.at(3605))
    fire.step(1, town.at(13))
    fire.step(1, town.at(21))
    assert sorted(town.ticks()) == [0, 20, 3600]


def test_another_leader_goes_on_too(fire: PeriodicTicks, town: Town, broker: Broker, keys: Keys) -> None:
    ahead = town.at(86_400)
    town.publish()
    fire.step(1, ahead)
    later = PeriodicTicks(broker, keys, None)
    for second in (0.5, 0.7, 1.5, 2.5):
        later.step(2, town.at(second))
    assert sorted(town.ticks())[:2] == [1, 2]


@pytest.mark.parametrize("back_s", [0.5, 2, 10])
def test_a_small_step_back_is_waited_out(fire: PeriodicTicks, town: Town, back_s: float) -> None:
    town.publish()
    fire.step(1, town.at(20))
    fire.step(1, town.at(20 - back_s))
    fire.step(1, town.at(20))
    assert town.ticks() == [20]
    fire.step(1, town.at(21))
    assert town.ticks() == [20, 21]


def test_a_daily_tick_that_was_fired_early_is_not_fired_again(fire: PeriodicTicks, town: Town) -> None:
    """The clock was an hour ahead over the tick: it is done with when the clock comes to it."""
    town.publish(schedule=Every(86_400).spec())
    fire.step(1, town.at(0))
    fire.step(1, town.at(86_400 + 600))
    fire.step(1, town.at(86_400 - 3_000))
    fire.step(1, town.at(86_400 + 1))
    assert town.ticks() == [0, 86_400]


def test_a_tick_is_made_up_for_when_what_was_damaged_is_mended(
    fire: PeriodicTicks, town: Town, raw: redis.Redis, keys: Keys
) -> None:
    town.publish("broken", queue="r")
    town.publish()
    raw.set(keys.queue("r").waiting, "damage")
    fire.step(1, town.at(0))
    assert town.ticks() == [0]

    raw.delete(keys.queue("r").waiting)
    fire.step(1, town.at(0.5))
    assert town.ticks("r") == [0.5]


def test_of_two_versions_the_newer_schedule_is_in_force_until_it_is_taken_back(
    fire: PeriodicTicks, town: Town, broker: Broker, keys: Keys
) -> None:
    def publish(interval: int) -> None:
        town.publish(schedule=Every(interval).spec())

    def in_force() -> dict[str, Any]:
        return read_definition(broker.run(leader_calls.periodics(keys))["tick"]).schedule  # type: ignore[union-attr]

    old, new = Every(60).spec(), Every(20).spec()
    town.at(0)
    publish(60)
    assert in_force() == old
    fire.step(1, town.at(0))
    version = broker.run(leader_calls.take_leadership(keys, "w", ttl_ms=1000)).version
    for beat in range(1, 8):
        town.at(10 * beat)
        publish(20)
        assert in_force() == new
        publish(60)
        assert in_force() == new
    assert broker.run(leader_calls.take_leadership(keys, "w", ttl_ms=1000)).version == version + 1, "it changed once"
    fire.reread()
    fire.step(1, town.at(70))
    assert [one.details for one in broker.run(events.newest(keys, count=9)) if one.kind == "periodic_changed"] == [
        {"schedule": "every 20 seconds"}
    ]

    for beat in (8, 9, 10, 11):
        town.at(10 * beat)
        publish(60)
    assert in_force() == old
