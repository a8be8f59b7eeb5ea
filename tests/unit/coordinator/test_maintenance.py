"""The leader maintains queues that no worker serves. Each turn is one `step()`."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import redis
import structlog

from jobrunner import Client, Item
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls.leader import ScanReply
from jobrunner.broker.calls.server import eviction_policy
from jobrunner.broker.connect import Endpoint
from jobrunner.broker.keys import Keys
from jobrunner.coordinator.maintenance import EvictionCheck, OwnQueues, QueueMaintenance
from jobrunner.coordinator.scan import LeaderScan, ScanBudget
from jobrunner.errors import ServerRefused
from tests.support.clock import Clock
from tests.support.server import Server


class Swept:
    """Runs the maintenance task after a scan."""

    def __init__(self, broker: Broker, keys: Keys, clock: Clock) -> None:
        self.reserved = {"served"}
        self._sweep = QueueMaintenance(
            broker, keys, 5.0, OwnQueues(frozenset({"served"}), lambda: self.reserved), now_ms=lambda: clock.ms or 0
        )
        self._look = LeaderScan(broker, keys, 0.0, [self._sweep.take], ScanBudget(1000.0))

    def step(self) -> float:
        self._look.step()
        return self._sweep.step()


@pytest.fixture
def sweep(broker: Broker, keys: Keys, clock: Clock) -> Swept:
    clock.set()
    return Swept(broker, keys, clock)


def test_due_tasks_of_a_queue_nobody_serves_become_waiting(sweep: Swept, client: Client, clock: Clock) -> None:
    """MOSQ-24"""
    client.queue("lonely").push("x", in_=10)
    clock.advance(10_000)
    sweep.step()
    assert client.queue("lonely").ids("waiting")


def test_a_queue_of_its_own_worker_is_looked_after_while_that_takes_no_tasks(
    sweep: Swept, client: Client, clock: Clock
) -> None:
    client.queue("served").push("x", in_=10)
    clock.advance(10_000)
    sweep.step()
    assert client.queue("served").ids("scheduled"), "the next reserve does it"

    sweep.reserved = set()
    sweep.step()
    assert client.queue("served").ids("waiting")


def test_a_scan_that_fails_keeps_no_deleted_queue_in_its_list(
    broker: Broker, keys: Keys, client: Client, raw: redis.Redis
) -> None:
    def refused(_: ScanReply) -> None:
        raise ServerRefused("a damaged key")

    scan = LeaderScan(broker, keys, 0.0, [refused], ScanBudget(1000.0))
    for queue in ("gone", "good"):
        client.queue(queue).push("x")
    for _ in range(2):
        with pytest.raises(ServerRefused):
            scan.step()
    assert set(scan._totals) == {"gone", "good"}

    raw.srem(keys.queues, "gone")
    for _ in range(2):
        with pytest.raises(ServerRefused):
            scan.step()
    assert set(scan._totals) == {"good"}


def test_one_call_scans_the_workers_the_busy_queues_and_a_slice_of_all(
    broker: Broker, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = LeaderScan(broker, keys, 0.0, [], ScanBudget(1000.0))
    for queue in ("busy", "other"):
        client.queue(queue).push("x")
    client.queue("busy").reserve(1)
    scan.step()

    sent: list[Call[Any]] = []
    run, run_each = broker.run, broker.run_each
    monkeypatch.setattr(broker, "run", lambda call: run(sent.append(call) or call))
    monkeypatch.setattr(broker, "run_each", lambda calls: run_each(sent.extend(calls) or calls))
    scan.step()
    names, scanned = sent
    assert names.words[0] == "SSCAN"
    assert sorted(scanned.keys) == sorted([keys.workers, keys.counters("busy"), keys.counters("other")])


def test_busy_queues_and_workers_are_scanned_without_the_list_of_queues(
    broker: Broker, keys: Keys, client: Client, raw: redis.Redis
) -> None:
    found: list[ScanReply] = []
    client.queue("busy").push("x")
    client.queue("busy").reserve(1)
    scan = LeaderScan(broker, keys, 0.0, [found.append], ScanBudget(1000.0))
    scan.step()
    raw.delete(keys.queues)
    raw.set(keys.queues, "damage")
    raw.zadd(keys.workers, {"silent": 1})
    for _ in range(2):
        with pytest.raises(ServerRefused):
            scan.step()
        assert (found[-1].in_work, found[-1].silent) == (["busy"], ["silent"])
    assert set(scan._totals) == {"busy"}


def test_ended_leases_of_a_queue_nobody_serves_go_back(sweep: Swept, client: Client, clock: Clock) -> None:
    """MOAB-31, MOABX-01"""
    queue = client.queue("lonely")
    queue.push("x")
    queue.reserve(1, keepalive=7)
    clock.advance(7_000)
    sweep.step()
    assert queue.ids("waiting")
    assert queue.ids("pending") == []


def test_dead_tasks_past_their_time_are_deleted(
    sweep: Swept, client: Client, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    """MOSQ-33"""
    queue = client.queue("lonely")
    queue.configure(max_attempts=1, dead_ttl=60)
    task_id = queue.push("x")
    queue.reserve(1)[0].rollback(error="no")
    clock.advance(61_000)
    sweep.step()
    assert queue.ids("dead") == []
    assert not raw.exists(keys.queue("lonely").task(task_id))


def test_it_comes_back_at_the_next_event(sweep: Swept, client: Client) -> None:
    client.queue("lonely").push("x", in_=2)
    assert sweep.step() == pytest.approx(2.0, abs=1.5)


def test_it_comes_back_after_its_pause_when_nothing_is_foreseen(sweep: Swept, client: Client) -> None:
    client.queue("lonely").push("x")
    assert sweep.step() == pytest.approx(5.0, abs=0.2)


def test_the_queues_of_its_own_worker_are_left_to_that(sweep: Swept, client: Client, clock: Clock) -> None:
    client.queue("served").push("x", in_=1)
    clock.advance(1_000)
    sweep.step()
    assert client.queue("served").ids("waiting") == []


def test_a_damaged_queue_holds_up_no_other(
    sweep: Swept, client: Client, clock: Clock, raw: redis.Redis, keys: Keys
) -> None:
    client.queue("a").push("x", in_=1)
    client.queue("b").push("x", in_=1)
    raw.delete(keys.queue("a").scheduled)
    raw.set(keys.queue("a").scheduled, "not a sorted set")
    clock.advance(1_000)
    assert sweep.step() > 1
    assert client.queue("b").ids("waiting")


def test_more_work_than_one_slice_is_done_slice_by_slice(sweep: Swept, client: Client, clock: Clock) -> None:
    """MOSQ-24"""
    queue = client.queue("lonely")
    queue.push_many([Item(n, in_=1) for n in range(220)])
    clock.advance(1_000)
    pauses = [sweep.step() for _ in range(3)]
    assert pauses[:2] == pytest.approx([0.0, 0.0], abs=0.001)
    assert len(queue.ids("waiting", limit=500)) == 220


def test_queues_that_are_always_due_leave_the_others_their_turn(
    sweep: Swept, client: Client, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues with more due tasks than a slice fill a turn; another queue follows them in the alphabet."""
    monkeypatch.setattr("jobrunner.coordinator.maintenance._AT_ONCE", 2)
    for name in ("a", "b"):
        client.queue(name).push_many([Item("x", in_=1) for _ in range(1001)])
    client.queue("z").push("x", in_=1)
    clock.advance(1_000)
    for _ in range(2):
        sweep.step()
    assert client.queue("z").ids("waiting")


def test_a_server_that_comes_to_evict_is_logged_as_an_error_once(start_server: Callable[..., Server]) -> None:
    """A worker checks it when it starts; after that the settings may change, or another server may take over."""
    server = start_server(maxmemory_policy="noeviction")
    with server.connect() as raw, closing(Broker(Endpoint(server.url))) as broker:
        check, logged = EvictionCheck(broker), []
        for policy in ("noeviction", "allkeys-lru", "allkeys-lru", "noeviction", "volatile-ttl"):
            raw.config_set("maxmemory-policy", policy)
            check._checks.end()
            with structlog.testing.capture_logs() as lines:
                assert check.step() == 60.0
            logged.append([line["maxmemory_policy"] for line in lines if line["log_level"] == "error"])
        raw.config_set("maxmemory-policy", "allkeys-lru")
        assert 59 < check.step() <= 60, "asked once a minute"

    assert logged == [[], ["allkeys-lru"], [], [], ["volatile-ttl"]]


@pytest.mark.parametrize(
    ("reply", "policy"),
    [
        (None, ""),
        (b"used_memory:1\r\nmaxmemory_policy:noeviction\r\n", "noeviction"),
        ([b"maxmemory_policy:noeviction\r\n", b"maxmemory_policy:allkeys-lfu\r\n"], "allkeys-lfu"),
        ([b"maxmemory_policy:noeviction\r\n"] * 2, "noeviction"),
        (b"used_memory:1\r\n", ""),
    ],
)
def test_the_policy_of_several_primaries_is_the_worst(reply: object, policy: str) -> None:
    assert eviction_policy().read(reply) == policy
