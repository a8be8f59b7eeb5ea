"""A leader's lock is renewed however long its maintenance takes, unless that hangs for a minute."""

import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import redis

from jobrunner import Client, Worker
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.coordinator import coordinator
from jobrunner.coordinator.coordinator import Coordinator, LeaderTimes
from jobrunner.coordinator.cron import PeriodicTicks
from jobrunner.coordinator.maintenance import OwnQueues
from jobrunner.coordinator.scan import LeaderScan
from tests.support.stopped_clock import FakeClock, stopped
from tests.support.waiting import wait_for

TTL_S = 30.0
HANGS_S = 60.0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    return stopped(monkeypatch, coordinator)


@pytest.fixture
def elect(broker: Broker, keys: Keys) -> Callable[[str], Coordinator]:
    """A candidate with that name."""
    return lambda name: Coordinator(
        broker, keys, name, LeaderTimes(TTL_S, 5.0), OwnQueues(), cron=PeriodicTicks(broker, keys, None)
    )


def in_a_chore(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Called while the first maintenance task of a turn runs."""
    step = LeaderScan.step

    def busy(look: LeaderScan) -> float:
        act()
        return step(look)

    monkeypatch.setattr(LeaderScan, "step", busy)


@pytest.mark.parametrize(("later_s", "is_renewed"), [(HANGS_S - 0.01, True), (HANGS_S, False)])
def test_the_lock_is_renewed_during_a_chore_until_that_hangs(
    elect: Any, watch: FakeClock, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch,
    later_s: float, is_renewed: bool,
) -> None:  # fmt: skip
    seen: list[float] = []

    def hang() -> None:
        watch.now += later_s
        raw.pexpire(keys.leader, 5_000)
        leader.renew()
        seen.append(raw.pttl(keys.leader))

    in_a_chore(monkeypatch, hang)
    leader = elect("a")
    leader.step()

    assert (seen[0] > 5_000) == is_renewed


def test_who_comes_back_from_a_hang_after_another_one_took_over_leads_no_more(
    elect: Any, watch: FakeClock, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = elect("a"), elect("b")
    first.step()
    assert first.leads
    epoch = first._leadership.epoch

    watch.now += HANGS_S
    first.renew()
    assert not first.leads, "its lock may have ended, as nothing renewed it"
    raw.delete(keys.leader)  # it has
    second.step()
    assert second.leads

    first.step()
    first.renew()
    assert not first.leads
    assert raw.hget(keys.leader, "worker") == b"b"
    assert int(raw.hget(keys.leader, "epoch") or 0) > epoch


def test_each_chore_that_begins_is_progress(
    elect: Any, watch: FakeClock, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that take 40 s each do not hang."""
    seen: list[float] = []

    def slow(*_: object) -> float:
        watch.now += 40
        raw.pexpire(keys.leader, 5_000)
        leader.renew()
        seen.append(raw.pttl(keys.leader))
        return TTL_S

    monkeypatch.setattr(LeaderScan, "step", slow)
    monkeypatch.setattr(coordinator.DeathEvents, "step", slow)
    leader = elect("a")
    leader.step()

    assert [left > 5_000 for left in seen] == [True, True]


def test_who_does_not_lead_renews_nothing(elect: Any, watch: FakeClock, raw: redis.Redis, keys: Keys) -> None:
    follower = elect("b")
    watch.now += TTL_S
    asked = raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]

    assert follower.renew() == 0.05

    assert raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"] == asked
    assert not raw.exists(keys.leader)


def test_it_is_renewed_when_a_third_of_its_time_is_over_and_not_before(
    elect: Any, watch: FakeClock, raw: redis.Redis, keys: Keys
) -> None:
    leader = elect("a")
    leader.step()
    raw.pexpire(keys.leader, 5_000)

    watch.now += TTL_S / 3 - 0.2
    assert leader.renew() == pytest.approx(0.2)
    assert raw.pttl(keys.leader) <= 5_000

    watch.now += 0.2
    assert leader.renew() == pytest.approx(TTL_S / 3)
    assert raw.pttl(keys.leader) > 5_000


def test_a_renewal_that_takes_long_sets_its_clock_not_ahead(
    elect: Any, watch: FakeClock, raw: redis.Redis, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else ticks fire before their time: by as long as the request was on its way, or was sent again."""
    run, seen = broker.run, []

    def late(call: Any) -> Any:
        if call.script and call.script.name == "take_leadership":
            watch.now += 5
        return run(call)

    def step(_: PeriodicTicks, __: int, now: datetime) -> float:
        seconds, micros = raw.time()
        seen.append(now.timestamp() - seconds - micros / 1e6)
        return TTL_S

    monkeypatch.setattr(broker, "run", late)
    monkeypatch.setattr(PeriodicTicks, "step", step)
    elect("a").step()

    assert len(seen) == 1
    assert -2 < seen[0] <= 0


def test_two_threads_that_find_it_due_ask_once(
    elect: Any, watch: FakeClock, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = elect("a")
    leader.step()
    watch.now += TTL_S / 2
    asked, both = [], threading.Barrier(2, timeout=30)
    ask = coordinator.leader_calls.take_leadership

    def count(*words: Any, **options: Any) -> Any:
        asked.append(words)
        return ask(*words, **options)

    def renew() -> None:
        both.wait()
        leader.renew()

    monkeypatch.setattr(coordinator.leader_calls, "take_leadership", count)
    threads = [threading.Thread(target=renew) for _ in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(asked) == 1


class Stuck:
    """Blocks the maintenance of the first leader until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()
        self._victim: LeaderScan | None = None

    def stand(self, look: LeaderScan) -> None:
        """Called at the beginning of its maintenance."""
        self._victim = self._victim or look
        if look is self._victim:
            self.begun.set()
            self.released.wait(60)


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Stuck:
    made, step = Stuck(), LeaderScan.step

    def stand(look: LeaderScan) -> float:
        made.stand(look)
        return step(look)

    monkeypatch.setattr(LeaderScan, "step", stand)
    return made


@pytest.fixture
def work(current: Client, stuck: Stuck) -> Iterator[Callable[[], Worker]]:
    """Starts a worker whose lock lasts a second."""
    started: list[Worker] = []

    def start() -> Worker:
        started.append(Worker(client=current, queues=["mail"], leader_ttl=1.0, concurrency=1))
        started[-1].start()
        return started[-1]

    yield start
    stuck.released.set()
    for one in started:
        one.stop(grace=0)


def test_a_worker_whose_chore_takes_longer_than_its_lock_leads_on(
    work: Callable[[], Worker], stuck: Stuck, raw: redis.Redis, keys: Keys
) -> None:
    busy = work()
    assert stuck.begun.wait(30)
    held = raw.hmget(keys.leader, "worker", "epoch")
    assert held[0] == busy.id.encode()
    for _ in range(5):  # it is renewed each time a third is over, so this is more than its time
        wait_for(lambda: 0 < raw.pttl(keys.leader) < 850)
        wait_for(lambda: raw.pttl(keys.leader) > 850)
    assert raw.hmget(keys.leader, "worker", "epoch") == held


def test_a_worker_whose_chore_hangs_is_followed_by_another(
    work: Callable[[], Worker], stuck: Stuck, raw: redis.Redis, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "_HANGS_S", 2.0)
    work()
    assert stuck.begun.wait(30)
    epoch = int(raw.hget(keys.leader, "epoch") or 0)
    other = work()
    wait_for(lambda: raw.hget(keys.leader, "worker") == other.id.encode())
    assert int(raw.hget(keys.leader, "epoch") or 0) > epoch
