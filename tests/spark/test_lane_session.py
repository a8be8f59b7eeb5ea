"""Batches beside each other: what the function of one registers and sets is not seen by another."""

import threading

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from structlog.testing import capture_logs

from jobrunner.spark.station.driver import StationDriver
from jobrunner.spark.station.lane_session import LaneSession
from tests.support.waiting import wait_for

ZONE = "spark.sql.session.timeZone"


def of_lane(spark, lane=None):
    return (lane or LaneSession()).for_batch(spark)


def test_a_view_of_one_name_has_the_rows_of_its_own_batch(warm, client, flights, found):
    """Each of two batches registers its view before one of them asks for it."""
    both = threading.Barrier(2)

    @flights.spark_station("clean", to="late", schema="n int", batch=5, parallel=2, max_wait=0)
    def double(df, spark):
        df.createOrReplaceTempView("items")
        both.wait(60)
        return spark.sql("SELECT _id, n * 2 AS m FROM items")

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(20)])
    driver = StationDriver(flights.spark_stations["flights/clean"], client)
    driver.start()
    try:
        wait_for(lambda: client.queue("flights/late").counts()["waiting"] == 20, timeout_s=60)
    finally:
        driver.stop(20)

    assert sorted(payload["m"] for payload in found("late").values()) == [2 * n for n in range(20)]
    assert not warm.catalog.tableExists("items")


def test_views_and_settings_of_a_batch_end_with_it_and_those_of_the_process_are_the_newest(spark):
    lane = LaneSession()
    spark.range(1).createOrReplaceTempView("shared")
    own = of_lane(spark, lane)
    own.range(2).createOrReplaceTempView("shared")
    own.range(2).createOrReplaceTempView("own")
    own.conf.set(ZONE, "Asia/Tokyo")
    assert (spark.table("shared").count(), spark.catalog.tableExists("own"), spark.conf.get(ZONE)) == (1, False, "UTC")

    spark.range(3).createOrReplaceTempView("shared")
    spark.conf.set(ZONE, "Europe/Oslo")
    try:
        again = of_lane(spark, lane)
        assert (again.table("shared").count(), again.catalog.tableExists("own")) == (3, False)
        assert again.conf.get(ZONE) == "Europe/Oslo"
    finally:
        spark.conf.set(ZONE, "UTC")
        spark.catalog.dropTempView("shared")


def test_frames_and_functions_of_the_process_go_with_those_of_a_batch(spark):
    of_module = spark.createDataFrame(pa.table({"k": [0, 1, 2], "w": ["a", "b", "c"]}))
    kept = spark.range(9).withColumnRenamed("id", "k").cache()
    kept.count()
    spark.udf.register("one_more", lambda n: n + 1, "long")
    df = of_lane(spark).createDataFrame(pa.table({"_id": ["x", "y"], "k": [0, 1]}))
    joined = df.join(kept, "k")

    assert df.join(of_module, "k").count() == of_module.join(F.broadcast(df), "k").count() == 2
    assert "InMemoryTableScan" in joined._jdf.queryExecution().executedPlan().toString()
    assert joined.unionByName(df).count() == 4
    assert [row[0] for row in df.selectExpr("one_more(k)").collect()] == [1, 2]
    kept.unpersist()


def test_the_current_database_is_that_of_the_process(spark, tmp_path):
    spark.sql(f"CREATE DATABASE of_tests LOCATION '{tmp_path}'")
    spark.sql("USE of_tests")
    try:
        assert of_lane(spark).catalog.currentDatabase() == "of_tests"
    finally:
        spark.sql("USE default")
        spark.sql("DROP DATABASE of_tests")


@pytest.mark.parametrize("of_process", ["default", "of_process"])
def test_a_database_that_a_function_uses_ends_with_its_batch(spark, tmp_path, of_process):
    """The next batch of the lane began in it, and read the tables of another database."""
    for name in ("of_batch", "of_process"):
        spark.sql(f"CREATE DATABASE {name} LOCATION '{tmp_path}/{name}'")
    lane = LaneSession()
    try:
        of_lane(spark, lane).sql("USE of_batch")
        spark.sql(f"USE {of_process}")
        assert of_lane(spark, lane).catalog.currentDatabase() == of_process
    finally:
        spark.sql("USE default")
        for name in ("of_batch", "of_process"):
            spark.sql(f"DROP DATABASE {name}")


def test_what_the_program_makes_of_its_own_data_stays_with_its_session(spark):
    def sessions():
        made = spark.sparkContext.parallelize([(1,)]).toDF(["n"])
        return [one._jsparkSession for one in (made.sparkSession, type(spark).getActiveSession())]

    before = sessions()  # that of another test, perhaps: PySpark takes the one that was made last
    own = of_lane(spark)
    assert sessions() == before
    assert own._jsparkSession not in before


def test_a_view_that_is_asked_of_another_session_fails_with_a_hint(flights, drive, spark, client):
    @flights.spark_station("clean", to="late", schema="n int", max_wait=0)
    def ask(df, _):
        df.createOrReplaceTempView("items")
        return spark.sql("SELECT * FROM items")

    flights.declare("late")
    flights.push("clean", {"n": 1})
    with capture_logs() as told:
        drive("clean", at_most=1)

    (error,) = [one["error"] for one in told if "error" in one]
    assert "[TABLE_OR_VIEW_NOT_FOUND] The table or view `items` cannot be found." in error
    assert "a view that the function registers is known to df.sparkSession.sql(...) alone" in error
    assert client.queue("flights/clean").counts()["dead"] == 0


def test_where_spark_makes_no_copy_batches_have_the_session_itself(spark, monkeypatch):
    class Refusing:
        def cloneSession(self):
            raise RuntimeError("not allowed here")

    lane, java = LaneSession(), spark._jsparkSession
    monkeypatch.setattr(spark, "_jsparkSession", Refusing())
    with capture_logs() as told:
        assert lane.for_batch(spark) is lane.for_batch(spark) is spark
    assert [one["error"] for one in told] == ["not allowed here"]
    monkeypatch.setattr(spark, "_jsparkSession", java)
    assert lane.for_batch(spark) is not spark
