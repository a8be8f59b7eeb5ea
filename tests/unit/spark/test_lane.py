"""The lane of a driver around one batch; needs no Spark."""

import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from jobrunner.broker.call import command
from jobrunner.broker.calls import batches as calls
from jobrunner.client.batches import Batches
from jobrunner.client.client import Client
from jobrunner.errors import BatchLost, ServerUnavailable, StationError
from jobrunner.etl import Pipeline
from jobrunner.spark import failures
from jobrunner.spark.station import lane as lane_module
from jobrunner.spark.station.batch_failures import BatchFailures
from jobrunner.spark.station.batch_jobs import SparkUsage
from jobrunner.spark.station.batch_log import BatchLog
from jobrunner.spark.station.batch_reports import BatchReports
from jobrunner.spark.station.batch_run import BatchRun
from jobrunner.spark.station.gathering import BatchSizes
from jobrunner.spark.station.lane import Lane
from tests.support.clock import Clock

QUEUE = "orders/raw"


class Jobs(nullcontext[None]):
    """Of a session that is not there."""

    def __init__(self, *_: object) -> None:
        super().__init__()

    def usage(self) -> SparkUsage:
        return SparkUsage()

    def cancel_until(self, over: threading.Event) -> None:
        over.wait(60)


@pytest.fixture
def failing(client: Client, broker: Any, keys: Any, monkeypatch: pytest.MonkeyPatch) -> Lane:
    """A lane with a batch of three items, for which the function raises."""

    def run(_: BatchRun) -> int:
        raise StationError("a column is misspelt")

    monkeypatch.setattr(BatchRun, "run", run)
    monkeypatch.setattr(lane_module, "SparkJobs", Jobs)
    client.queue(QUEUE).push_many(range(3))
    pipeline = Pipeline("orders", client)
    pipeline.spark_sink("raw", max_wait=0, lease=0.3)(lambda df, spark, batch: None)
    station = pipeline.spark_stations[QUEUE]
    seen: list[object] = []
    reports = BatchReports(station, broker, keys.queue(QUEUE), seen.append, threading.Event())
    judged = BatchFailures(QUEUE, reports, threading.Event())
    lane = Lane(station, client, judged, BatchLog(station, client, seen.append), BatchSizes(station), seen.append)
    lane.lease = Batches(broker, keys.queue(QUEUE)).take(3, lease_s=60)
    lane.seen = seen  # type: ignore[attr-defined]
    return lane


def ended(lane: Any) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """Runs the batch of a lane to its end. Returns the outcomes and causes of the batch log, and what was counted."""
    lane.run(None, None)
    lane.closing.wait(30)
    counts: Counter[str] = Counter()
    for end in lane.seen:
        counts.update(end.counts)
    records = [end.record for end in lane.seen if end.record]
    return [(one.outcome, one.cause) for one in records], {name: n for name, n in counts.items() if n}


def test_the_lease_is_renewed_while_spark_is_asked_whether_it_is_alive(
    failing: Lane, broker: Any, keys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job that asks waits behind those of other batches, for longer than a lease."""
    renewed = threading.Event()
    asked: list[bool] = []

    def is_alive(*_: object) -> bool:
        monkeypatch.setattr(failing.lease, "renew", renewed.set)
        asked.append(renewed.wait(30))
        return True

    monkeypatch.setattr(failures, "is_alive", is_alive)
    failing.run(None, None)  # type: ignore[arg-type]
    assert asked == [True]
    assert str(failing._failures.reason).startswith("StationError: a column is misspelt")
    again = Batches(broker, keys.queue(QUEUE)).take(0, lease_s=60)
    assert again is None, "it was handed back, for later"


def test_a_batch_whose_lease_is_lost_meanwhile_is_not_reported(failing: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = threading.Event()

    def renew() -> None:
        lost.set()
        raise BatchLost("another attempt may have begun")

    def is_alive(*_: object) -> bool:
        monkeypatch.setattr(failing.lease, "renew", renew)
        return lost.wait(30)

    monkeypatch.setattr(failures, "is_alive", is_alive)
    monkeypatch.setattr(failing._failures, "set_back", lambda *_: pytest.fail("reported"))
    failing.run(None, None)  # type: ignore[arg-type]
    assert lost.is_set()


def test_a_batch_whose_items_are_put_back_is_no_batch_of_the_driver_that_finds_it(
    failing: Lane, client: Client, broker: Any, keys: Any
) -> None:
    """A worker that stops leaves it to others when it has no time to put them back itself."""
    assert failing.lease is not None
    failing.lease.end("dissolved")
    batches = Batches(broker, keys.queue(QUEUE))

    assert batches.take(0, lease_s=60) is None

    assert client.queue(QUEUE).counts()["waiting"] == 3
    failing.lease = batches.take(3, lease_s=60)
    assert failing.lease is not None
    assert (failing.lease.is_new, failing.lease.size) == (True, 3)


def test_an_item_that_died_with_its_drivers_is_noted_as_dead(
    failing: Lane, broker: Any, keys: Any, client: Client, clock: Clock
) -> None:
    assert failing.lease is not None
    failing.lease.dissolve()
    client.queue(QUEUE).configure(max_attempts=1)
    batches = Batches(broker, keys.queue(QUEUE))
    clock.set()
    one = batches.take(1, lease_s=60)
    assert one is not None
    broker.run(calls.failed_attempt(keys.queue(QUEUE), one.id, one.epoch, fate="failed", reason="killed"))
    assert batches.take(0, lease_s=60) is None, "for a while its driver alone ends it; it was counted twice"
    clock.advance(60_000)
    failing.lease = batches.take(0, lease_s=60)

    assert ended(failing) == ([("dead", "killed")], {"failed": 1, "dead": 1})


def test_a_write_into_the_queue_is_no_batch_of_its_station(failing: Lane, broker: Any, keys: Any) -> None:
    assert failing.lease is not None
    failing.lease.dissolve()
    batches = Batches(broker, keys.queue(QUEUE))
    write = batches.open(lease_s=60)
    write.stage("n", ["x", "raw", b"1", '{"new":1}'])
    write.decide(["n"], rest="succeeded")
    broker.run(command("ZADD", keys.queue(QUEUE).finishing, 0, write.id, read=int))
    failing.lease = batches.take(0, lease_s=60)

    assert ended(failing) == ([], {})


def test_an_abandoned_write_is_removed_by_the_driver_that_finds_it(
    broker: Any, keys: Any, client: Client, clock: Any
) -> None:
    clock.set()
    batches = Batches(broker, keys.queue(QUEUE))
    client.queue(QUEUE).push(1)
    write = batches.open(lease_s=30)
    clock.advance(3_600_000)

    assert batches.take(0, lease_s=60) is None

    assert broker.run(command("HGET", keys.queue(QUEUE).batch + write.id.encode(), "state", read=bytes)) == b"done"


def test_a_failure_that_cannot_be_reported_is_noted_as_lost(failing: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch log had no word of the attempt, and its run of OpenLineage no end."""

    def set_back(*_: object) -> None:
        raise ServerUnavailable("no server")

    monkeypatch.setattr(failures, "is_alive", lambda *_: True)
    monkeypatch.setattr(failing._failures, "set_back", set_back)
    with pytest.raises(ServerUnavailable):
        failing.run(None, None)  # type: ignore[arg-type]
    records = [end.record for end in failing.seen if end.record]  # type: ignore[attr-defined]
    assert [(one.outcome, one.cause) for one in records] == [("lost", "StationError: a column is misspelt")]
