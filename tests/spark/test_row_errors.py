"""Errors of single rows: the items of these rows are dead with the error, all others go on in the same attempt."""

import json
import sqlite3
from contextlib import closing
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import DoubleType, IntegerType

from jobrunner.errors import InvalidOption, StationError
from jobrunner.inspector.error_groups import read_groups
from jobrunner.spark.row_errors import checked, fold_errors, guarded
from jobrunner.spark.sql_sink import write_sql
from jobrunner.spark.station.exactly_once import write_batch
from jobrunner.spark.station.sink_batch import SinkBatch

SCHEMA = "n int, text string, day string"


@guarded("int")
def as_int(text):
    return int(text)


@guarded(DoubleType(), pandas=True)
def share(n):
    if (n == 3).any():
        raise ZeroDivisionError("no\nshare of 3")
    return 6 / (n - 3)


def push(flights, count=8):
    """Items 1 and 2 have errors of their own, 3 has one in two columns, 4 has one that an expression finds."""
    bad = {1: {"text": "x1"}, 3: {"text": None, "n": 3}, 4: {"day": "2026-13-01"}}
    rows = [{"n": n, "text": str(n), "day": "2026-11-25"} | bad.get(n, {}) for n in range(count)]
    return flights.push_many("clean", rows)


def errors(client, ids):
    return [client.task(one).record().error for one in ids]


def dead_of(raw, keys, queue):
    return {one.decode() for one in raw.zrange(keys.queue(f"flights/{queue}").dead, 0, -1)}


def test_rows_that_fail_are_dead_with_their_error_and_the_others_move_on(
    flights, drive, client, raw, keys, audit, found, spark
):
    carriers = spark.createDataFrame([(n, f"c{n}") for n in range(8)], "n int, carrier string")

    @flights.spark_station("clean", to="late", schema=SCHEMA, max_wait=0, missing="fail")
    def clean(df, spark):
        """Before and after a join, several in one frame, folded at once or at the end."""
        df = df.withColumn("twice", as_int("text")).withColumn("own", F.lit(1))
        df = fold_errors(df).withColumn("twice", F.col("twice") * 2)
        day = checked(F.try_to_date("day", "yyyy-MM-dd"), "day")
        df = df.join(carriers, "n", "left").withColumn("share", share("n")).withColumn("day", day)
        return df.withColumn("_error", F.when(F.col("n") == 2, "of\n the user").otherwise(F.col("_error")))

    flights.declare("late")
    ids = push(flights)

    assert drive("clean") == 1

    bad = [ids[1], ids[2], ids[3], ids[4]]
    assert dead_of(raw, keys, "clean") == set(bad)
    assert errors(client, bad) == [
        "ValueError: invalid literal for int() with base 10: 'x1'",
        "of the user",
        "TypeError: int() argument must be a string, a bytes-like object or a real number, not 'NoneType'",
        "ValueError: no value of day=2026-13-01",
    ]
    assert json.loads(client.task(ids[4]).record().payload) == {"n": 4, "text": "4", "day": "2026-13-01"}
    totals = client.queue("flights/clean").totals()
    assert (totals["failed"], totals["dead"]) == (4, 4)
    assert [group.dead for group in read_groups(client, ["flights/clean"]).groups] == [1, 1, 1, 1]
    assert audit("flights/clean")["pending"] == 0
    moved = found("late")
    assert set(moved) == set(ids) - set(bad)
    assert moved[ids[5]] == {
        "n": 5, "text": "5", "day": "2026-11-25", "twice": 10, "own": 1, "carrier": "c5", "share": 3.0
    }  # fmt: skip


def test_a_sink_writes_no_row_that_failed(flights, drive, spark, client, raw, keys, audit, tmp_path):
    @flights.spark_sink("clean", schema=SCHEMA, max_wait=0)
    def store(df, spark, batch):
        write_batch(df.withColumn("text", as_int("text")), batch, str(tmp_path))

    ids = push(flights)

    assert drive("clean") == 1

    read = spark.read.parquet(str(tmp_path))
    assert (sorted(row["n"] for row in read.collect()), "_error" in read.columns) == ([0, 2, 4, 5, 6, 7], False)
    assert dict(read.dtypes)["text"] == "int"
    assert dead_of(raw, keys, "clean") == {ids[1], ids[3]}
    assert audit("flights/clean")["pending"] == 0


def test_an_item_that_is_dead_by_the_first_write_is_not_in_the_second(flights, drive, spark, raw, keys, tmp_path):
    """Its row came through the second write, whose frame has no errors, and was there twice once it was requeued."""

    @flights.spark_sink("clean", schema=SCHEMA, max_wait=0)
    def store(df, spark, batch):
        write_batch(df.withColumn("text", as_int("text")), batch, f"{tmp_path}/one")
        write_batch(df, batch, f"{tmp_path}/two")
        write_batch(df.select(F.col("n").alias("_id")), batch, f"{tmp_path}/own")

    ids = push(flights)

    assert drive("clean") == 1

    read = [spark.read.parquet(f"{tmp_path}/{name}") for name in ("one", "two")]
    assert [sorted(row["n"] for row in rows.collect()) for rows in read] == [[0, 2, 4, 5, 6, 7]] * 2
    assert spark.read.parquet(f"{tmp_path}/own").count() == 8, "its _id is no id of an item"
    assert dead_of(raw, keys, "clean") == {ids[1], ids[3]}


@pytest.mark.parametrize("drops", [False, True])
def test_a_sink_into_a_sql_table_inserts_no_row_that_failed(flights, drive, raw, keys, audit, tmp_path, drops):
    def connect():
        return sqlite3.connect(tmp_path / "sink.sqlite")

    with closing(connect()) as made:
        made.execute("create table late (_id text, n int, text int, batch_id text)")

    @flights.spark_sink("clean", schema=SCHEMA, max_wait=0)
    def store(df, spark, batch):
        rows = df.select("_id", "n", as_int("text").alias("text"))
        write_sql(batch.quarantine(rows).drop("_id") if drops else rows, batch, connect, "late")

    ids = push(flights)

    assert drive("clean") == 1

    with closing(connect()) as there:
        found = there.execute("select n, text, _id from late order by n").fetchall()
    assert found == [(n, n, None if drops else ids[n]) for n in (0, 2, 4, 5, 6, 7)]
    assert dead_of(raw, keys, "clean") == {ids[1], ids[3]}
    assert audit("flights/clean")["pending"] == 0


def test_rows_of_a_sink_that_are_made_anew_with_another_result_are_not_lost(flights, take, spark, tmp_path):
    """The frame is kept, but what is kept can be lost. An item that fails first stays dead, and is not written."""
    flag = tmp_path / "flag"

    @guarded("int")
    def fickle(n):
        if n == (5 if flag.exists() else 2):
            raise ValueError(n)
        return n

    seen = []

    @flights.spark_sink("clean", schema=SCHEMA, max_wait=0)
    def store(df, spark, batch):
        kept = batch.quarantine(df.withColumn("m", fickle("n")))
        seen.append(sorted(row["m"] for row in kept.collect()))
        flag.touch()
        spark.catalog.clearCache()
        seen.append(sorted(row["m"] for row in kept.where("n < 5").collect()))
        kept.collect()

    push(flights)
    with pytest.raises(Exception, match="this row had no error before: ValueError: 5"):
        take("clean").run()
    assert seen == [[0, 1, 3, 4, 5, 6, 7], [0, 1, 3, 4]]


def test_a_parent_of_which_one_child_fails_has_none(flights, drive, client, raw, keys, audit):
    @flights.spark_station("clean", to="late", schema=SCHEMA, max_wait=0, fan_out=True)
    def spread(df, spark):
        each = df.withColumn("part", F.explode(F.sequence(F.lit(0), F.col("n"))))
        return each.repartition(2, "part").withColumn("_error", F.when((F.col("part") == 2) & (F.col("n") == 6), "six"))

    flights.declare("late")
    ids = push(flights, 7)

    assert drive("clean") == 1

    assert dead_of(raw, keys, "clean") == {ids[6]}
    assert client.queue("flights/late").counts()["waiting"] == sum(n + 1 for n in (0, 1, 2, 3, 4, 5))
    assert audit("flights/clean")["pending"] == 0


def test_errors_that_no_row_causes_and_wrong_columns_fail_the_batch(flights, attempt, spark):
    @guarded(IntegerType())
    def typo(n):
        return undefined(n)  # noqa: F821

    wrong = {
        "typo": lambda df: df.withColumn("n", typo("n")),
        "number": lambda df: df.withColumn("_error", F.lit(1)),
        "id": lambda df: df.withColumn("_id", F.lit(None).cast("string")).withColumn("_error", F.lit("x")),
    }
    said = {
        "typo": "NameError: name 'undefined' is not defined",
        "number": "station 'flights/typo' returned column '_error' of type int",
        "id": "in column '_error' of item without id: an error is that of an item; keep its _id",
    }
    flights.declare("late")
    for name in wrong:
        flights.spark_station(name, to="late", schema="n int", max_wait=0)(lambda df, spark, name=name: wrong[name](df))
        flights.push(name, {"n": 1})
        assert said[name].replace("typo'", f"{name}'") in attempt(name).replace("'undefined'", "'undefined'")
    flights.spark_sink("end", schema="n int", max_wait=0)(
        lambda df, spark, batch: batch.quarantine(df.withColumn("_error", F.lit(404))) and None
    )
    flights.push("end", {"n": 1})
    assert "sink 'flights/end' has column '_error' of type int: make it a string, the error" in attempt("end")
    with pytest.raises(InvalidOption, match=r"name the type that the function returns, as in @guarded\('int'\)"):
        guarded(as_int)
    with pytest.raises(InvalidOption, match="has no inputs"):
        checked(F.lit(1))
    batch = SinkBatch(id="b", supersedes=(), epoch=1, size=1)
    with pytest.raises(StationError, match="remove the column _error"):
        batch.quarantine(spark.createDataFrame([(1, "x")], "n int, _error string"))


def test_values_of_another_type_are_errors_and_a_whole_number_is_a_double(spark):
    @guarded("double")
    def mixed(n):
        return [1, "one", 2.5, None][n]

    @guarded("string", pandas=True)
    def short(text):
        return text.str.upper().head(1) if len(text) > 1 else text.str.upper()

    frame = spark.range(4).select(F.col("id").cast("int").alias("n"))
    rows = fold_errors(frame.withColumn("v", mixed("n")).withColumn("w", short(F.concat(F.lit("a"), "n")))).collect()
    assert [row["v"] for row in rows] == [1.0, None, 2.5, None]
    assert [row["w"] for row in rows] == ["A0", "A1", "A2", "A3"]
    assert "can not accept object" in rows[1]["_error"]
    assert rows[3]["_error"] is None
    assert as_int.__wrapped__("7") == 7


def test_a_row_whose_error_comes_and_goes_is_written_or_dead_when_a_sink_is_called_again(flights, drive, client):
    """A path that has rows of the batch already, after a failover, has the function called again without them."""
    calls, written = [], []

    @flights.spark_sink("clean", schema="n int", max_wait=0)
    def store(df, spark, batch):
        calls.append(batch.id)
        rows = batch.quarantine(df.withColumn("_error", F.when(df.n == len(calls), "comes and goes")))
        if batch.left_out.fits("/path", frozenset(ids[:1])):
            written.extend(row.n for row in rows.collect())

    ids = flights.push_many("clean", [{"n": n} for n in range(5)])
    assert drive("clean") == 1
    assert len(calls) == 2
    assert sorted(client.queue("flights/clean").ids("dead")) == sorted(ids[1:3])
    assert sorted(written) == [3, 4]


def test_a_value_that_the_type_cannot_hold_is_the_error_of_its_row(spark):
    """Spark would cut it, write it as text, or fail the whole batch on it."""
    amounts = ["1.239", "12345.678", "NaN"]

    @guarded("decimal(4,2)")
    def amount(n):
        return Decimal(amounts[n])

    @guarded("string")
    def text(n):
        return ["a", {"a": n}, "\ud800"][n]

    @guarded("float")
    def small(n):
        return [1, 1e300, None][n]

    for made, stored in ((amount, Decimal("1.24")), (text, "a"), (small, 1.0)):
        rows = fold_errors(spark.range(3).withColumn("v", made(F.col("id").cast("int")))).orderBy("id").collect()
        assert [row["v"] for row in rows] == [stored, None, None]
        assert rows[0]["_error"] is None
        assert rows[1]["_error"] is not None


def test_an_error_whose_text_cannot_be_shown_or_sent_is_that_of_its_row(spark):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    @guarded("int")
    def number(n):
        if n:
            raise [Mute, ValueError][n - 1]("half of \ud800")
        return n

    rows = fold_errors(spark.range(3).withColumn("v", number(F.col("id").cast("int")))).orderBy("id").collect()
    assert [row["_error"] for row in rows] == [
        None, "Mute: (an error that cannot be shown)", "ValueError: half of \\ud800",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("returns", "values", "stored"),
    [
        ("int", pd.Series([1.0, 1.5, None]), [1, None, None]),
        ("int", pd.Series([1, "x", 3], dtype=object), [1, None, 3]),
        ("int", pd.Series([1, 2**31, 3]), [1, None, 3]),
        ("string", pd.Series(["a", 1, "c"], dtype=object), ["a", None, "c"]),
        ("array<int>", pd.Series([np.array([1, 2]), [1.5], None]), [[1, 2], None, None]),
    ],
)
def test_a_series_has_an_error_for_each_value_that_does_not_fit(spark, returns, values, stored):
    @guarded(returns, pandas=True)
    def made(n):
        return values.iloc[n.tolist()].reset_index(drop=True)

    frame = spark.range(3, numPartitions=1).withColumn("v", made("id"))
    rows = fold_errors(frame).orderBy("id").collect()
    assert [row["v"] for row in rows] == stored
    assert [bool(row["_error"]) for row in rows] == [False, True, False]


@pytest.mark.parametrize("size", [2, 3])
def test_structs_are_frames_of_pandas_and_a_bad_one_is_the_error_of_its_row(spark, size):
    """Row by row, a frame was taken for the names of its columns: with as many rows as fields all rows had an error,
    else the batch failed. A frame that a function returned was an error of all its rows."""

    @guarded("bigint", pandas=True)
    def total(pair):
        if (pair["a"] < 0).any():
            raise ValueError("negative a")
        return pair["a"] + pair["b"]

    @guarded("struct<half:double,text:string>", pandas=True)
    def parts(a):
        if (a < 0).any():
            raise ValueError("negative")
        return pd.DataFrame({"text": a.astype(str), "other": 1, "half": a / 2})

    @guarded("struct<half:double,text:string>", pandas=True)
    def misnamed(a):
        return pd.DataFrame({"text": a.astype(str)})

    frame = spark.createDataFrame([(1, 1), (-2, 1), (3, 1)][:size], "a int, b int").coalesce(1)
    rows = fold_errors(frame.withColumn("sum", total(F.struct("a", "b"))).withColumn("parts", parts("a"))).collect()
    assert [row["sum"] for row in rows] == [2, None, 4][:size]
    assert [row["parts"] for row in rows] == [(0.5, "1"), None, (1.5, "3")][:size]
    assert [row["_error"] for row in rows] == [None, "ValueError: negative a", None][:size]
    errors = [row["_error"] for row in fold_errors(frame.withColumn("parts", misnamed("a"))).collect()]
    assert all("half" in error for error in errors)


def test_a_series_of_points_in_time_is_in_the_zone_of_the_session(spark):
    @guarded("timestamp", pandas=True)
    def same(at):
        return at

    @guarded("timestamp", pandas=True)
    def by_row(at):
        if len(at) > 1:
            raise ValueError("only one by one")
        return at

    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = spark.range(2, numPartitions=1).select(F.timestamp_seconds(F.lit(1780315200)).alias("at"))
        for made in (same, by_row):
            rows = fold_errors(frame.withColumn("v", made("at"))).select(F.unix_micros("v"), "_error").collect()
            assert [tuple(row) for row in rows] == [(1780315200_000_000, None)] * 2
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_a_series_of_lists_with_nulls_and_points_in_time_comes_out_as_it_went_in(spark):
    """pandas has the list [1, null] as [1.0, nan], and points in time as numbers of nanoseconds."""

    @guarded("array<int>", pandas=True)
    def numbers(series):
        return series

    @guarded("array<timestamp>", pandas=True)
    def instants(series):
        return series

    frame = spark.sql("select array(1, null) as n, array(timestamp '2026-06-01 12:00:00', null) as at")
    rows = fold_errors(frame.withColumn("m", numbers("n")).withColumn("to", instants("at"))).collect()
    assert [(row.m, row.to, row["_error"]) for row in rows] == [(rows[0].n, rows[0]["at"], None)]
