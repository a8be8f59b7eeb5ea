"""Stations on Spark in a pipeline with partitions: each partition is a pipeline of its own, with the same stations."""

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.broker.keys import tag_of_id
from jobrunner.broker.shards import shard_name
from jobrunner.jobs.registry import driver_of
from jobrunner.spark import write_batch
from jobrunner.spark.station import members

N = 3


@pytest.fixture
def step(warm, client):
    """step("flights/clean"): lets the drivers of all partitions of a queue handle batches until there are none."""

    def run(queue):
        ends = []
        for number in range(N):
            driver = driver_of(shard_name(queue, number))(client, ends.append)
            while driver.step(warm):
                pass
            driver.stop(20)
        return ends

    return run


@pytest.mark.parametrize("through", ["through the driver", "on the executors"])
def test_items_move_on_fan_out_and_end_within_their_partition(flights, client, step, tmp_path, monkeypatch, through):
    if through == "on the executors":
        monkeypatch.setattr(members, "THROUGH_DRIVER", 0)
        monkeypatch.setattr(members, "CHUNK", 2)

    @flights.spark_station("raw", to=("even", "odd"), max_wait=0, schema="n int", max_attempts=7)
    def split(df, spark):
        full = F.when(F.col("n") == 0, "flights/even").otherwise("even")
        return df.withColumn("_to", F.when(F.col("n") % 2 == 0, full).otherwise("odd"))

    @flights.spark_station("odd", to="all", max_wait=0, schema="n int", fan_out=True)
    def twice(df, spark):
        return df.withColumn("n", F.explode(F.array(F.col("n"), F.col("n") + 1000)))

    @flights.spark_sink("even", max_wait=0, schema="n int")
    def store(df, spark, batch):
        df.write.mode("overwrite").json(str(tmp_path / batch.id))

    flights.declare("all")
    flights.queue("raw").configure(partitions=N)
    ids = flights.push_many("raw", [{"n": n} for n in range(60)])
    assert {tag_of_id(one) for one in ids} == {"flights", "flights@1", "flights@2"}
    step("flights/raw")
    assert flights.queue("even").counts()["waiting"] == flights.queue("odd").counts()["waiting"] == 30
    step("flights/odd")
    step("flights/even")
    found = flights.queue("all").reserve(500) + flights.queue("all").reserve(500)
    assert sorted(lease.payload["n"] for lease in found) == sorted([*range(1, 60, 2), *range(1001, 1060, 2)])
    assert all(lease.queue == shard_name("flights/all", _number(lease.id)) for lease in found)
    assert flights.queue("even").totals()["succeeded"] == 30
    assert flights.queue("raw").totals()["moved_out"] == 60
    stored = [folder.name for folder in tmp_path.iterdir()]
    assert {tag_of_id(one) for one in stored} == {"flights", "flights@1", "flights@2"}
    assert not any(flights.queue(name).counts()["pending"] for name in ("raw", "odd", "even"))
    assert client.queue("flights@1/raw").settings().max_attempts == 7


def test_an_exactly_once_sink_and_a_chain_work_partition_by_partition(flights, client, step, warm, tmp_path):
    @flights.spark_station("raw", to="end", max_wait=0, schema="n int")
    def more(df, spark):
        return df.withColumn("n", F.col("n") + 1)

    @flights.spark_sink("end", max_wait=0, schema="n int")
    def store(df, spark, batch):
        write_batch(df, batch, str(tmp_path / "out"))

    flights.chain("raw")
    flights.queue("raw").configure(partitions=N)
    flights.push_many("raw", [{"n": n} for n in range(60)])
    step("flights/raw")
    assert sorted(row.n for row in warm.read.parquet(str(tmp_path / "out")).collect()) == list(range(1, 61))
    assert flights.queue("raw").totals()["succeeded"] == 60


def _number(task_id):
    return int((tag_of_id(task_id) or "").partition("@")[2] or 0)
