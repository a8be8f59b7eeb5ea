"""Sinks into tables of a lakehouse: stations write them on Spark, each item once, whatever fails."""

import errno
import logging
import os
import re
import shutil
import sqlite3
from contextlib import closing
from unittest.mock import Mock

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.client.item import Item
from jobrunner.clock import monotonic
from jobrunner.errors import BatchLost, MicroBatchChanged, StationError, TableError
from jobrunner.etl.table_sink import address_of
from jobrunner.retry import Backoff
from jobrunner.spark import micro_batch, write_batch, write_sql, write_table
from jobrunner.spark.lake import commit as lake_commit
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.lake.services import clean_up_table
from jobrunner.spark.station import members
from jobrunner.spark.station.sink_folders import LocalFolders
from tests.support.waiting import wait_for

SOON = {"max_wait": 0, "backoff": Backoff(base=0)}


def read(table):
    opened = open_table(address_of(table))
    if not opened.load():
        return []
    rows = opened._table.to_pyarrow_table() if table.startswith("delta") else opened._table.scan().to_arrow()
    return rows.to_pylist()


def test_each_item_is_in_the_table_once_with_its_id_in_one_file_for_each_partition(flights, drive, table):
    flights.spark_sink("late", table=table, schema="n long, day string, at timestamp", partition_by="day",
                       id_column="item", batch=100, **SOON)  # fmt: skip
    days = ("mon", "tue", None)
    ids = flights.push_many("late", [{"n": n, "day": days[n % 3], "at": "2026-01-31T00:00:00Z"} for n in range(150)])
    flights.push("late", {"n": "no number"})
    drive("late")
    rows = read(table)
    assert sorted(row["item"] for row in rows) == sorted(ids)
    assert {row["n"]: row["day"] for row in rows} == {n: days[n % 3] for n in range(150)}
    assert {str(row["at"]) for row in rows} == {"2026-01-31 00:00:00+00:00"}
    assert len(clean_up_table(table, dry_run=True).files) == 0
    opened = open_table(address_of(table))
    opened.load()
    files = [one for one in opened.storage.list("") if one.path.endswith(".parquet") and "_delta_log" not in one.path]
    assert len(files) == 6


def test_parts_of_a_batch_that_fails_and_a_driver_that_dies_behind_its_commit(
    flights, drive, take, spark, table, audit, monkeypatch
):
    """One item makes the function fail; each batch is written, and then its driver dies, once."""
    died = set()

    @flights.spark_sink("late", table=table, schema="n long", id_column="item", **SOON)
    def shape(df, spark):
        return df.withColumn("n", F.when(df.n == 2, F.raise_error(F.lit("two"))).otherwise(df.n))

    commit = lake_commit._transact

    def dies(ready, write):
        version = commit(ready, write)
        if ready.attempt.batch_id not in died:
            died.add(ready.attempt.batch_id)
            raise RuntimeError("the driver died")
        return version

    monkeypatch.setattr(lake_commit, "_transact", dies)
    ids = flights.push_many("late", [{"n": n} for n in range(5)])
    drive("late")
    rows = read(table)
    assert sorted(row["item"] for row in rows) == sorted(one for n, one in enumerate(ids) if n != 2)
    assert audit("flights/late")["dead"] == 1
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending")) == 0
    assert clean_up_table(table, dry_run=True).files == ()


def test_a_table_that_does_not_take_the_rows_blames_no_item_and_goes_on_when_mended(
    flights, driver_of, spark, table, audit, monkeypatch
):
    """Also when the station has worked before."""
    flights.spark_sink("late", table=table, schema="n long", **SOON)
    flights.push_many("late", [{"n": n} for n in range(3)])
    driver = driver_of("late")
    assert driver.step(spark)

    flights.push_many("late", [{"n": n} for n in range(3, 6)])
    kind = type(open_table(address_of(table)))

    def away(self):
        raise OSError("the catalog is away")

    with monkeypatch.context() as fault:
        fault.setattr(kind, "load", away)
        assert driver.step(spark)
    assert driver._failures.failure is None
    assert audit("flights/late")["dead"] == 0
    ends = monotonic() + 60
    while sorted(row["n"] for row in read(table)) != list(range(6)):
        assert monotonic() < ends
        driver.step(spark)
    driver.stop(20)


@pytest.mark.parametrize("of", ["table", "folder"])
def test_a_disk_that_is_full_or_read_only_blames_no_item(
    flights, driver_of, spark, client, tmp_path, monkeypatch, caplog, of
):
    """The first thing that it does not take is the note of a batch, a file of another name for each."""
    if of == "table":
        flights.spark_sink("late", table=f"delta:{tmp_path}/late", schema="n long", batch=3, **SOON)
    else:

        @flights.spark_sink("late", schema="n long", batch=3, **SOON)
        def store(df, spark, batch):
            write_batch(df, batch, f"{tmp_path}/late")

    caplog.set_level(logging.INFO)
    flights.push_many("late", [{"n": n} for n in range(3)])
    driver = driver_of("late")
    assert driver.step(spark)

    def full(self, name, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{tmp_path}/late/{name}")

    flights.push_many("late", [Item({"n": n}, max_attempts=1) for n in range(3, 12)])
    with monkeypatch.context() as fault:
        fault.setattr(LocalFolders, "write", full)
        for _ in range(3):
            driver.step(spark)
    lines = [line for line in caplog.messages if "No space left" in line]
    assert len(lines) == 3
    words = re.compile(rf"{tmp_path}/late\b.* cannot be written: No space left on device['\" ]")
    assert all(map(words.search, lines))
    assert client.queue("flights/late").counts()["dead"] == 0

    def is_empty():
        driver.step(spark)
        return not any(client.queue("flights/late").counts().values())

    wait_for(is_empty)
    driver.stop(20)
    rows = read(f"delta:{tmp_path}/late") if of == "table" else spark.read.parquet(f"{tmp_path}/late").collect()
    assert sorted(row["n"] for row in rows) == list(range(12))


@pytest.mark.parametrize("merged", [False, True], ids=["appended", "merged"])
def test_columns_have_any_names(spark, table, merged):
    """PySpark takes a dot in the name of a column for a field, and a backtick for a quote, where it calls Python."""
    names = ["a.b", "c d", "ñ 名", "e`f", "g,h"]
    rows = spark.createDataFrame([tuple(range(5)), tuple(range(5, 10))], names).repartition(2)
    by = {"merge_on": "a.b"} if merged else {"partition_by": ["e`f", "c d"]}
    write_table(rows, micro_batch("query", 0), table, **by)
    found = sorted(tuple(row[name] for name in names) for row in read(table))
    assert found == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9)]


def test_upserts_keep_the_item_that_was_enqueued_last(flights, drive, table):
    flights.spark_sink("late", table=table, schema="n long, v string", merge_on="n", batch=10, **SOON)
    flights.push_many("late", [{"n": n % 5, "v": f"v{n}"} for n in range(25)])
    drive("late")
    assert sorted((row["n"], row["v"]) for row in read(table)) == [(n, f"v{n + 20}") for n in range(5)]


def test_writes_in_a_function_of_ones_own_and_for_each_micro_batch(spark, table, tmp_path):
    rows = spark.createDataFrame([(1, "a")], "n int, s string")
    batch = micro_batch("query", 0)
    assert write_table(rows, batch, table).rows == 1
    with pytest.raises(StationError, match=r"one batch was written twice to table .* in one attempt"):
        write_table(rows, batch, table)
    assert write_table(rows, batch, table, name="second").rows == 1
    assert write_table(rows, micro_batch("query", 0), table).repeated
    with pytest.raises(TableError, match=rf"column 'n' of table {table} is int32, and that of the rows is string"):
        write_table(rows.withColumn("n", F.lit("x")), micro_batch("query", 1), table)
    with pytest.raises(TableError, match=r"column 'v' for table .* is of type variant, which no table has"):
        write_table(spark.sql("select parse_json('1') v"), micro_batch("query", 1), table)
    bad = rows.withColumn("s", F.raise_error(F.lit("no row")).cast("string"))
    with pytest.raises(Exception, match="no row"):
        write_table(bad, micro_batch("query", 1), table)
    assert len(read(table)) == 2

    spark.range(100).write.parquet(f"{tmp_path}/in")

    def each(df, number):
        write_table(df, micro_batch("stream", number), f"{table}_stream")

    stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in")
    for _ in range(2):
        query = stream.writeStream.foreachBatch(each).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
    assert sorted(row["id"] for row in read(f"{table}_stream")) == list(range(100))


def test_a_second_write_of_a_micro_batch_to_one_place_is_refused_before_its_rows_are_there(spark, table, tmp_path):
    """Each `micro_batch(…)` was a batch of its own: the second write to the table passed for a repeated one, and that
    to the folder replaced the first. Behind a write without rows, the second one's rows were committed, and refused."""
    runs = []

    def connect():
        return sqlite3.connect(tmp_path / "sink.sqlite")

    def into_sql(df, batch, name):
        write_sql(df, batch, connect, name)

    with closing(connect()) as made:
        made.execute("create table late (id int, batch_id text)")
    writes = [
        (write_table, table), (write_table, f"{table}_empty"), (write_batch, f"{tmp_path}/folder"), (into_sql, "late"),
    ]  # fmt: skip

    def each(df, number):
        runs.append(number)
        for write, place in writes:
            write(df.where("id < 0" if place == f"{table}_empty" else "id < 5"), micro_batch("stream", number), place)
            with pytest.raises(StationError, match="one batch was written twice to "):
                write(df.where("id >= 5"), micro_batch("stream", number), place)
        write_table(df.where("id >= 5"), micro_batch("stream", number), table, name="second")
        write_table(df.where("id >= 5"), micro_batch("other", number), table)

    spark.range(10).write.parquet(f"{tmp_path}/in")
    stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in").writeStream
    for _ in range(2):
        query = stream.foreachBatch(each).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()
        for note in (tmp_path / "checkpoint" / "commits").glob("*0*"):  # the next run repeats it
            note.unlink()
    assert runs == [0, 0]
    assert sorted(row["id"] for row in read(table)) == [0, 1, 2, 3, 4, *sorted([*range(5, 10)] * 2)]
    assert sorted(row["id"] for row in read(f"{table}_empty")) == []
    assert sorted(row["id"] for row in spark.read.parquet(f"{tmp_path}/folder").collect()) == [*range(5)]
    with closing(connect()) as there:
        assert there.execute("select id from late order by id").fetchall() == [(one,) for one in range(5)]


@pytest.mark.parametrize("table", ["delta"], indirect=True)
def test_a_stream_with_a_checkpoint_from_a_backup_is_refused(spark, table, tmp_path):
    """What came since the backup passed for rows of the last micro-batch, and was in no table; in a folder it replaced
    them, and was there twice with those of later ones, as in a table of a SQL database."""
    path, refused = f"{tmp_path}/folder", []
    into_sql, rows_of_sql = sql_table(tmp_path)

    def each(df, number):
        for write, place in ((write_table, table), (write_batch, path), (into_sql, "late")):
            try:
                write(df, micro_batch("stream", number), place)
            except MicroBatchChanged as error:
                refused.append(str(error))

    def run(number):
        spark.range(10 * number, 10 * number + 10).write.mode("append").parquet(f"{tmp_path}/in")
        stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in").writeStream
        query = stream.foreachBatch(each).option("checkpointLocation", f"{tmp_path}/checkpoint")
        query.trigger(availableNow=True).start().awaitTermination()

    def rows():
        found = (read(table), spark.read.parquet(path).collect(), rows_of_sql())
        return [sorted(row["id"] for row in rows) for rows in found]

    run(0)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    for number in (1, 2):
        run(number)
    shutil.rmtree(tmp_path / "checkpoint")
    shutil.move(tmp_path / "backup", tmp_path / "checkpoint")
    run(3)

    assert rows() == [[*range(30)]] * 3
    of_table, of_folder, of_sql = refused
    assert f"'stream-1' was written to table {table} before with 10 rows, and has 30 now; nothing is added" in of_table
    assert f"'stream-1' was written to {path} before, and a later one, too; nothing is written" in of_folder
    assert "'stream-1' was written to table late before, and a later one, too; nothing is written" in of_sql


def sql_table(tmp_path):
    """A function that writes to a new table `late` of SQLite, and one that reads it."""

    def connect():
        connection = sqlite3.connect(tmp_path / "sink.sqlite")
        connection.row_factory = sqlite3.Row
        return connection

    def write(df, batch, name):
        write_sql(df, batch, connect, name)

    def rows():
        with closing(connect()) as there:
            return there.execute("select id from late").fetchall()

    with closing(connect()) as made:
        made.execute("create table late (id int, batch_id text)")
    return write, rows


@pytest.mark.parametrize(
    ("table", "place"), [("delta", "table"), ("iceberg", "table"), ("delta", "folder"), ("delta", "sql")],
    indirect=["table"],
)  # fmt: skip
def test_a_stream_with_a_new_checkpoint_under_the_name_of_an_old_one_is_refused(spark, table, tmp_path, place):
    """Its first rows passed for repeated ones, and were left out of a table, or replaced the old ones in a folder and
    in a SQL database."""
    path = f"{tmp_path}/folder"
    into_sql, rows_of_sql = sql_table(tmp_path)

    def each(df, number):
        if place == "table":
            write_table(df, micro_batch("stream", number), table)
        elif place == "folder":
            write_batch(df, micro_batch("stream", number), path)
        else:
            into_sql(df, micro_batch("stream", number), "late")

    def run(first, checkpoint):
        spark.range(first, first + 10).write.mode("append").parquet(f"{tmp_path}/in-{checkpoint}")
        stream = spark.readStream.schema("id long").parquet(f"{tmp_path}/in-{checkpoint}").writeStream
        query = stream.foreachBatch(each).option("checkpointLocation", f"{tmp_path}/{checkpoint}")
        query.trigger(availableNow=True).start().awaitTermination()

    def rows():
        if place == "sql":
            found = rows_of_sql()
        else:
            found = read(table) if place == "table" else spark.read.parquet(path).collect()
        return sorted(row["id"] for row in found)

    run(0, "one")
    for note in (tmp_path / "one" / "commits").glob("*0*"):  # as if the driver had died before Spark noted the commit
        note.unlink()
    run(10, "one")
    assert rows() == [*range(20)]

    with pytest.raises(StreamingQueryException, match="'stream-0' was written by a query with another checkpoint"):
        run(90, "two")
    assert rows() == [*range(20)]


def test_a_zombie_behind_its_lease_writes_nothing(flights, take, table, raw, keys):
    flights.spark_sink("late", table=table, schema="n long", **SOON)
    flights.push_many("late", [{"n": n} for n in range(4)])
    zombie = take("late")
    queue = keys.queue("flights/late")
    raw.zadd(queue.batches, {zombie.lease.id: 0})
    raw.hset(queue.batch + zombie.lease.id.encode(), "ends", 1)
    take("late").run()
    assert zombie.stage() is None  # the batch is there: nothing to write
    with pytest.raises(BatchLost):
        zombie.decide()
    assert sorted(row["n"] for row in read(table)) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["the driver died", "the server forgot"])
def test_payloads_that_do_not_fit_are_dead_also_when_the_rows_of_their_batch_are_there(
    flights, drive, take, table, raw, keys, client, monkeypatch, how
):
    """The second attempt writes nothing, so nothing evaluates the frame, which executors read, as of a large batch."""
    monkeypatch.setattr(members, "THROUGH_DRIVER", 0)
    monkeypatch.setattr(members, "CHUNK", 2)
    flights.spark_sink("late", table=table, schema="n long", **SOON)
    ids = flights.push_many("late", [{"n": 0}, {"n": 1}, {"n": 2}, {"n": "three"}, {"n": 4}])
    before = contents(raw)
    dead = take("late")
    dead.stage()
    if how == "the driver died":
        end_lease(raw, keys, dead.lease)
    else:
        go_back(raw, before)
    drive("late")
    assert client.queue("flights/late").ids("dead") == [ids[3]]
    assert sorted(row["n"] for row in read(table)) == [0, 1, 2, 4]


def test_items_of_a_batch_that_the_server_forgot_are_not_written_twice(flights, drive, take, table, raw, audit):
    """The server goes back to the moment before the batch was taken, as by a failover to a replica that lags."""
    flights.spark_sink("late", table=table, schema="n long", id_column="item", batch=3, **SOON)
    ids = flights.push_many("late", [{"n": n} for n in range(4)])
    before = contents(raw)
    lost = take("late", n=2)
    lost.stage()
    go_back(raw, before)
    drive("late")
    assert sorted(row["item"] for row in read(table)) == sorted(ids)
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending", "dead")) == 0


def test_items_that_the_server_forgot_of_a_batch_that_it_knows_are_not_written_twice(
    flights, drive, take, table, raw, keys, audit
):
    """It lost the last slice of a batch that is in the table. That comes again without it, and has nothing to write."""
    flights.spark_sink("late", table=table, schema="n long", id_column="item", batch=3, **SOON)
    ids = flights.push_many("late", [{"n": n} for n in range(5)])
    lost = take("late", n=2)
    before = contents(raw)
    lost.lease.batches.top_up(lost.lease, 2)
    lost.stage()
    assert len(read(table)) == 4
    go_back(raw, before)
    end_lease(raw, keys, lost.lease)
    drive("late")
    assert sorted(row["item"] for row in read(table)) == sorted(ids)
    assert sum(audit("flights/late")[state] for state in ("waiting", "pending", "dead")) == 0


def test_parts_of_a_split_that_the_server_forgot_are_written_when_it_is_split_again(
    flights, drive, take, table, raw, keys, client
):
    """The whole comes again first, and finds the notes of parts that were not written."""
    flights.spark_sink("late", table=table, schema="n long", id_column="item", batch=4, quarantine=True, **SOON)
    ids = flights.push_many("late", [{"n": n} for n in range(4)])
    whole = take("late", n=4)
    before = contents(raw)
    whole.lease.fail("one is bad", delay_s=0, fate="blamed")
    for _ in range(4):
        stage_and_die(take("late"))
    go_back(raw, before)

    end_lease(raw, keys, whole.lease)
    again = take("late")
    stage_and_die(again)
    again.lease.fail("one is bad", delay_s=0, fate="blamed")
    drive("late")
    assert sorted(row["item"] for row in read(table)) == sorted(ids)
    assert client.queue("flights/late").counts()["pending"] == 0


def contents(raw):
    """Everything on the server, for `go_back`."""
    return {key: raw.dump(key) for key in raw.keys("*")}


def go_back(raw, before):
    """The server forgets what came since, as after a failover to a replica that lags."""
    raw.delete(*raw.keys("*"))
    for key, value in before.items():
        raw.restore(key, 0, value)


def end_lease(raw, keys, lease):
    """The batch is due again, as if its driver had died."""
    queue = keys.queue("flights/late")
    raw.zadd(queue.batches, {lease.id: 0})
    raw.hset(queue.batch + lease.id.encode(), "ends", 1)


def stage_and_die(attempt):
    """The driver ends before its commit."""
    died = Mock(side_effect=KeyboardInterrupt)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lake_commit, "_transact", died)
        with pytest.raises(KeyboardInterrupt):
            attempt.stage()
    died.assert_called_once()
