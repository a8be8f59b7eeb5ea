"""The stop of a driver whose batch does not end, as while a Spark Connect server is away; needs no Spark."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import Client
from jobrunner.etl import Pipeline
from jobrunner.spark.station import driver as driver_module
from jobrunner.spark.station.driver import StationDriver
from jobrunner.spark.station.lane import Lane
from tests.support.registries import forget_pipelines
from tests.support.waiting import wait_for

QUEUE = "orders/raw"


@pytest.fixture
def hangs(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Spark answers no call until this is set: neither those of a batch nor the one that cancels them."""
    answers = threading.Event()

    def run(lane: Lane, spark: Any, plan: Any) -> None:
        assert answers.wait(60)
        lane.lease = None

    monkeypatch.setattr(Lane, "run", run)
    monkeypatch.setattr(Lane, "cancel", lambda lane, timeout_s: answers.wait(60))
    monkeypatch.setattr(driver_module, "_CANCEL_S", 0.1)
    for name in ("spark_session", "running_session", "plan_of", "log_web_ui", "watch_connection"):
        monkeypatch.setattr(driver_module, name, lambda *_: object())
    yield answers
    answers.set()


def started_driver(client: Client) -> StationDriver:
    """A driver of a queue with ten items."""
    client.queue(QUEUE).push_many(range(10))
    pipeline = Pipeline("orders", client)
    pipeline.spark_sink("raw", max_wait=0, lease=600)(lambda df, spark, batch: None)
    driver = StationDriver(pipeline.spark_stations[QUEUE], client)
    forget_pipelines()
    driver.start()
    return driver


@pytest.fixture
def busy(client: Client, hangs: threading.Event) -> Callable[[], StationDriver]:
    """busy(): a driver with a batch of ten items, for which it waits."""

    def start() -> StationDriver:
        driver = started_driver(client)
        wait_for(lambda: driver.in_hand == 10)
        return driver

    return start


def test_it_ends_and_hands_the_batch_back_uncounted(busy: Any, broker: Any, keys: Any, monkeypatch: Any) -> None:
    driver = busy()
    (batch,) = driver.running
    ended: list[object] = []
    monkeypatch.setattr(driver_module, "end_retries", ended.append)
    stopped = threading.Thread(target=driver.stop, args=(0.1,), daemon=True)
    with capture_logs() as logs:
        stopped.start()
        stopped.join(30)
    assert not stopped.is_alive()
    assert ended == [driver._spark]
    assert [(line["event"], line["batch"]) for line in logs] == [("batch handed back", batch.id)]

    again = Batches(broker, keys.queue(QUEUE)).take(0, lease_s=60)
    assert again is not None, "it is due, and not held until the end of its lease"
    assert (again.id, again.epoch, again.size, again.failures) == (batch.id, 2, 10, 0)


def test_a_batch_that_was_decided_meanwhile_is_left_as_it_is(busy: Any, broker: Any, keys: Any, client: Client) -> None:
    driver = busy()
    (batch,) = driver.running
    decided = Batches(broker, keys.queue(QUEUE)).resume(batch.id, batch.attempt, lease_s=60)
    decided.decide([], rest="succeeded")
    assert [lease.state for lane in driver._lanes for lease in lane.held] == ["open"], "its thread had no reply yet"

    driver.stop(0.1)

    while not decided.advance().done:
        pass
    assert client.queue(QUEUE).totals()["succeeded"] == 10


def test_the_batch_that_was_gathered_while_spark_starts_is_given_back_though_the_server_is_slow(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Spark itself is waited for no longer than half a second then. The batch counted as an attempt of its items."""
    started, slow, dissolve = threading.Event(), threading.Event(), BatchLease.dissolve

    def slowly(lease: BatchLease) -> int:
        slow.wait(1.0)
        return dissolve(lease)

    monkeypatch.setattr(BatchLease, "dissolve", slowly)
    monkeypatch.setattr(driver_module, "running_session", lambda *_: None)
    monkeypatch.setattr(driver_module, "spark_session", lambda *_: started.wait(60))
    driver = started_driver(client)
    wait_for(lambda: driver.in_hand == 10 and driver._has_begun)

    driver.stop(20)
    started.set()

    counts = client.queue(QUEUE).counts()
    assert (counts["waiting"], counts["pending"]) == (10, 0)
