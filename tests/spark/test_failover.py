"""A primary that dies with a batch which no replica has, below a sink on Spark. Run by `-m "spark and slow"`."""

from collections import Counter

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.client.batches import Batches
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.errors import JobrunnerError
from jobrunner.etl import Pipeline, To
from jobrunner.etl.table_sink import address_of
from jobrunner.outcome import Fail
from jobrunner.spark import write_batch
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.station.batch_run import BatchRun, plan_of
from jobrunner.spark.station.driver import StationDriver
from tests.topologies.servers import Behind

pytestmark = [pytest.mark.slow]


@pytest.fixture
def behind():
    # Sentinel promotes no replica that was cut off for ten times as long, and batches take a minute on a busy machine.
    started = Behind(sentinels=1, down_after_ms=10_000)
    yield started
    started.remove()


def cut_off(behind):
    """The primary, from now on without its replicas, which have all that was written so far."""
    primary = behind.primary()
    with primary.connect() as connection:
        connection.set("t:mark", 1)
        assert connection.wait(1, 20_000) == 1
    behind.cut_replicas_off()
    return primary


def drive(station, client, spark):
    """Runs batches of a station until there are none."""
    driver = StationDriver(station, client)
    while driver.step(spark):
        pass
    driver.stop(20)


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
        primary = cut_off(behind)

        lease = Batches(broker_of(client), keys_of(client).queue("flights/late")).take(20, lease_s=600)
        run = BatchRun(warm, plan_of(station, client), lease)
        run.stage()
        primary.kill()
        behind.fail_over(primary, timeout_s=180)
        with pytest.raises(JobrunnerError):
            run.decide()
        assert client.queue("flights/late").counts()["waiting"] == 100

        drive(station, client, warm)
        assert Counter(row._id for row in warm.read.parquet(rows).collect()) == Counter(ids)
        found = warm.read.parquet(sums).agg(F.sum("n").alias("n"), F.sum("of").alias("of")).collect()[0]
        assert (found.n, found.of) == (sum(range(100)), 100)
        assert sum(client.queue("flights/late").counts()[state] for state in ("waiting", "pending", "dead")) == 0


ENDS = {4: "first", **dict.fromkeys((0, 2, 6, 8), "table"), **dict.fromkeys((1, 5, 7, 9), "last")}
"""Of an item, by the last digit of its number; 3 dies on its way."""


class ChainedFlights:
    """raw (Python) ── first, and ── rows ══ table | last: a chain whose driver dies where `dies` says."""

    def __init__(self, client, folder):
        self.pipeline = Pipeline("flights", client)
        self.dies = ""
        self._folder, self._table = folder, f"delta:{folder}/table"

        @self.pipeline.station("raw", to=("rows", "first"))
        def read(item):
            if item.payload["n"] % 10 == 3:
                raise Fail("no flight", retry=False)
            return To("first" if item.payload["n"] % 10 == 4 else "rows")

        @self.pipeline.spark_station("rows", to=("table", "last"), schema="n int")
        def split(df, spark):
            return df.withColumn("_to", F.when(df.n % 2 == 0, "table").otherwise("last"))

        self.pipeline.spark_sink("first", schema="n int")(self._into("first"))
        self.pipeline.spark_sink("table", table=self._table, schema="n int", id_column="item")
        self.pipeline.spark_sink("last", schema="n int")(self._into("last"))
        self.pipeline.chain("raw", batch=30, max_wait=0)

    def _into(self, name):
        def store(df, spark, batch):
            if self.dies == f"before {name}":
                raise OSError("the driver died")
            write_batch(df.select("_id"), batch, str(self._folder / name))
            if self.dies == f"after {name}":
                raise OSError("the driver died")

        return store

    def stored(self, spark):
        """The ids of the rows at each end."""
        table = open_table(address_of(self._table))
        table.load()
        found = {name: spark.read.parquet(str(self._folder / name)).collect() for name in ("first", "last")}
        return {name: [row._id for row in rows] for name, rows in found.items()} | {
            "table": table._table.to_pyarrow_table()["item"].to_pylist()
        }


def test_a_failover_behind_the_sinks_of_a_chain_doubles_nothing_at_any_of_its_ends(warm, behind, tmp_path):
    """The server forgets four batches: one that is decided, one that all sinks wrote, two that died between sinks. The
    batches that come instead have their items and others."""
    with Client(behind.url, "t", retry_timeout=30) as client:
        flights = ChainedFlights(client, tmp_path)
        ids = flights.pipeline.push_many("raw", [{"n": n} for n in range(100)])
        station = flights.pipeline.spark_stations["flights/raw"]
        primary = cut_off(behind)

        batches = Batches(broker_of(client), keys_of(client).queue("flights/raw"))
        decided, written, *dead = [
            BatchRun(warm, plan_of(station, client), batches.take(20, lease_s=600)) for _ in range(4)
        ]
        decided.run()
        decided.lease.advance()
        written.stage()
        for run, where in zip(dead, ("before last", "after first"), strict=True):
            flights.dies = where
            with pytest.raises(OSError, match="the driver died"):
                run.stage()
        flights.dies = ""
        primary.kill()
        behind.fail_over(primary, timeout_s=180)
        with pytest.raises(JobrunnerError):
            written.decide()
        assert client.queue("flights/raw").counts()["waiting"] == 100

        drive(station, client, warm)
        for name, rows in flights.stored(warm).items():
            assert Counter(rows) == Counter(one for n, one in enumerate(ids) if ENDS.get(n % 10) == name), name
        counts = client.queue("flights/raw").counts()
        assert [counts[state] for state in ("waiting", "scheduled", "pending", "dead")] == [0, 0, 0, 10]
        assert {client.task(one).record().error for one in ids[3::10]} == {"no flight"}
