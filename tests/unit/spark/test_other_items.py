"""The batches that a station takes while all fail; needs no Spark. What becomes of them is in test_batch_failures."""

from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.etl import Pipeline
from jobrunner.spark.station import driver as driver_module
from jobrunner.spark.station.driver import StationDriver
from jobrunner.spark.station.lane import Lane
from tests.support.registries import forget_pipelines

QUEUE = "orders/raw"


def test_while_all_fail_every_other_batch_is_new_of_one_item_or_full(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    taken: list[tuple[int, int]] = []

    def run(lane: Lane, spark: Any, plan: Any) -> None:
        assert lane.lease is not None
        taken.append((lane.lease.size, lane.lease.epoch))
        lane.lease.release()
        lane.lease = None

    monkeypatch.setattr(Lane, "run", run)
    monkeypatch.setattr(driver_module, "plan_of", lambda *_: object())
    client.queue(QUEUE).push_many(range(40))
    pipeline = Pipeline("orders", client)
    pipeline.spark_sink("raw", batch=10, max_wait=0.05)(lambda df, spark, batch: None)
    driver = StationDriver(pipeline.spark_stations[QUEUE], client)
    forget_pipelines()
    driver.step(object())  # type: ignore[arg-type]
    driver._failures.others.wanted = True
    for _ in range(4):
        driver.step(object())  # type: ignore[arg-type]
    driver.stop(5)

    # Of one item though more wait, as it is not filled up. Those of an epoch above 1 were due again.
    assert [size for size, epoch in taken if epoch == 1] == [10, 1, 10]
    assert [epoch == 1 for _, epoch in taken] == [True, True, False, True, False]
