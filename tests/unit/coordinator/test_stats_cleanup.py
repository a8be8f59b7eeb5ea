"""Once an hour the leader deletes what is noted centrally of queues that are gone, slice by slice, and nothing else."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import queues
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.coordinator import scan
from jobrunner.coordinator.records import StatsCleanup
from jobrunner.coordinator.scan import ScanBudget
from jobrunner.errors import ServerRefused
from tests.support.stopped_clock import FakeClock, stopped

HOUR_S = 3600.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return stopped(monkeypatch, scan)


@pytest.fixture
def trim(broker: Broker, keys: Keys, watch: FakeClock) -> StatsCleanup:
    """The maintenance task with an unlimited budget."""
    return StatsCleanup(broker, keys, ScanBudget(share=float("inf")))


@pytest.fixture
def hashes(keys: Keys) -> tuple[bytes, ...]:
    """The keys that are trimmed."""
    return keys.events_cursor, keys.stats_sampled, keys.stats_total


def a_round(trim: StatsCleanup, watch: FakeClock) -> None:
    """All slices of a round, as the loop does them."""
    for _ in range(100):
        if trim.step() >= 1:
            return
    raise AssertionError("a round does not end")


def test_what_is_noted_of_queues_that_are_gone_goes_and_all_else_stays(
    trim: StatsCleanup, watch: FakeClock, hashes: Any, raw: redis.Redis, keys: Keys, client: Client
) -> None:
    client.queue("mail").push("x")
    client.queue("line/raw").push("x")
    for name in ("mail", "line/raw", "gone", "mail2"):
        raw.hset(keys.events_cursor, name, 1)
        raw.hset(keys.stats_sampled, name, "1 2 3")
        raw.hset(keys.stats_total, mapping={f"{name} Send succeeded": 1, f"{name} a type with blanks run:7": 1})
    raw.hset(keys.stats_sampled, "#sampled", 5)
    raw.hset(keys.stats_total, mapping={"- - round_trip:3": 1, " - x": 1, b"\xff\xfe A dead": 1})

    a_round(trim, watch)

    assert set(raw.hkeys(keys.events_cursor)) == {b"mail", b"line/raw"}
    assert set(raw.hkeys(keys.stats_sampled)) == {b"mail", b"line/raw", b"#sampled"}
    assert {field.split()[0] for field in raw.hkeys(keys.stats_total) if not field.startswith(b" ")} == {
        b"mail", b"line/raw", b"-",
    }  # fmt: skip
    assert raw.hexists(keys.stats_total, " - x")
    assert raw.hlen(keys.stats_total) == 4 + 2


def test_it_looks_again_after_an_hour_and_not_before(
    trim: StatsCleanup, watch: FakeClock, raw: redis.Redis, keys: Keys
) -> None:
    a_round(trim, watch)
    raw.hset(keys.events_cursor, "gone", 1)

    watch.now += HOUR_S - 0.001
    assert 0 < trim.step() <= 0.0011
    assert raw.exists(keys.events_cursor)

    watch.now += 0.002
    a_round(trim, watch)
    assert not raw.exists(keys.events_cursor)


def test_a_large_hash_is_trimmed_in_slices_each_of_few_commands(
    trim: StatsCleanup, watch: FakeClock, raw: redis.Redis, keys: Keys, client: Client
) -> None:
    client.queue("mail").push("x")
    raw.hset(keys.stats_total, mapping={f"gone-{n} Send succeeded": n for n in range(5000)} | {"mail Send dead": 1})
    turns, left = 0, 5001
    while raw.hlen(keys.stats_total) > 1:
        before = raw.info("commandstats")
        assert trim.step() == 0.0, "it goes on when there is something to spend"
        after = raw.info("commandstats")
        run = {name: after[name]["calls"] - before.get(name, {"calls": 0})["calls"] for name in after}
        assert run["cmdstat_hscan"] == 1
        assert run.get("cmdstat_hdel", 0) <= 1
        now_left = raw.hlen(keys.stats_total)
        assert left - now_left < 1000
        left, turns = now_left, turns + 1
    assert turns >= 6
    assert raw.hkeys(keys.stats_total) == [b"mail Send dead"]


def test_it_pauses_between_slices_as_long_as_the_leader_may_spend_nothing(
    broker: Broker, watch: FakeClock, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = iter(range(1000))
    monkeypatch.setattr(scan, "thread_time", lambda: float(next(spent)))  # a second of CPU time for each slice
    trim = StatsCleanup(broker, keys, ScanBudget(share=0.1))
    raw.hset(keys.stats_total, mapping={f"gone-{n} Send succeeded": n for n in range(5000)})

    assert trim.step() == pytest.approx(10)
    left = raw.hlen(keys.stats_total)
    assert left < 5000

    watch.now += 9.9
    assert trim.step() == pytest.approx(0.1)
    assert raw.hlen(keys.stats_total) == left

    watch.now += 0.2
    assert trim.step() == pytest.approx(10)
    assert raw.hlen(keys.stats_total) < left


@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_a_hash_that_somebody_damaged_keeps_no_other_from_being_trimmed(
    trim: StatsCleanup, watch: FakeClock, hashes: Any, raw: redis.Redis, damaged: int
) -> None:
    for number, key in enumerate(hashes):
        raw.set(key, "damage") if number == damaged else raw.hset(key, "gone Send dead", 1)

    refused = 0
    for _ in range(5):
        try:
            trim.step()
        except ServerRefused:
            refused += 1

    assert refused == 1
    assert [raw.exists(key) for key in hashes] == [int(number == damaged) for number in range(3)]


def test_a_queue_that_is_used_again_keeps_what_is_noted_from_then_on(
    trim: StatsCleanup, watch: FakeClock, raw: redis.Redis, keys: Keys, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.hset(keys.events_cursor, "back", 1)
    asks: Callable[..., Any] = queues.are_registered

    def used_meanwhile(*args: Any) -> Any:
        client.queue("back").push("x")  # behind the scan, before it is asked which queues there are
        return asks(*args)

    monkeypatch.setattr(queues, "are_registered", used_meanwhile)
    a_round(trim, watch)
    assert raw.hget(keys.events_cursor, "back") == b"1"
