"""Election, expiry and handover of leadership, by the server's clock."""

from collections.abc import Callable

import pytest
import redis

from jobrunner import Client, PeriodicJob, job
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.clock import unix_ms
from jobrunner.coordinator import coordinator
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.coordinator.scan import LeaderScan
from jobrunner.errors import ServerError
from jobrunner.jobs.build import published
from jobrunner.jobs.registry import forget, lookup
from tests.support.clock import Clock
from tests.support.stopped_clock import stopped
from tests.support.waiting import wait_for

TTL_S = 0.4
LONG_TTL_S = 60.0
"""Of tests in which no lock may end, however long this process is kept from running."""
Elect = Callable[..., Coordinator]


@pytest.fixture
def elect(broker: Broker, keys: Keys) -> Elect:
    """elect("a", ttl_s=…): a candidate with that name."""
    return lambda name, ttl_s=TTL_S: Coordinator(
        broker, keys, name, LeaderTimes(ttl_s, 5.0), OwnQueues(), PeriodicTicks(broker, keys, None)
    )


def publish(broker: Broker, keys: Keys, name: str) -> None:
    """Publishes a job that runs each hour, and that no process here declares any more."""

    @job(name=name, queue="q", every=3600, overlap="allow")
    class Hourly(PeriodicJob):
        def run(self) -> None: ...

    broker.run(leader_calls.define_periodics(keys, published([lookup(name)])))
    forget(name)


def test_one_of_two_leads(elect: Elect) -> None:
    first, second = elect("a", LONG_TTL_S), elect("b", LONG_TTL_S)
    first.step()
    pause = second.step()
    assert (first.leads, second.leads) == (True, False)
    assert pause <= LONG_TTL_S / 3


def test_a_leader_that_falls_silent_is_followed_when_its_lock_ends(elect: Elect, raw: redis.Redis, keys: Keys) -> None:
    first, second = elect("a"), elect("b")
    first.step()
    epoch = first._leadership.epoch
    second.step()
    wait_for(lambda: second.step() and second.leads and raw.hget(keys.leader, "worker") == b"b", timeout_s=TTL_S + 30)
    assert not first.leads, "it knows by its own clock, without asking"
    assert second._leadership.epoch > epoch


def test_a_leader_that_resigns_is_followed_at_once(elect: Elect) -> None:
    first, second = elect("a", LONG_TTL_S), elect("b", LONG_TTL_S)
    first.step()
    first.resign()
    assert not first.leads
    second.step()
    assert second.leads


def test_resigning_takes_leadership_from_nobody_else(elect: Elect, raw: redis.Redis, keys: Keys) -> None:
    first, second = elect("a", LONG_TTL_S), elect("b", LONG_TTL_S)
    first.step()
    second.step()
    second.resign()
    assert raw.hget(keys.leader, "worker") == b"a"


def test_leading_on_needs_a_renewal(
    elect: Elect, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = stopped(monkeypatch, coordinator)
    first = elect("a", LONG_TTL_S)
    first.step()
    epoch = first._leadership.epoch
    raw.pexpire(keys.leader, 30_000)
    first.step()
    assert raw.pttl(keys.leader) <= 30_000
    watch.now += LONG_TTL_S / 3
    first.step()
    assert raw.pttl(keys.leader) > 30_000
    assert raw.hget(keys.leader, "epoch") == b"%d" % epoch


@pytest.mark.parametrize("days", [-1, 1])
def test_the_servers_clock_decides_what_is_due(
    broker: Broker, elect: Elect, client: Client, clock: Clock, keys: Keys, days: int
) -> None:
    """MOAB-13, MOSQ-28: the clock of this machine is a day fast or slow, compared with the server's."""
    started = clock.set(unix_ms() - days * 86_400_000)
    publish(broker, keys, "hourly")
    leader = elect("a")
    leader.step()
    clock.set(started + 3_599_000)
    publish(broker, keys, "hourly")
    counts = client.queue("q").counts
    wait_for(lambda: clock.advance(100) and leader.step() and sum(counts().values()) == 2)
    assert clock.ms is not None
    assert 3_600_000 <= clock.ms - started < 3_660_000
    first, second = client.queue("q").ids("waiting") + client.queue("q").ids("scheduled")
    assert (int(second[:16], 16) - int(first[:16], 16)) >> 16 == 3_600_000
    assert abs((int(first[:16], 16) >> 16) - started) < 60_000


def test_a_leader_fires_jobs_whose_code_it_does_not_have(
    elect: Elect, client: Client, broker: Broker, keys: Keys
) -> None:
    """MOSQ-27"""
    publish(broker, keys, "hourly")
    elect("a").step()
    wait_for(lambda: client.queue("q").counts()["waiting"] == 1)  # the tick is due within its millisecond


def test_periodic_jobs_fire_after_the_node_of_the_leader_lost_its_keys(
    elect: Elect, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    """The states of the jobs, with the epochs of their last leaders, are on other nodes of a cluster."""
    state = keys.queue("q").periodic("hourly")
    for name in ("a", "b"):
        before = elect(name, LONG_TTL_S)
        before.step()
        before.resign()
    publish(broker, keys, "hourly")
    leader = elect("c", LONG_TTL_S)
    wait_for(lambda: leader.step() and raw.hget(state, "fired") == b"1")

    raw.delete(keys.leader, keys.epoch, keys.periodics_version)
    raw.hincrby(state, "last", -3_601_000)  # so that a tick is due

    leader = elect("d", LONG_TTL_S)
    wait_for(lambda: leader.step() and raw.hget(state, "fired") == b"2")


def test_a_chore_that_cannot_be_done_keeps_no_job_from_being_fired(
    elect: Elect, client: Client, broker: Broker, keys: Keys, raw: redis.Redis
) -> None:
    client.queue("q").push("so that there is a queue to look at")
    publish(broker, keys, "hourly")
    raw.lpush(keys.stats_sampled, "of another type")
    with pytest.raises(ServerError, match="WRONGTYPE"):
        elect("a").step()
    wait_for(lambda: client.queue("q").counts()["waiting"] == 2)


def test_a_new_definition_is_seen_at_the_next_renewal(elect: Elect, client: Client, broker: Broker, keys: Keys) -> None:
    leader = elect("a")
    leader.step()
    publish(broker, keys, "later")
    wait_for(lambda: leader.step() and client.queue("q").counts()["waiting"], timeout_s=TTL_S + 30)


def test_deaths_are_told_once_though_leaders_take_turns(broker: Broker, keys: Keys, client: Client) -> None:
    leaders = [
        Coordinator(broker, keys, name, LeaderTimes(60, 0.0), OwnQueues(), PeriodicTicks(broker, keys, None))
        for name in "ab"
    ]
    queue = client.queue("q")
    queue.configure(max_attempts=1)
    for turn in range(6):
        queue.push("x", id=f"t{turn}")
        queue.reserve()[0].rollback(error="no")
        leader = leaders[turn % 2]
        wait_for(lambda leader=leader: leader.step() and leader.leads)
        leader.resign()

    told = [one.task for one in client.events() if one.kind in ("task_died", "tasks_died")]
    assert told == [f"t{turn}" for turn in range(6)]


def test_what_is_told_is_read_once_while_it_leads(broker: Broker, keys: Keys, client: Client, raw: redis.Redis) -> None:
    client.queue("q").push("x")
    own = OwnQueues(frozenset({"q"}), lambda: {"q"})
    leader = Coordinator(broker, keys, "a", LeaderTimes(60, 0.0), own, PeriodicTicks(broker, keys, None))
    leader.step()
    raw.hset(keys.events_cursor, "q", 7)
    leader.step()
    assert raw.hget(keys.events_cursor, "q") == b"7"

    leader.resign()
    wait_for(lambda: leader.step() and leader.leads)
    assert raw.hget(keys.events_cursor, "q") == b"0"


def test_a_leader_that_was_suspended_behind_its_look_tells_nothing(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = client.queue("q")
    queue.configure(max_attempts=1)
    queue.push("x", id="t")
    queue.reserve()[0].rollback(error="no")
    second = Coordinator(broker, keys, "b", LeaderTimes(TTL_S, 5.0), OwnQueues(), PeriodicTicks(broker, keys, None))
    step = LeaderScan.step

    def suspended(look: LeaderScan) -> float:
        pause = step(look)
        if not second.leads:
            wait_for(lambda: second.step() and second.leads, timeout_s=TTL_S + 30)
        return pause

    monkeypatch.setattr(LeaderScan, "step", suspended)
    first = Coordinator(broker, keys, "a", LeaderTimes(TTL_S, 5.0), OwnQueues(), PeriodicTicks(broker, keys, None))
    first.step()

    assert [one.kind for one in client.events() if "died" in one.kind] == ["task_died"]
