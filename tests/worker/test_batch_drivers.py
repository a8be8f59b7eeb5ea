"""Queues that a batch driver serves instead of the fetcher, with a driver in plain Python; settings of stations."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobrunner import Client, Worker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import monotonic
from jobrunner.errors import DriverFailed, InvalidOption
from jobrunner.inspector.stats import by_queue
from jobrunner.jobs.batch_driver import BatchEnd, CurrentBatch
from jobrunner.jobs.declared_queues import declare_of_pipeline, forget_queue
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, forget_station, register_driver, register_station
from jobrunner.worker.batch_drivers import BatchDrivers
from jobrunner.worker.queues import default_queues
from tests.support.waiting import wait_for

BATCHES, PLAIN = "driven/batches", "driven/plain"


class ByTens:
    """Takes up to ten items at a time and commits them, on a thread of its own."""

    def __init__(self, client: Client, seen: Any, queue: str = BATCHES) -> None:
        self.seen = seen
        self.name = queue
        self._queue = client.queue(queue)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.calls: list[str] = []
        self.sizes: list[int] = []
        self.in_hand = 0
        self.failure: BaseException | None = None
        self.running: list[CurrentBatch] = []
        self.quiet = False
        self._taking = threading.Lock()

    def be_quiet(self, quiet: bool) -> None:
        with self._taking:
            self.quiet = quiet

    def start(self) -> None:
        self.calls.append("start")
        self._thread.start()

    def ask_to_stop(self) -> None:
        self.calls.append("ask_to_stop")
        self._stopping.set()

    def stop(self, grace_s: float) -> None:
        self.calls.append("stop")
        self._stopping.set()
        self._thread.join(max(grace_s, 30))  # one turn at most, for which its client must be open

    def _work(self) -> None:
        while not self._stopping.wait(0.005):
            with self._taking:
                leases = [] if self.quiet else self._queue.reserve(10)
            self.in_hand = len(leases)
            self._queue.commit_many(leases)
            self.sizes += [len(leases)] if leases else []
            self.in_hand = 0


class ByBatches(ByTens):
    """The same with batches, which have what the slice of their own shard has room for."""

    def _work(self) -> None:
        batches = Batches(broker_of(self._queue), keys_of(self._queue))
        while not self._stopping.wait(0.005):
            if (lease := batches.take(10, lease_s=60)) is not None:
                lease.decide([], rest="succeeded")
                lease.advance()


class Item:
    """A station that ends every item."""

    def __init__(self, *_: Any) -> None: ...

    def run(self) -> None: ...


@pytest.fixture
def made() -> Iterator[list[ByTens]]:
    """The drivers that were made for BATCHES."""
    drivers: list[ByTens] = []

    def make(client: Client, seen: Any) -> ByTens:
        drivers.append(ByTens(client, seen))
        return drivers[-1]

    register_driver(BATCHES, make, origin="test:driver")
    yield drivers
    forget_station(BATCHES)


@pytest.fixture
def plain() -> Iterator[Callable[..., None]]:
    """plain(max_size=…): declares the station of PLAIN with settings of its queue."""

    def declare(**settings: Any) -> None:
        register_station(
            PLAIN,
            StationDefinition(
                name=PLAIN, origin="test:plain", queue=PLAIN, options=JobOptions(), build=Item, is_async=False
            ),
        )
        declare_of_pipeline(PLAIN, settings, "test:plain")

    yield declare
    forget_station(PLAIN)
    forget_queue(PLAIN)


def test_a_driver_serves_its_queue_and_the_worker_the_others(
    current: Client, made: list[ByTens], plain: Any, run: Any
) -> None:
    plain()
    current.queue(BATCHES).push_many(range(95))
    current.queue(PLAIN).push_many(range(20))

    summary = run(queues=[BATCHES, PLAIN])

    (driver,) = made
    assert sum(driver.sizes) == 95
    assert max(driver.sizes) == 10
    assert summary.finished == 20
    assert driver.calls[0] == "start"
    assert driver.calls[-1] == "stop"
    assert "ask_to_stop" in driver.calls
    assert current.queue(BATCHES).totals()["succeeded"] == 95


def test_a_worker_names_the_items_that_only_a_station_on_spark_gets_at(current: Client, plain: Any, run: Any) -> None:
    """A chain or a station that was on Spark before a deployment: its items were pending for a week without a word."""
    plain()
    queue = current.queue(PLAIN)
    queue.push_many(range(20))
    batches = Batches(broker_of(current), keys_of(current).queue(PLAIN))
    for items in (8, 2):
        lease = batches.take_new(items, lease_s=60)
        assert lease is not None
        lease.release()
    batches.open(lease_s=60)  # a write into the queue, which ends by itself

    with capture_logs() as lines:
        summary = run(queues=[PLAIN])

    assert (summary.finished, queue.counts()["pending"]) == (10, 10)
    (warned,) = [line for line in lines if "station on Spark" in line["event"]]
    assert (warned["queue"], warned["items"], warned["log_level"]) == (PLAIN, 10, "warning")


def test_a_write_from_spark_into_a_queue_is_no_batch_that_waits_for_a_station(
    current: Client, plain: Any, run: Any
) -> None:  # fmt: skip
    plain()
    Batches(broker_of(current), keys_of(current).queue(PLAIN)).open(lease_s=60)

    with capture_logs() as lines:
        run(queues=[PLAIN])

    assert not [line for line in lines if "station on Spark" in line["event"]]


def test_a_worker_whose_queues_all_have_drivers_works(current: Client, made: list[ByTens], start: Any) -> None:
    current.queue(BATCHES).push_many(range(30))

    worker = start(queues=[BATCHES])

    wait_for(lambda: current.queue(BATCHES).totals().get("succeeded") == 30)
    (seen,) = current.workers()
    assert list(seen.queues) == [BATCHES]
    worker.stop(grace=5)
    assert not made[0]._thread.is_alive()


def test_without_queues_those_of_jobs_stations_and_drivers_are_served(made: list[ByTens], plain: Any) -> None:
    plain()

    assert {BATCHES, PLAIN} <= set(default_queues())
    assert default_queues() == sorted(set(default_queues()))


def test_a_driver_that_cannot_go_on_ends_the_worker_with_an_error(current: Client, made: list[ByTens]) -> None:
    worker = Worker(queues=[BATCHES], client=current)
    caught: list[BaseException] = []

    def work() -> None:
        try:
            worker.run()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_for(lambda: made and made[0].calls)
    made[0].failure = OSError("the JVM died")
    thread.join(30)

    (error,) = caught
    assert isinstance(error, DriverFailed)
    assert "driven/batches" in str(error)
    assert "OSError: the JVM died" in str(error)
    assert made[0].calls[-1] == "stop"
    assert current.workers() == []


def test_a_driver_that_does_not_start_stops_the_worker(current: Client, made: list[ByTens], plain: Any) -> None:
    plain()

    def make(client: Client, seen: Any) -> ByTens:
        raise OSError("no Java")

    forget_station(BATCHES)
    register_driver(BATCHES, make, origin="test:broken")

    with pytest.raises(OSError, match="no Java"):
        Worker(queues=[PLAIN, BATCHES], client=current).start()

    assert current.workers() == []
    assert not [one for one in threading.enumerate() if one.name in ("jobrunner-fetch", "jobrunner-wakeup")]


@pytest.mark.parametrize("also_plain", [False, True])
def test_a_worker_whose_only_driver_does_not_start_took_nothing(
    current: Client, made: list[ByTens], plain: Any, also_plain: bool
) -> None:  # fmt: skip
    """A supervisor gives up a worker that ends by a wrong option before it took anything."""
    plain()
    queues, said = [BATCHES, PLAIN] if also_plain else [BATCHES], list[str]()
    worker = Worker(queues=queues, client=current, report=said.append)
    worker.start()
    worker.stop()
    assert said == ["takes"]

    def make(client: Client, seen: Any) -> ByTens:
        raise InvalidOption("payload_keys are configured")

    forget_station(BATCHES)
    register_driver(BATCHES, make, origin="test:broken")
    said.clear()
    with pytest.raises(InvalidOption, match="payload_keys"):
        Worker(queues=queues, client=current, report=said.append).start()

    assert said == ["takes"] * also_plain


def test_a_worker_ends_after_so_many_items_of_batches(current: Client, made: list[ByTens]) -> None:
    worker = Worker(queues=[BATCHES], client=current, max_tasks=25)
    running = threading.Thread(target=worker.run)
    running.start()
    wait_for(lambda: made)
    made[0].seen(BatchEnd(items=20, counts={"moved": 20}))
    still_running = running.is_alive()

    made[0].seen(BatchEnd(items=20, counts={"succeeded": 20}))
    running.join(30)
    assert still_running
    assert not running.is_alive()


def test_items_that_a_driver_holds_count_as_in_hand(current: Client, made: list[ByTens], start: Any) -> None:
    worker = start(queues=[BATCHES])
    made[0].ask_to_stop()
    made[0]._thread.join(30)
    made[0].in_hand = 7

    assert worker.in_hand == 7


def test_settings_of_a_station_are_written_when_a_worker_that_serves_it_starts(
    current: Client, plain: Any, start: Any
) -> None:
    plain(max_size=7, keepalive=12, dead_letter_queue="driven/dead")
    queue = current.queue(PLAIN)
    queue.configure(max_attempts=9, max_size=1)

    start(queues=[PLAIN])

    settings = queue.settings()
    assert (settings.max_size, settings.keepalive, settings.dead_letter_queue) == (7, 12, "driven/dead")
    assert settings.max_attempts == 9, "a setting that was not passed stays"


def test_settings_of_a_station_that_is_not_served_are_left_alone(current: Client, plain: Any, start: Any) -> None:
    plain(max_size=7)

    start(queues=["elsewhere"])

    assert current.queue(PLAIN).settings().max_size is None


def test_a_setting_that_cannot_be_is_refused_where_it_is_declared(plain: Any) -> None:
    with pytest.raises(InvalidOption, match="max_size"):
        plain(max_size=-1)


def send_command(client: Client, worker: Worker, name: str, value: str) -> None:
    broker_of(client).run_many(leader_calls.order(keys_of(client), worker.id, name, value, ttl_ms=60_000))


def test_a_driver_is_quiet_with_its_worker_and_goes_on_with_it(
    current: Client, made: list[ByTens], start: Any
) -> None:
    worker = start(queues=[BATCHES], heartbeat=0.05)
    send_command(current, worker, "quiet", "1")
    wait_for(lambda: made[0].quiet)
    made[0].running = [CurrentBatch(id="b", attempt=2, items=7, began_ms=1000.0)]

    current.queue(BATCHES).push_many(range(5))
    (record,) = wait_for(lambda: [one for one in current.workers() if one.quiet and one.running])
    assert current.queue(BATCHES).counts()["waiting"] == 5
    assert worker.health()[0], "it lives"
    (batch,) = record.running
    assert (batch.queue, batch.id, batch.attempt, batch.items, batch.began_ms) == (BATCHES, "b", 2, 7, 1000.0)

    send_command(current, worker, "quiet", "0")
    wait_for(lambda: current.queue(BATCHES).totals().get("succeeded") == 5)


def test_a_worker_of_drivers_stops_when_it_is_told(current: Client, made: list[ByTens]) -> None:
    worker = Worker(queues=[BATCHES], client=current, heartbeat=0.05)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: made and made[0].calls)

    send_command(current, worker, "stop", "1")
    thread.join(30)

    assert not thread.is_alive()
    assert made[0].calls[-1] == "stop"


class Held(ByTens):
    """Holds a batch that runs for long, and is asked about it `reads` times."""

    reads = 0
    graces: tuple[float, ...] = ()

    @property
    def in_hand(self) -> int:  # type: ignore[override]
        self.reads += 1
        return 7

    @in_hand.setter
    def in_hand(self, _: int) -> None: ...

    def stop(self, grace_s: float) -> None:
        super().stop(grace_s)
        self.graces += (grace_s,)


def test_a_second_request_to_stop_hands_back_at_once_what_drivers_hold(current: Client) -> None:
    made: list[Held] = []
    register_driver(BATCHES, lambda client, seen: made.append(Held(client, seen)) or made[-1], origin="test:held")
    worker = Worker(queues=[BATCHES], client=current, grace=600)
    thread = threading.Thread(target=worker.run)
    thread.start()
    wait_for(lambda: made and made[0].calls)
    (driver,) = made

    worker.ask_to_stop()
    wait_for(lambda: "ask_to_stop" in driver.calls)
    driver.reads = 0
    wait_for(lambda: driver.graces or driver.reads > 5)
    worker.ask_to_stop()
    thread.join(30)
    forget_station(BATCHES)

    assert not thread.is_alive()
    assert [grace < 1 for grace in driver.graces] == [True]


def test_what_a_driver_tells_of_its_batches_is_in_the_figures_of_its_queue(
    current: Client, made: list[ByTens], start: Any
) -> None:
    worker = start(queues=[BATCHES])
    wait_for(lambda: made)

    made[0].seen(BatchEnd(items=20, counts={"moved": 19, "dropped": 1}, run_s=2.0, waits_ms=[(4000.0, 15), (1.0, 5)]))
    worker.stop(grace=5)

    found = by_queue(current)[BATCHES]
    assert dict(found.counts) == {"moved": 19, "dropped": 1}
    assert (found.run.count, found.wait.count) == (20, 20)
    assert found.run.mean_ms == pytest.approx(100)
    assert found.wait.mean_ms == pytest.approx((15 * 4000 + 5) / 20)


def test_a_burst_worker_does_not_wait_for_the_batches_of_a_driver_that_is_down(current: Client) -> None:
    batched, leased = current.queue("driven/elsewhere"), current.queue("driven/leased")
    batched.push_many(range(7))
    batch = Batches(broker_of(current), keys_of(batched)).take(5, lease_s=600)
    assert batch is not None
    leased.push({"n": 1})
    (lease,) = leased.reserve(1)
    worker = Worker(queues=["driven/elsewhere", "driven/leased"], client=current)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (worker.run(burst=True), done.set()))
    thread.start()

    wait_for(lambda: batched.counts()["waiting"] == 0)
    assert not done.wait(0.3), "an item under a lease of its own is waited for"
    lease.commit()
    thread.join(30)

    assert done.is_set()
    assert batched.counts()["pending"] == 5


def test_a_driver_of_an_added_partition_rests_with_the_others_and_is_stopped_with_them(current: Client) -> None:
    """A driver that started during the stop made the stop fail, or kept running after the worker had ended."""
    made: dict[str, ByTens] = {}
    starts, goes_on = threading.Event(), threading.Event()

    class SlowToStart(ByTens):
        def start(self) -> None:
            if len(made) == 3:
                starts.set()
                goes_on.wait(30)
            super().start()

    def make_for(shard: str) -> Any:
        return lambda client, seen: made.setdefault(shard, SlowToStart(client, seen, shard))

    register_driver(BATCHES, make_for(BATCHES), origin="test:driver", of_shard=make_for)
    current.queue(BATCHES).configure(partitions=2)
    drivers = BatchDrivers(current, [BATCHES], lambda queue, end: None)
    drivers.check(broker_of(current), keys_of(current))
    drivers.start()
    assert len(made) == 2
    drivers.be_quiet(True)
    current.queue(BATCHES).configure(partitions=4)
    told = broker_of(current).run_many(drivers.shards.asking())
    adding = threading.Thread(target=drivers.shards.take, args=(told,))
    stopping = threading.Thread(target=drivers.stop, args=(monotonic() + 30,))
    adding.start()
    assert starts.wait(30)

    stopping.start()
    goes_on.set()
    adding.join(30)
    stopping.join(30)

    assert {driver.calls[-1] for driver in made.values()} == {"stop"}
    assert all(driver.quiet for driver in made.values())
    assert drivers.in_hand == 0
    started = len(made)
    drivers.shards.on_change()
    assert len(made) == started, "none is started any more"
    forget_station(BATCHES)


def test_the_slices_of_a_queue_that_drivers_serve_follow_the_load(current: Client) -> None:
    """They stayed as they were: items in a shard whose slice was 0 waited for ever."""

    def make_for(shard: str) -> Any:
        return lambda client, seen: ByBatches(client, seen, shard)

    register_driver(BATCHES, make_for(BATCHES), origin="test:driver", of_shard=make_for)
    queue = current.queue(BATCHES)
    queue.configure(partitions=4, max_inflight=2)
    queue.push_many(range(40))
    worker = Worker(queues=[BATCHES], client=current)
    worker.start()
    try:
        wait_for(lambda: queue.totals().get("succeeded") == 40)
    finally:
        worker.stop(grace=0)
        forget_station(BATCHES)


@pytest.fixture
def starting(current: Client) -> Iterator[Callable[[Callable[[], None]], dict[str, ByTens]]]:
    """starting(meanwhile): makes drivers of three queues, of which the second one calls that while it starts; returns
    those that were started, by queue."""
    queues = ["driven/1", "driven/2", "driven/3"]

    def declare(meanwhile: Callable[[], None]) -> dict[str, ByTens]:
        begun: dict[str, ByTens] = {}

        class Begun(ByTens):
            def start(self) -> None:
                begun[self.name] = self
                if self.name == queues[1]:
                    meanwhile()
                super().start()

        def make(queue: str, client: Client, seen: Any) -> ByTens:
            return Begun(client, seen, queue)

        for queue in queues:
            register_driver(queue, partial(make, queue), origin="test:driver")
        return begun

    yield declare
    for queue in queues:
        forget_station(queue)


@pytest.mark.parametrize("by", ["another thread", "a signal handler"])
def test_a_stop_while_drivers_start_leaves_none_of_them_running(current: Client, starting: Any, by: str) -> None:
    """The stop failed and left all loops running, or drivers started after it and nobody stopped them."""
    stopping = threading.Thread(target=lambda: worker.stop(grace=30))

    def stop() -> None:
        if by == "a signal handler":
            worker.stop(grace=30)
            return
        stopping.start()
        assert worker._parts.drivers.stopping.wait(30)

    begun = starting(stop)
    worker: Any = Worker(queues=["driven/1", "driven/2", "driven/3"], client=current)
    worker.start()
    if by == "another thread":
        stopping.join(30)

    assert {queue: driver.calls[-1] for queue, driver in begun.items()} == {"driven/1": "stop", "driven/2": "stop"}
    assert not any(loop.is_alive for loop in worker._parts.loops)


def test_a_driver_that_starts_while_a_worker_is_told_to_rest_takes_nothing(current: Client, starting: Any) -> None:
    begun = starting(lambda: drivers.be_quiet(True))
    drivers = BatchDrivers(current, ["driven/1", "driven/2", "driven/3"], lambda queue, end: None)
    drivers.start()

    assert [driver.quiet for driver in begun.values()] == [True] * 3
    drivers.stop(monotonic() + 30)


def test_a_partition_that_is_added_while_the_first_drivers_start_has_one(current: Client) -> None:
    made: dict[str, ByTens] = {}

    class MeetsChange(ByTens):
        def start(self) -> None:
            super().start()
            if len(made) == 1:
                current.queue(BATCHES).configure(partitions=3)
                drivers.shards.take(broker_of(current).run_many(drivers.shards.asking()))

    def make_for(shard: str) -> Any:
        return lambda client, seen: made.setdefault(shard, MeetsChange(client, seen, shard))

    register_driver(BATCHES, make_for(BATCHES), origin="test:driver", of_shard=make_for)
    current.queue(BATCHES).configure(partitions=2)
    drivers = BatchDrivers(current, [BATCHES], lambda queue, end: None)
    drivers.check(broker_of(current), keys_of(current))
    drivers.start()

    assert len(made) == 3
    drivers.stop(monotonic() + 30)
    assert {driver.calls[-1] for driver in made.values()} == {"stop"}
    forget_station(BATCHES)


def test_every_partition_of_a_pipeline_has_a_driver_also_those_that_are_added(current: Client, start: Any) -> None:
    made: dict[str, ByTens] = {}

    def make_for(shard: str) -> Any:
        def make(client: Client, seen: Any) -> ByTens:
            made[shard] = ByTens(client, seen, shard)
            return made[shard]

        return make

    register_driver(BATCHES, make_for(BATCHES), origin="test:driver", of_shard=make_for)
    queue = current.queue(BATCHES)
    queue.configure(partitions=2)
    worker = start(queues=[BATCHES], heartbeat=0.2)
    queue.push_many(range(100))
    wait_for(lambda: queue.totals().get("succeeded") == 100)
    tag, _, name = BATCHES.partition("/")
    assert set(made) == {BATCHES, f"{tag}@1/{name}"}
    queue.configure(partitions=4)
    [queue.push(number) for number in range(40)]
    wait_for(lambda: queue.totals().get("succeeded") == 140, timeout_s=20)
    every = {BATCHES, *(f"{tag}@{number}/{name}" for number in range(1, 4))}
    wait_for(lambda: set(made) == every)  # with a heartbeat; until then the first of these serves all, by its queue
    worker.stop()
    assert {driver.calls[-1] for driver in made.values()} == {"stop"}
    forget_station(BATCHES)
