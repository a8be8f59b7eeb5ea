"""One Spark session for all tests of Spark in this process, and pipelines whose stations are stepped by hand."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.item import Item
from jobrunner.etl import Pipeline
from jobrunner.spark.failures import error_line
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.session import spark_session
from jobrunner.spark.station.batch_run import BatchRun, plan_of
from jobrunner.spark.station.driver import StationDriver

HERE = Path(__file__).parent
SMALL = {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g"}
# Every JVM of these tests, also those of processes that they start, lives for seconds or minutes and sees tens of rows:
# Java's optimising compiler would cost as much processor time as all of its work, and the classes that Spark compiles
# for each query a fifth of the rest.
_INTERPRETED = "-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {_INTERPRETED}")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test here as a Spark test, with a longer timeout; those of a file that share the session, and so
    their fixtures of the module, are run by one process.

    A session needs seconds to start, and minutes on a machine under load. The usual timeout would interrupt py4j in the
    middle of an answer, and with it the session that all later tests share.
    """
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)
            if "spark" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(f"spark {item.path.stem}"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session on this machine: two cores, little memory, a failed Spark task is run again."""
    session = spark_session("tests", "local[2,4]", **SMALL)
    yield session
    session.stop()


@pytest.fixture
def flights(client):
    """A pipeline on the test's client."""
    return Pipeline("flights", client)


@pytest.fixture(scope="session")
def warm(spark):
    """The session behind its first query, which takes seconds and cannot be cancelled before it is planned."""
    table = pa.table({"_id": ["a"]})
    spark.createDataFrame(table).mapInArrow(lambda batches: batches, "_id string").collect()
    return spark


@pytest.fixture
def driver_of(warm, client, flights):
    """driver_of("clean"): the driver of that queue's station."""
    return lambda queue: StationDriver(flights.spark_stations[f"flights/{queue}"], client)


@pytest.fixture
def drive(spark, driver_of):
    """drive("clean"): lets the station of that queue handle batches until there are none; returns how many."""

    def run(queue, at_most=100):
        driver = driver_of(queue)
        count = 0
        while count < at_most and driver.step(spark):
            count += 1
        driver.stop(20)
        return count

    return run


@pytest.fixture
def take(spark, client, flights):
    """take("clean"): a new batch of that queue's station, to be run step by step."""

    def taken(queue, n=10_000, lease_s=60.0):
        station = flights.spark_stations[f"flights/{queue}"]
        lease = Batches(broker_of(client), keys_of(client).queue(station.queue)).take(n, lease_s=lease_s)
        return BatchRun(spark, plan_of(station, client), lease)

    return taken


@pytest.fixture
def attempt(take):
    """attempt("clean"): the error, in one line, that running a batch of that queue raises."""

    def run(queue):
        with pytest.raises(Exception) as caught:
            take(queue).run()
        return error_line(caught.value)

    return run


@pytest.fixture
def found(client):
    """found("clean"): payloads of what waits in that queue, by id; takes them away."""

    def read(queue):
        read = {}
        while items := client.queue(f"flights/{queue}").pop(1000):
            read |= {item.id: item.payload for item in items}
        return read

    return read


@pytest.fixture
def finish(client):
    """finish("mail", 5): runs five tasks; returns their ids."""

    def run(queue, n, *, dies=False):
        line = client.queue(queue)
        ids = line.push_many([Item({"n": at, "to": f"u{at % 3}"}, max_attempts=1) for at in range(n)])
        for lease in line.reserve(n):
            if dies:
                lease.rollback(error="Oops: 42")
            else:
                lease.commit(result={"ok": True})
        return ids

    return run


@pytest.fixture(params=["delta", "iceberg"])
def table(request, tmp_path, monkeypatch):
    """The address of a table of each format that is not there yet."""
    monkeypatch.setattr(lake_commit, "_seen", set())
    if request.param == "delta":
        return f"delta:{tmp_path}/late"
    from pyiceberg.catalog import Config

    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    monkeypatch.setattr(Config, "get_catalog_config", lambda self, name: settings)
    return "iceberg:lake.db.late"
