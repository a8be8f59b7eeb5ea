"""What a station on Spark tells of its batches: in Spark's web UI, in the batch log and in the logs."""

import sqlite3
from contextlib import closing

import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import IntegerType

from jobrunner import Backoff
from jobrunner.spark import write_batch, write_sql, write_table
from jobrunner.spark.station.driver import StationDriver


@pytest.fixture
def handle(warm, client, flights):
    """handle("clean"): lets the station of that queue handle what there is; returns the records of its batches."""

    def run(queue):
        ends = []
        driver = StationDriver(flights.spark_stations[f"flights/{queue}"], client, ends.append)
        while driver.step(warm):
            pass
        driver.stop(20)
        return [end.record for end in ends if end.record is not None]

    return run


NO_PAUSE = Backoff(base=0, jitter=0)


@F.udf(IntegerType())
def halved(n):
    if n == 13:
        raise ValueError("thirteen")
    return n // 2


def test_batches_are_named_measured_and_recorded(spark, flights, handle):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int", max_attempts=2, backoff=NO_PAUSE)
    def clean(df, _):
        return df.groupBy("_id").agg(F.first("n").alias("n")).withColumn("n", halved("n"))

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(10)])

    (done,) = handle("clean")

    assert (done.outcome, done.attempt, done.items, done.rows, done.cause) == ("decided", 1, 10, 10, "")
    assert done.run_s > done.commit_s > 0
    assert done.advance_s > 0
    assert done.shuffle_bytes > 0, "the aggregate shuffles"
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup(f"jobrunner-{done.id}-1")
    store = spark.sparkContext._jsc.sc().statusStore()
    assert jobs
    assert {store.job(job).description().get() for job in jobs} == {
        f"flights/clean: batch {done.id}, 10 items, attempt 1"
    }
    assert spark.sparkContext.getLocalProperty("spark.job.description") is None

    flights.push_many("clean", [{"n": 13}, {"n": 14}])
    records = handle("clean")

    outcomes = [(one.outcome, one.items) for one in records]
    assert outcomes[0] == ("split", 2), "at once, as the error is that of a row"
    assert ("decided", 1) in outcomes
    assert ("dead", 1) in outcomes
    line = halved.func.__code__.co_firstlineno + 3
    causes = {one.cause for one in records if one.outcome != "decided"}
    assert causes == {f"ValueError: thirteen (test_batch_log.py:{line} halved)"}
    assert not any(one.stops for one in records)


def test_every_job_of_a_batch_that_fails_and_is_split_has_its_name(spark, flights, handle):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int", max_attempts=2, backoff=NO_PAUSE)
    def clean(df, _):
        return df.withColumn("n", halved("n"))

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(20)])
    context = spark.sparkContext._jsc.sc()

    before = context.dagScheduler().numTotalJobs()
    records = handle("clean")

    context.listenerBus().waitUntilEmpty()
    made = [context.statusStore().job(number) for number in range(before, context.dagScheduler().numTotalJobs())]
    named = {(str(one.jobGroup().getOrElse(None)), str(one.description().getOrElse(None))) for one in made}
    names = [(f"jobrunner-{one.id}-{one.attempt}", f"flights/clean: batch {one.id}, ", f", attempt {one.attempt}")
             for one in records]  # fmt: skip
    assert len(records) > 3
    for group, title in named:
        begins, ends = next((first, last) for name, first, last in names if name == group)
        assert title.startswith(begins), named
        assert ends in title, named


def test_rows_with_errors_are_not_counted_as_output(flights, handle):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def clean(df, _):
        return df.withColumn("_error", F.when(df.n > 7, "too large"))

    flights.declare("late")
    flights.push_many("clean", [{"n": n} for n in range(10)])

    (done,) = handle("clean")

    assert (done.outcome, done.items, done.rows) == ("decided", 10, 8)


def sink_of(how, folder):
    def into_sqlite():
        return sqlite3.connect(folder / "db.sqlite")

    def by_spark(df, batch):
        rows = batch.quarantine(df.select("_id", "_error", "n"))
        rows.select("n").write.parquet(f"{folder}/plain/{batch.id}")

    return {
        "table": lambda df, batch: write_table(df.select("_id", "_error", "n"), batch, f"delta:{folder}/table"),
        "merge": lambda df, batch: write_table(
            df.select("_id", "_error", "n", "_enqueue_time"), batch, f"delta:{folder}/table", merge_on=["n"]
        ),
        "folder": lambda df, batch: write_batch(df.select("_id", "_error", "n"), batch, f"{folder}/rows"),
        "sql": lambda df, batch: write_sql(
            batch.quarantine(df.select("_id", "_error", "n")).select("n"), batch, into_sqlite, "late"
        ),
        "spark": by_spark,
    }[how]


@pytest.mark.parametrize("how", ["table", "merge", "folder", "sql", "spark"])
def test_rows_of_a_sink_are_those_that_it_wrote(flights, handle, tmp_path, how):
    with closing(sqlite3.connect(tmp_path / "db.sqlite")) as connection:
        connection.execute("create table late (n integer, batch_id text)")
    write = sink_of(how, tmp_path)

    @flights.spark_sink("clean", max_wait=0, schema="n int")
    def store(df, _, batch):
        write(df.withColumn("_error", F.when(df.n > 7, "too large")), batch)

    flights.push_many("clean", [{"n": n} for n in range(10)])

    (done,) = handle("clean")

    assert (done.outcome, done.items, done.rows) == ("decided", 10, 8)


def test_rows_of_a_sink_that_failed_behind_its_write_count_when_they_are_written(flights, handle, tmp_path):
    @flights.spark_sink("clean", max_wait=0, schema="n int", max_attempts=3, backoff=NO_PAUSE)
    def store(df, _, batch):
        write_batch(df, batch, f"{tmp_path}/rows")
        write_table(df.select("n"), batch, f"delta:{tmp_path}/table")
        if batch.epoch == 1:
            raise ValueError("once")

    flights.push_many("clean", [{"n": n} for n in range(10)])

    failed, done = handle("clean")

    assert (failed.outcome, failed.rows) == ("failed", 0)
    assert (done.outcome, done.rows) == ("decided", 10), "the table had its rows from the first attempt"


def test_the_record_of_an_error_that_is_no_items_says_that_the_station_stops(flights, handle):
    @flights.spark_station("clean", to="late", max_wait=0, schema="n int")
    def clean(df, _):
        return df.select("_id", "no_such_column")

    flights.declare("late")
    flights.push_many("clean", [{"n": 1}, {"n": 2}])

    (released,) = handle("clean")

    assert (released.outcome, released.items, released.stops) == ("released", 2, True)
    assert "no_such_column" in released.cause
    assert released.driver
