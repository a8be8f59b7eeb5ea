"""The batch that is gathered while Spark starts; needs no Spark."""

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from jobrunner.client.batches import Batches
from jobrunner.client.client import Client
from jobrunner.coordinator.recovery import roll_forward
from jobrunner.etl import Pipeline
from jobrunner.spark.station import batch_source
from jobrunner.spark.station import driver as driver_module
from jobrunner.spark.station.driver import StationDriver
from tests.support.clock import Clock
from tests.support.registries import forget_pipelines
from tests.support.waiting import wait_for

QUEUE = "orders/raw"


class Starting:
    """A session that starts when the test says so, with what `result` is then."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self.result: Any = RuntimeError("no Java here")

    def __call__(self, app: str) -> Any:
        self.asked.set()
        assert self.goes_on.wait(60)
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Starting:
    session = Starting()
    monkeypatch.setattr(driver_module, "spark_session", session)
    monkeypatch.setattr(driver_module, "running_session", lambda: None)
    monkeypatch.setattr(driver_module, "plan_of", lambda station, client: object())
    monkeypatch.setattr(driver_module, "log_web_ui", lambda spark: None)
    return session


@pytest.fixture
def driver_with(client: Client, starting: Starting) -> Iterator[Callable[..., StationDriver]]:
    """driver_with(options of the sink): a driver that starts with the test's session; the test starts it."""
    made: list[StationDriver] = []

    def build(**options: Any) -> StationDriver:
        pipeline = Pipeline("orders", client)
        pipeline.spark_sink("raw", **{"max_wait": 0, **options})(lambda df, spark, batch: None)
        made.append(StationDriver(pipeline.spark_stations[QUEUE], client))
        forget_pipelines()
        return made[-1]

    yield build
    starting.goes_on.set()
    for driver in made:
        driver.stop(20)


def counts(client: Client) -> tuple[int, int]:
    found = client.queue(QUEUE).counts()
    return found["waiting"], found["pending"]


def test_a_batch_is_gathered_while_the_session_starts_and_runs_first(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(QUEUE).push_many(range(25))
    ran: list[tuple[str, int]] = []

    def run(lane: Any, spark: Any, plan: Any) -> None:
        ran.append((lane.lease.id, lane.lease.size))
        lane.lease.dissolve()
        driver.be_quiet(True)  # or it takes them again
        lane.lease = None

    monkeypatch.setattr(driver_module.Lane, "run", run)
    driver = driver_with(batch=10)
    driver.start()
    assert starting.asked.wait(60)
    (batch,) = wait_for(lambda: driver.in_hand == 10 and driver.running)
    assert (batch.items, batch.attempt) == (10, 1)
    assert counts(client) == (15, 10)

    starting.result = object()
    starting.goes_on.set()
    wait_for(lambda: ran)
    assert ran[0] == (batch.id, 10)


def test_it_goes_back_uncounted_when_spark_does_not_start(client: Client, starting: Starting, driver_with: Any) -> None:
    ids = client.queue(QUEUE).push_many(range(25))
    driver = driver_with(batch=10)
    driver.start()
    wait_for(lambda: driver.in_hand == 10)

    starting.goes_on.set()
    wait_for(lambda: counts(client) == (25, 0))
    assert str(driver.failure) == "no Java here"
    items = client.queue(QUEUE).reserve(25)
    assert ([item.id for item in items], {item.attempt.number for item in items}) == (ids, {1}), "in the old order"


@pytest.mark.parametrize("end", ["ask_to_stop", "be_quiet"])
def test_it_goes_back_when_the_driver_takes_no_more_batches(
    client: Client, starting: Starting, driver_with: Any, end: str
) -> None:
    client.queue(QUEUE).push_many(range(25))
    driver = driver_with(batch=10)
    driver.start()
    wait_for(lambda: driver.in_hand == 10)

    driver.be_quiet(True) if end == "be_quiet" else driver.ask_to_stop()
    wait_for(lambda: counts(client) == (25, 0))
    assert driver.in_hand == 0
    assert not starting.goes_on.is_set()


def test_a_spark_that_a_stop_ended_while_it_started_is_no_failure(
    client: Client, starting: Starting, driver_with: Any
) -> None:
    """A stop of the process group ends Java, too, perhaps before the driver is told."""
    driver = driver_with(batch=10)
    driver.start()
    assert starting.asked.wait(60)
    starting.goes_on.set()
    driver.ask_to_stop()
    driver.stop(20)
    assert driver.failure is None


def test_its_lease_is_renewed_as_long_as_spark_needs(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.queue(QUEUE).push_many(range(5))
    driver = driver_with(batch=10, min_rows=1, lease=timedelta(seconds=1))
    driver.start()
    wait_for(lambda: driver.in_hand == 5)
    lease = driver._source.first.lease
    assert lease is not None

    first = lease.deadline
    wait_for(lambda: (lease.deadline - first).total_seconds() > 1.2)
    assert driver.in_hand == 5


def test_a_lost_one_is_not_handed_over(client: Client, starting: Starting, driver_with: Any) -> None:
    client.queue(QUEUE).push_many(range(5))
    driver = driver_with(batch=10, min_rows=1)
    driver.start()
    wait_for(lambda: driver.in_hand == 5)
    lease = driver._source.first.lease
    assert lease is not None
    lease.dissolve()

    assert driver._source.first.hand_over() is None
    assert driver.in_hand == 0


def test_none_is_gathered_beside_an_open_batch(
    client: Client, starting: Starting, driver_with: Any, broker: Any, keys: Any
) -> None:
    """A process that dies each time Spark starts would hold more and more items otherwise."""
    client.queue(QUEUE).push_many(range(25))
    other = Batches(broker, keys.queue(QUEUE)).take(10, lease_s=600)
    assert other is not None
    driver = driver_with(batch=10)
    driver.start()
    driver._source.first.wait(60)
    assert starting.asked.wait(60)
    assert (driver.in_hand, counts(client)) == (0, (15, 10))


def test_a_decided_batch_is_left_to_who_can_roll_it_forward(
    client: Client, starting: Starting, driver_with: Any, broker: Any, keys: Any, clock: Clock
) -> None:
    """Its driver died behind the decision. A driver that waits for Spark would only keep it from the leader."""
    clock.set()
    client.queue(QUEUE).push_many(range(25))
    decided = Batches(broker, keys.queue(QUEUE)).take(10, lease_s=60)
    assert decided is not None
    decided.decide([], rest="succeeded")
    clock.advance(61_000)
    driver = driver_with(batch=10)
    driver.start()
    assert wait_for(lambda: driver.in_hand == 10)

    assert roll_forward(Batches(broker, keys.queue(QUEUE)), slices=9) > 0
    assert client.queue(QUEUE).totals()["succeeded"] == 10
    assert counts(client) == (5, 10), "and the next ten are gathered"


def test_a_process_with_a_session_gathers_none_before_its_first_turn(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "running_session", object)
    client.queue(QUEUE).push_many(range(5))
    driver = driver_with(batch=10)
    driver.start()
    assert starting.asked.wait(60)
    assert driver._source.first._thread.ident is None
    assert counts(client) == (5, 0)


def test_it_goes_back_when_spark_does_not_start_for_long(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_source, "_LONGEST_S", 0.2)
    client.queue(QUEUE).push_many(range(5))
    driver = driver_with(batch=5)
    driver.start()
    driver._source.first.wait(60)
    assert starting.asked.wait(60)
    assert (driver.in_hand, counts(client)) == (0, (5, 0))
    assert not starting.goes_on.is_set()


def test_a_session_that_cannot_be_asked_for_is_the_lanes_affair(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ImportError("grpcio")

    monkeypatch.setattr(driver_module, "running_session", refuse)
    driver = driver_with(batch=5)
    driver.start()
    starting.goes_on.set()
    wait_for(lambda: driver.failure)
    assert str(driver.failure) == "no Java here"


class Panic(BaseException):
    """As that of a library in Rust."""


@pytest.mark.parametrize("where", ["session", "lane"])
def test_an_error_that_is_no_exception_ends_the_worker_and_not_a_lane_alone(
    client: Client, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def panic(lane: Any, spark: Any, plan: Any) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(driver_module.Lane, "run", panic)
    client.queue(QUEUE).push(1)
    driver = driver_with(batch=5)
    starting.result = Panic("index out of bounds") if where == "session" else object()
    starting.goes_on.set()
    driver.start()
    wait_for(lambda: driver.failure)
    assert repr(driver.failure) == "Panic('index out of bounds')"
    assert not driver.takes()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_by_itself_ends_the_worker(
    starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panic(loop: Any) -> float:
        raise Panic("outside of a turn")

    monkeypatch.setattr(driver_module.Loop, "turn", panic)
    driver = driver_with(batch=5)
    assert driver.failure is None, "it was not started"
    starting.goes_on.set()
    driver.start()
    wait_for(lambda: driver.failure)
    assert str(driver.failure) == "a thread that runs its batches has ended"
    # A thread that ends later would warn in the next test, which expects no such error.
    wait_for(lambda: not any("-spark-" in thread.name for thread in threading.enumerate()))


def test_a_driver_that_waits_for_items_stops_at_once(
    client: Client, raw: Any, starting: Starting, driver_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_module, "_IDLE_S", 600.0)
    driver = driver_with(batch=5, parallel=2)
    starting.result = object()
    starting.goes_on.set()
    driver.start()
    wait_for(lambda: any(one["cmd"] == "bzpopmin" for one in raw.client_list()))

    driver.stop(5)

    assert all(loop.stop(0) for loop in driver._loops)
