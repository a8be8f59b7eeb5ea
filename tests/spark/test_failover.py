"""A primary that dies with a batch which no replica has, below a sink on Spark. Run by `-m "spark and slow"`."""

from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.client.batches import Batches
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.etl import Pipeline
from jobrunner.spark import write_batch
from jobrunner.spark.station.batch_run import BatchRun, plan_of
from jobrunner.spark.station.driver import build_driver
from tests.topologies.servers import Behind

pytestmark = [pytest.mark.slow]


@pytest.fixture
def behind():
    started = Behind(sentinels=1)
    yield started
    started.remove()


def test_a_failover_after_the_write_of_a_sink_doubles_no_row_and_no_sum(warm, behind, tmp_path):
    """One path has the rows, the other sums of them, without `_id`: both are right."""
    rows, sums = str(tmp_path / "rows"), str(tmp_path / "sums")
    with Client(behind.url, "t", retry_timeout=30) as client:
        flights = Pipeline("flights", client)

        @flights.spark_sink("late", schema="n long, carrier string", max_wait=0, batch=30)
        def store(df, spark, batch):
            write_batch(df.drop("_headers"), batch, rows, partition_by=["carrier"])
            write_batch(df.groupBy("carrier").agg(F.sum("n").alias("n"), F.count("*").alias("of")), batch, sums)

        ids = flights.push_many("late", [{"n": n, "carrier": "AB"[n % 2]} for n in range(100)])
        station = flights.spark_stations["flights/late"]
        primary = behind.primary()
        with primary.connect() as connection:
            connection.set("t:mark", 1)
            assert connection.wait(1, 20_000) == 1
        behind.cut_replicas_off()

        lease = Batches(broker_of(client), keys_of(client).queue("flights/late")).take(20, lease_s=60)
        run = BatchRun(warm, plan_of(station, client), lease)
        run.stage()
        primary.kill()
        behind.fail_over(primary)
        with pytest.raises(JobrunnerError):
            run.decide()
        assert client.queue("flights/late").counts()["waiting"] == 100

        driver = build_driver(station, client)
        while driver.step(warm):
            pass
        driver.stop(20)
        assert Counter(row._id for row in warm.read.parquet(rows).collect()) == Counter(ids)
        found = warm.read.parquet(sums).agg(F.sum("n").alias("n"), F.sum("of").alias("of")).collect()[0]
        assert (found.n, found.of) == (sum(range(100)), 100)
        assert sum(client.queue("flights/late").counts()[state] for state in ("waiting", "pending", "dead")) == 0
