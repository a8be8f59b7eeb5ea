"""Sinks that use `write_batch` write each row once, also when batches fail after their writes and are split."""

import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.errors import BatchLost, InvalidOption, PipelineError, StationError
from jobrunner.retry import Backoff
from jobrunner.spark import micro_batch, write_batch, write_sql
from jobrunner.spark.compaction import compact
from jobrunner.spark.station import exactly_once
from jobrunner.spark.station.exactly_once import write_folder
from jobrunner.spark.station.sink_batch import SinkBatch
from jobrunner.spark.station.sink_folders import HadoopFolders, LocalFolders, folders_in

ARROW_READS_VARIANTS = int(pa.__version__.partition(".")[0]) >= 22


@pytest.mark.parametrize("columns", [[], ["n"]])
def test_parts_take_the_place_of_what_the_whole_wrote(columns, flights, drive, spark, tmp_path, audit):
    folder, sizes = str(tmp_path / "late"), []

    @flights.spark_sink("late", schema="n long", max_wait=0, backoff=Backoff(base=0))
    def store(df, spark, batch):
        write_batch(df, batch, folder, partition_by=columns)
        sizes.append(batch.size)
        if batch.size > 1:
            raise ValueError("the catalogue is away")

    ids = flights.push_many("late", [{"n": n} for n in range(4)])
    drive("late")

    assert sizes == [4, 4, 1, 1, 1, 1]
    assert sorted(row._id for row in spark.read.parquet(folder).collect()) == ids
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending", "dead")) == 0


def test_rows_in_a_sql_table_are_there_once_though_the_whole_batch_wrote_them_before_its_parts(
    flights, drive, spark, tmp_path, audit
):
    database, wrote = tmp_path / "late.sqlite", []
    with sqlite3.connect(database) as made:
        made.execute("create table late (id text, n integer, batch_id text)")

    @flights.spark_sink("late", schema="n long", max_wait=0, backoff=Backoff(base=0))
    def store(df, spark, batch):
        rows = df.select(F.col("_id").alias("id"), "n")
        write_sql(rows, batch, lambda: sqlite3.connect(database), "late")
        wrote.append(batch.id)
        if batch.size > 1:
            raise ValueError("the catalogue is away")

    ids = flights.push_many("late", [{"n": n} for n in range(2)])
    drive("late")

    assert len(wrote) > len(set(wrote)), "the whole wrote twice"
    assert sqlite3.connect(database).execute("select id from late order by n").fetchall() == [(one,) for one in ids]
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending", "dead")) == 0


def test_an_attempt_takes_the_place_of_the_one_before_in_all_its_partitions(spark, tmp_path):
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        for value in ("one", "two"):
            batch = SinkBatch(id="a:b", supersedes=(), epoch=1, size=1)
            rows = spark.createDataFrame([(1, value)], "n int, at string")
            write_batch(rows, batch, str(tmp_path), partition_by=["at"])
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")

    found = spark.read.parquet(str(tmp_path)).collect()
    assert [(row.n, row.at, row.batch) for row in found] == [(1, "two", "a:b")]


@pytest.fixture
def end_lease(raw, keys):
    """end_lease(id): the driver of that batch in `late` was silent for too long."""

    def end(batch_id):
        queue = keys.queue("flights/late")
        raw.zadd(queue.batches, {batch_id: 0})
        raw.hset(queue.batch + batch_id.encode(), "ends", 1)

    return end


@pytest.fixture(params=["by the JVM", "on this machine"])
def by(request, monkeypatch):
    """Both ways in which folders are moved."""
    made = HadoopFolders if request.param == "by the JVM" else lambda path, spark, options: LocalFolders(Path(path))
    monkeypatch.setattr(exactly_once, "folders_in", made)


def test_an_attempt_that_was_fenced_behind_its_write_leaves_what_the_newer_one_wrote(
    flights, take, spark, tmp_path, end_lease, by
):
    folder = tmp_path / "late [1]"

    @flights.spark_sink("late", schema="n long", max_wait=0)
    def store(df, spark, batch):
        def paused():
            if batch.epoch == 1:
                end_lease(batch.id)
                take("late").run()
            batch.renew()

        rows = df.withColumn("epoch", F.lit(batch.epoch))
        write_batch(rows, replace(batch, renew=paused), str(folder))

    ids = flights.push_many("late", [{"n": n} for n in range(4)])
    with pytest.raises(BatchLost):
        take("late").run()

    found = spark.read.parquet(str(folder).replace("[", "\\[").replace("]", "\\]")).collect()
    assert sorted((row._id, row.epoch) for row in found) == [(one, 2) for one in ids]
    assert {one.name.partition("=")[0] for one in folder.iterdir()} == {"batch", "_jobrunner"}


def test_a_second_write_of_one_attempt_to_a_path_is_refused_and_keeps_the_rows_of_the_first(spark, tmp_path):
    attempt = SinkBatch(id="b", supersedes=(), epoch=1, size=2)
    write_batch(spark.range(2), attempt, f"{tmp_path}/one")
    write_batch(spark.range(3), attempt, f"{tmp_path}/two")
    with pytest.raises(StationError, match=r"one batch was written twice to .*/one/ in one attempt"):
        write_batch(spark.range(9), attempt, f"{tmp_path}/one/")
    write_batch(spark.range(5), attempt.of_sink("other", is_kept=False), f"{tmp_path}/two")
    assert [spark.read.parquet(f"{tmp_path}/{name}").count() for name in ("one", "two")] == [2, 8]


def test_rows_of_an_attempt_that_still_writes_are_not_read(spark, tmp_path, by):
    write_batch(spark.range(2), SinkBatch(id="b", supersedes=(), epoch=1, size=2), str(tmp_path))
    seen = []

    def look():
        seen.extend(spark.read.parquet(str(tmp_path)).collect())

    write_batch(spark.range(9), SinkBatch(id="b", supersedes=(), epoch=2, size=9, renew=look), str(tmp_path))
    assert len(seen) == 2
    assert spark.read.parquet(str(tmp_path)).count() == 9


def test_left_overs_of_dead_attempts_and_of_the_whole_are_removed(spark, tmp_path, by):
    for name in ("_attempt-b@7", "_attempt-b.1@1", "_attempt-b.1@3", "_attempt-b.2@1", "_attempt-other@1", "batch=b"):
        (tmp_path / name).mkdir()
    write_batch(spark.range(1), SinkBatch(id="b.1", supersedes=("b",), epoch=2, size=1), str(tmp_path))
    left = {one.name for one in tmp_path.iterdir()} - {"_jobrunner"}
    assert left == {"_attempt-b.1@3", "_attempt-b.2@1", "_attempt-other@1", "batch=b.1"}


def test_a_write_that_fails_leaves_what_is_there_and_nothing_else(spark, tmp_path, by):
    write_batch(spark.range(2), SinkBatch(id="b", supersedes=(), epoch=1, size=2), str(tmp_path))
    bad = spark.range(3).select(F.raise_error(F.lit("no number")).alias("id"))
    with pytest.raises(Exception, match="no number"):
        write_batch(bad, SinkBatch(id="b", supersedes=(), epoch=2, size=3), str(tmp_path))
    assert [one.name for one in tmp_path.iterdir()] == ["batch=b"]
    assert spark.read.parquet(str(tmp_path)).count() == 2


def test_under_spark_connect_a_path_is_of_this_machine_and_a_url_is_written_in_place(spark, tmp_path, monkeypatch):
    class Remote:
        """A session without a JVM."""

    assert isinstance(folders_in(str(tmp_path), Remote(), {}), LocalFolders)
    assert isinstance(folders_in(tmp_path.as_uri(), Remote(), {}), LocalFolders)
    assert folders_in("s3a://flights/late", Remote(), {}) is None
    with pytest.raises(PipelineError, match="a folder that both share"):
        folders_in(str(tmp_path), Remote(), {}).rename("_attempt-b@1", "batch=b")

    monkeypatch.setattr(exactly_once, "folders_in", lambda path, spark, options: None)
    write_batch(spark.range(9), SinkBatch(id="b", supersedes=(), epoch=1, size=9), str(tmp_path))
    write_batch(spark.range(1), SinkBatch(id="b.1", supersedes=("b",), epoch=1, size=1), str(tmp_path))
    assert spark.read.parquet(str(tmp_path)).count() == 1


def test_one_file_for_each_partition_value_and_after_compaction_for_all_batches(spark, tmp_path):
    """Types that Arrow and Spark store in ways of their own come out as they went in."""
    columns = """
        id AS n, id % 2 AS day, CAST(id AS decimal(9, 2)) AS small, CAST(id AS decimal(38, 5)) AS large,
        timestamp'0001-01-01 01:02:03.000004' + make_dt_interval(CAST(id AS int)) AS at,
        CAST('2026-11-25 12:00:00.123456' AS timestamp_ntz) AS here, date'1969-12-31' AS date, map('a', id) AS words,
        named_struct('x', id, 'y', array(id, null)) AS deep, CAST('x' AS binary) AS raw, id / 3 AS third,
        CAST(null AS string) AS nothing
    """
    if ARROW_READS_VARIANTS:
        columns += """, parse_json('{"a": [1, 2]}') AS any"""
    frame = spark.sql(f"SELECT {columns} FROM range(0, 40, 1, 8)")
    for number, size in enumerate((10, 20_000)):  # read by the driver, and where Spark runs
        batch = SinkBatch(id=f"b{number}", supersedes=(), epoch=1, size=size)
        write_batch(frame, batch, str(tmp_path / "late"), partition_by=["day"])
        write_batch(frame.drop("here"), batch, str(tmp_path / "flat"))
        write_batch(frame, batch, str(tmp_path / "several"), files=3)
        assert len(list((tmp_path / "late" / f"batch=b{number}").rglob("*.parquet"))) == 2
        assert len(list((tmp_path / "several" / f"batch=b{number}").rglob("*.parquet"))) == 3
    with pytest.raises(InvalidOption, match="files=0"):
        write_batch(frame, batch, str(tmp_path / "refused"), files=0)

    for name in ("late", "flat"):
        path = str(tmp_path / name)
        # As text: Python has no instant of the year 1 in a zone, and variants are not compared.
        texts = ["n", "CAST(at AS string)", "to_json(struct(* EXCEPT (at, raw, batch)))", "hex(raw)"]
        before, schema = spark.read.parquet(path).selectExpr(*texts).collect(), spark.read.parquet(path).schema
        done = compact(path, older_than_s=0, size=1 << 27)
        after = spark.read.parquet(path)
        assert after.schema == schema
        assert Counter(after.selectExpr(*texts).collect()) == Counter(before)
        assert done.folders_after == 1
        assert done.files_after == (1 if name == "flat" else 4)  # Arrow writes no INT96 next to a timestamp_ntz


def test_folders_with_variants_become_one_or_stay_for_a_newer_pyarrow(spark, tmp_path):
    path = str(tmp_path / "late")
    frame = spark.sql("""SELECT id, parse_json('{"a": [1, 2]}') AS any FROM range(0, 4, 1, 1)""")
    for number in range(3):
        write_batch(frame, SinkBatch(id=f"b{number}", supersedes=(), epoch=1, size=4), path)

    done = compact(path, older_than_s=0, size=1 << 27)

    found = spark.read.parquet(path).selectExpr("id", "to_json(any) AS any").collect()
    assert Counter(map(tuple, found)) == {(number, '{"a":[1,2]}'): 3 for number in range(4)}
    assert done.folders_after == (1 if ARROW_READS_VARIANTS else 3)
    assert all("too old to read" in one for one in done.skipped)
    assert bool(done.skipped) is not ARROW_READS_VARIANTS


def test_a_path_may_be_a_path_and_one_name_is_a_column(spark, tmp_path):
    write_batch(spark.sql("select 1 as n, 'a' as day"), micro_batch("q", 0), tmp_path, partition_by="day")
    assert [path.name for path in (tmp_path / "batch=q-0").glob("day=*")] == ["day=a"]
    with pytest.raises(InvalidOption, match="partition_by=5: give names of columns, as in partition_by"):
        write_batch(spark.range(1), micro_batch("q", 1), tmp_path, partition_by=5)


def test_readers_pass_over_an_attempt_whatever_its_micro_batch_is_called(spark, tmp_path):
    """Spark reads a folder whose name begins with _ all the same when there is a = in it."""
    path, names, seen = str(tmp_path), [], []
    write_batch(spark.range(1), micro_batch("topic=orders", 0), path)

    def save(own):
        names.append(own.partition("@")[0])
        spark.range(5).write.parquet(f"{path}/{own}")
        seen.append(spark.read.parquet(path).count())

    for name in ("topic=orders", "topic%3Dorders"):
        write_folder(folders_in(path, spark, {}), micro_batch(name, 1), path, save)

    assert seen == [1, 6]
    assert len(set(names)) == 2, "an attempt removes those of its own batch alone"
