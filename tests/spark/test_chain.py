"""Chains: stations that share one batch, so that an item is read once and ends once, whatever fails between."""

import os
import signal

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from structlog.testing import capture_logs

from jobrunner.client.item import Item
from jobrunner.errors import InvalidOption, StationError
from jobrunner.etl import Drop, To
from jobrunner.etl.table_sink import address_of
from jobrunner.outcome import Fail, Retry
from jobrunner.retry import Backoff
from jobrunner.spark import guarded, write_batch, write_table
from jobrunner.spark.lake.commit import open_table
from jobrunner.spark.station import members
from jobrunner.spark.station.batch_run import plan_of

CHAINED = {"max_wait": 0, "batch": 100}
SCHEMA = "n int, carrier string"


def clean(item):
    n = item.payload["n"]
    if n % 10 == 1:
        raise Fail("no flight", retry=False)
    if n % 10 == 2:
        raise ValueError(f"{n} is odd")
    if n % 10 == 3:
        return Drop()
    if n % 10 == 4:
        return To("departed", {"n": "four"})
    return To("cancelled" if n % 10 == 5 else "departed", {"n": n, "carrier": item.headers.get("carrier", "?")})


def declare(flights, tmp_path, clean=clean, enrich=None):
    """clean (Python) ── departed ══ enrich ══ late | on_time, and ── cancelled: sinks write to folders."""
    flights.station("raw", to=("departed", "cancelled"), backoff=Backoff(base=0))(clean)

    def split(df, spark):
        return df.select("_id", "n", "carrier", F.when(df.n % 2 == 0, "late").otherwise("on_time").alias("_to"))

    flights.spark_station("departed", to=("late", "on_time"), schema=SCHEMA)(enrich or split)
    for name in ("late", "on_time", "cancelled"):

        def store(df, spark, batch, name=name):
            write_batch(df.select("_id", "n", "carrier", "_enqueue_time"), batch, str(tmp_path / name))

        flights.spark_sink(name, schema=SCHEMA)(store)


def stored(tmp_path, name):
    """The rows of a sink, by id; fails for an item that is there twice."""
    if not (tmp_path / name).exists():
        return {}
    rows = pq.read_table(tmp_path / name).to_pylist()
    assert len({row["_id"] for row in rows}) == len(rows)
    return {row["_id"]: row for row in rows}


def rows_in(table):
    """The rows of a table of a lakehouse, in Arrow."""
    opened = open_table(address_of(table))
    opened.load()
    return opened._table.to_pyarrow_table() if table.startswith("delta") else opened._table.scan().to_arrow()


def errors_of(client, ids):
    return [client.task(one).record().error.splitlines()[0] for one in ids]


def nothing_left(flights, audit, but_dead=0):
    for node in flights.graph.nodes:
        counts = audit(node.queue)
        dead = but_dead if node.short == "raw" else 0
        assert [counts[state] for state in ("waiting", "scheduled", "pending", "dead")] == [0, 0, 0, dead], node.short


def test_a_schema_within_a_chain_is_told_when_it_starts(flights, spark, client):
    flights.station("raw", to="end")(lambda item: item.payload)
    flights.spark_sink("end", schema="n integr")(lambda df, spark, batch: None)
    flights.chain("raw")
    with pytest.raises(InvalidOption, match="schema='n integr' of queue 'flights/end'"):
        plan_of(flights.spark_stations["flights/raw"], client)


@pytest.mark.parametrize(
    ("size", "through_driver"),
    [(100, True), (100, False), pytest.param(20_000, False, marks=pytest.mark.slow)],
    ids=["through the driver", "on the executors", "large"],
)
def test_each_item_ends_in_its_sink_or_is_dead_with_the_reason(
    flights, drive, spark, client, audit, tmp_path, monkeypatch, size, through_driver
):
    """Also when Spark's tasks read the batch, and not the driver."""
    if not through_driver and size < members.THROUGH_DRIVER:
        monkeypatch.setattr(members, "THROUGH_DRIVER", 0)
        monkeypatch.setattr(members, "CHUNK", 30)
    declare(flights, tmp_path)
    flights.chain("raw", batch=size, max_wait=0)
    ids = flights.push_many("raw", [Item({"n": n}, headers={"carrier": f"c{n % 7}"}) for n in range(size)])

    assert drive("raw") == 1

    late, on_time, cancelled = (stored(tmp_path, name) for name in ("late", "on_time", "cancelled"))
    assert set(late) == {one for n, one in enumerate(ids) if n % 10 in (0, 6, 8)}
    assert set(on_time) == {one for n, one in enumerate(ids) if n % 10 in (7, 9)}
    assert set(cancelled) == {one for n, one in enumerate(ids) if n % 10 == 5}
    assert (late[ids[6]]["n"], late[ids[6]]["carrier"]) == (6, "c6")
    assert late[ids[6]]["_enqueue_time"] is not None  # the station in front had left it out
    assert errors_of(client, [ids[1], ids[2], ids[4]]) == [
        "no flight",
        "ValueError: 2 is odd",
        "PipelineError: the payload does not fit the schema: column 'n': expected int, got str",
    ]
    nothing_left(flights, audit, but_dead=3 * size // 10)


def test_a_sink_that_fails_behind_another_one_doubles_nothing(flights, drive, spark, client, audit, tmp_path):
    """Two bad items in one sink: the others of that sink, and those of the sink before, are there once."""
    declare(flights, tmp_path)

    def store(df, spark, batch):
        bad = F.raise_error(F.concat(F.lit("bad "), df.n.cast("string"))).cast("int")
        write_batch(df.withColumn("n", F.when(df.n.isin(7, 39), bad).otherwise(df.n)), batch, str(tmp_path / "on_time"))

    flights.graph.forget("flights/on_time")
    flights.spark_sink("on_time", schema=SCHEMA)(store)
    flights.chain("raw", **CHAINED)
    numbers = (5, 6, 7, 9, 39)  # few, as each is a part of its own in the end
    ids = dict(zip(numbers, flights.push_many("raw", [{"n": n} for n in numbers]), strict=True))
    client.queue("flights/raw").configure(backoff=Backoff(base=0))

    assert drive("raw") > 3

    assert set(stored(tmp_path, "on_time")) == {ids[9]}
    assert set(stored(tmp_path, "late")) == {ids[6]}
    assert set(stored(tmp_path, "cancelled")) == {ids[5]}
    assert all("bad" in line for line in errors_of(client, [ids[7], ids[39]]))
    nothing_left(flights, audit, but_dead=2)


def test_rows_that_a_station_on_spark_refuses_or_sends_nowhere_are_dead(
    flights, drive, spark, client, audit, tmp_path
):
    @guarded("int")
    def half(n):
        return n if n != 16 else int("x")

    def enrich(df, spark):
        to = F.when(df.n == 26, "nowhere").when(df.n == 36, F.lit(None)).otherwise("flights/late")
        return df.withColumn("_to", to).withColumn("n", half("n"))

    declare(flights, tmp_path, enrich=enrich)
    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(6, 106, 10)])

    assert drive("raw") == 1

    assert set(stored(tmp_path, "late")) == {*ids[4:], ids[0]}
    assert errors_of(client, ids[1:4]) == [
        "ValueError: invalid literal for int() with base 10: 'x'",
        "PipelineError: station 'flights/departed' returned _to=nowhere, a queue that its to=… does not name",
        "PipelineError: station 'flights/departed' returned _to=null, a queue that its to=… does not name",
    ]
    nothing_left(flights, audit, but_dead=3)


def test_a_value_that_does_not_fit_the_next_station_on_spark_is_dead_with_its_column(
    flights, drive, spark, client, audit, tmp_path
):
    """The columns of the two differ in type, so that payloads are JSON between them; `from_json` alone would fail the
    whole batch."""

    def larger(df, spark):
        return df.select("_id", F.when(df.n == 3, F.lit(1000)).otherwise(df.n).cast("long").alias("n"))

    flights.spark_station("raw", to="between", schema="n int")(larger)
    end_in_a_folder(flights, tmp_path, schema="n tinyint")
    ids = flights.push_many("raw", [{"n": n} for n in range(6)])

    assert drive("raw") == 1

    assert {row["n"] for row in stored(tmp_path, "late").values()} == {0, 1, 2, 4, 5}
    (error,) = errors_of(client, [ids[3]])
    assert error == "PipelineError: the payload does not fit the schema: column 'n': expected int <= 127"
    nothing_left(flights, audit, but_dead=1)


@pytest.mark.parametrize("drops", [False, True])
def test_a_null_does_not_enter_a_column_that_has_none(flights, drive, spark, client, audit, tmp_path, drops):
    """As behind a queue, whether the station before returns a null or lacks the column."""

    def some(df, spark):
        n = F.when(df.n > 1, df.n).alias("n")
        return df.select("_id", "s") if drops else df.select("_id", n, "s", F.lit(1).alias("sure"))

    flights.spark_station("raw", to="late", schema="n int, s string")(some)

    @flights.spark_sink("late", schema="n int not null, s string" + ("" if drops else ", sure int not null"))
    def store(df, spark, batch):
        write_batch(df.select("_id", "n"), batch, str(tmp_path / "late"))

    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}])

    assert drive("raw") == 1

    dead = ids if drops else ids[:1]
    assert set(stored(tmp_path, "late")) == {*ids} - {*dead}
    assert all("the payload does not fit the schema: column 'n'" in error for error in errors_of(client, dead))
    nothing_left(flights, audit, but_dead=len(dead))


def fork(df, spark):
    """Texts that are numbers to late, which takes those of "n int" for misfits; the others to on_time."""
    return df.select("_id", "n", F.when(df.even, "late").otherwise("on_time").alias("_to"))


@pytest.mark.parametrize("in_python", [False, True])
def test_a_wrong_schema_within_a_chain_stops_it(
    flights, driver_of, spark, audit, tmp_path, in_python
):
    """Batch after batch was dead at its inner station, also beside another branch that works. Few items still are, as
    their payloads may be bad."""
    if in_python:
        flights.station("raw", to=("late", "on_time"))(lambda item: To("late" if item.payload["even"] else "on_time"))
    else:
        flights.spark_station("raw", to=("late", "on_time"), schema="n string, even boolean")(fork)
    for name, schema in (("late", "n int"), ("on_time", "n string")):

        def store(df, spark, batch, name=name):
            write_batch(df.select("_id", "n"), batch, str(tmp_path / name))

        flights.spark_sink(name, schema=schema)(store)
    flights.chain("raw", **CHAINED)
    odd = flights.push_many("raw", [{"n": "x", "even": False}] * 3)
    few = flights.push_many("raw", [{"n": "x", "even": True}] * 5)
    driver = driver_of("raw")
    driver.step(spark)
    driver._lanes[0].closing.wait(60)  # a thread rolls the batch forward
    assert (set(stored(tmp_path, "on_time")), audit("flights/raw")["dead"]) == ({*odd}, len(few))

    flights.push_many("raw", [{"n": "x", "even": n % 2 == 0} for n in range(20)])
    with capture_logs() as logs:
        driver.step(spark)
    (stop,) = [one["error"] for one in logs if one["log_level"] == "error"]
    assert stop == (
        "NoPayloadFits: none of 10 payloads fits queue 'flights/late' of the chain, and none has fitted in this "
        "process: the payload does not fit the schema: column 'n': expected int, got str; correct the schema of queue "
        "'flights/late', or what its items come from"
    )
    counts = audit("flights/raw")
    assert (counts["dead"], counts["pending"], len(stored(tmp_path, "on_time"))) == (5, 20, 3)
    assert driver._failures.reason is not None


@pytest.mark.parametrize("schema", ["n tinyint", "variant", None])
def test_text_that_is_no_json_is_dead_before_the_next_station_on_spark(
    flights, drive, spark, client, audit, tmp_path, schema
):
    def spoil(df, spark):
        return df.withColumn("payload", F.when(F.col("payload").contains("3"), "{no").otherwise(F.col("payload")))

    flights.spark_station("raw", to="between")(spoil)
    end_in_a_folder(flights, tmp_path, schema=schema)
    ids = flights.push_many("raw", [{"n": n} for n in range(6)])

    assert drive("raw") == 1

    assert set(stored(tmp_path, "late")) == {*ids} - {ids[3]}
    (error,) = errors_of(client, [ids[3]])
    assert error.startswith("PipelineError: the payload is no JSON: ")
    nothing_left(flights, audit, but_dead=1)


def end_in_a_folder(flights, tmp_path, schema):
    """between ══ late, a chain from raw on."""
    flights.spark_station("between", to="late", schema=schema)(lambda df, spark: df)

    @flights.spark_sink("late", schema="n int")
    def store(df, spark, batch):
        write_batch(df.select("_id", "n"), batch, str(tmp_path / "late"))

    flights.chain("raw", **CHAINED)


def test_two_rows_for_an_item_fail_the_batch_by_its_name(flights, attempt, spark, client, tmp_path):
    def twice(df, spark):
        return df.withColumn("_to", F.lit("late")).unionByName(df.where("n = 6").withColumn("_to", F.lit("late")))

    declare(flights, tmp_path, enrich=twice)
    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in (6, 7, 8)])

    line = attempt("raw")

    assert f"station 'flights/departed' returned several rows for an item: {ids[0]} (2 rows)" in line
    assert not (tmp_path / "late").exists()


def test_rows_without_an_item_fail_the_batch(flights, attempt, tmp_path):
    """An outer join makes such."""
    def more(df, spark):
        return df.unionByName(df.withColumn("_id", F.lit(None).cast("string"))).withColumn("_to", F.lit("late"))

    declare(flights, tmp_path, enrich=more)
    flights.chain("raw", **CHAINED)
    flights.push_many("raw", [{"n": n} for n in (6, 7, 8)])

    assert "station 'flights/departed' returned 3 rows without _id, and a chain makes no new items" in attempt("raw")
    assert not (tmp_path / "late").exists()


def test_a_row_with_an_id_of_its_own_fails_the_batch(flights, attempt, tmp_path):
    """A sink would write it next to the rows of items, or in their place."""
    def rename(df, spark):
        own = F.when(df.n == 7, F.lit("seven")).otherwise(df["_id"])
        return df.withColumn("_id", own).withColumn("_to", F.lit("late"))

    declare(flights, tmp_path, enrich=rename)
    flights.chain("raw", **CHAINED)
    flights.push_many("raw", [{"n": n} for n in (6, 7, 8)])

    said = "station 'flights/departed' returned 1 rows whose _id is no item of the batch, such as seven"
    assert said in attempt("raw")
    assert not (tmp_path / "late").exists()


@pytest.mark.parametrize(("asked", "said"), [
    (Retry("later"), r"station 'flights/raw' asked to try item \S+ again \(Retry: later\)"),
    (To("departed", delay=3), r"station 'flights/raw' returned a delay for item \S+: a chain has no queue to wait in"),
])  # fmt: skip
def test_what_needs_a_queue_between_fails_the_batch_and_says_so(flights, take, tmp_path, asked, said):
    declare(flights, tmp_path, clean=lambda item: asked)
    flights.chain("raw", **CHAINED)
    flights.push("raw", {"n": 1})
    with pytest.raises(Exception, match=said):
        take("raw").run()


def test_sinks_of_one_chain_may_write_to_one_place(flights, drive, spark, table, audit, tmp_path):
    """Each under an id of its own, or the second would pass for a repeated write."""
    flights.station("raw", to=("a", "b"))(lambda item: To("ab"[item.payload["n"] % 2]))
    for name in "ab":
        flights.spark_sink(name, table=table, schema="n int", id_column="item")
    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(250)])

    assert drive("raw") == 3

    assert sorted(rows_in(table)["item"].to_pylist()) == sorted(ids)
    nothing_left(flights, audit)


def test_a_driver_that_dies_between_two_sinks(flights, drive, spark, audit, tmp_path):
    """The batch comes again under its id, and both sinks have each item once."""
    declare(flights, tmp_path)
    died = []

    def store(df, spark, batch):
        write_batch(df, batch, str(tmp_path / "on_time"))
        if not died:
            died.append(batch.id)
            raise OSError("the driver died")

    flights.graph.forget("flights/on_time")
    flights.spark_sink("on_time", schema=SCHEMA)(store)
    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in (5, 6, 7, 8, 9) * 50])

    drive("raw")

    assert died
    found = [stored(tmp_path, name) for name in ("late", "on_time", "cancelled")]
    assert sorted(one for rows in found for one in rows) == sorted(ids)
    nothing_left(flights, audit)


def test_pythons_of_executors_that_die_in_a_station_cost_nothing(flights, drive, spark, client, audit, tmp_path):
    """One in a station in Python, one in a station on Spark: Spark runs the tasks again, also those of kept rows."""

    def dies_once(where):
        marker = tmp_path / where
        if not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def clean_or_die(item):
        if item.payload["n"] == 77:
            dies_once("in python")
        return clean(item)

    @F.udf("int")
    def kept(n):
        if n == 66:
            dies_once("on spark")
        return n

    def split(df, spark):
        return df.withColumn("n", kept("n")).withColumn("_to", F.when(F.col("n") % 2 == 0, "late").otherwise("on_time"))

    declare(flights, tmp_path, clean=clean_or_die, enrich=split)
    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(100)])

    assert drive("raw") == 1

    assert {"in python", "on spark"} <= {path.name for path in tmp_path.iterdir()}
    assert set(stored(tmp_path, "late")) == {one for n, one in enumerate(ids) if n % 10 in (0, 6, 8)}
    assert set(stored(tmp_path, "on_time")) == {one for n, one in enumerate(ids) if n % 10 in (7, 9)}
    nothing_left(flights, audit, but_dead=30)


def test_stations_in_python_follow_each_other_and_columns_change_their_types(flights, drive, spark, audit, tmp_path):
    flights.station("raw", to="second")(lambda item: {**item.payload, "seen": [str(item.attempt), item.queue]})
    flights.station("second", to="third")(lambda item: To("third", headers={"from": item.queue}))

    @flights.spark_station("third", to="end", schema="n int, seen array<string>")
    def third(df, spark):
        via = F.col("_headers")["from"].alias("via")
        return df.select("_id", df.n.cast("string").alias("n"), via, "seen", df.n + 1)

    @flights.spark_sink("end", schema="n string, seen array<string>, via string, more double, `(n + 1)` long")
    def end(df, spark, batch):
        rows = df.select("_id", "n", "seen", "via", "more", F.col("(n + 1)").alias("next"))
        write_batch(rows, batch, str(tmp_path / "end"))

    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(3)])

    assert drive("raw") == 1

    rows = stored(tmp_path, "end")
    assert tuple(rows[ids[2]].values())[:6] == (ids[2], "2", ["1", "flights/raw"], "flights/second", None, 3)
    nothing_left(flights, audit)


@pytest.mark.parametrize("is_chained", [True, False])
@pytest.mark.parametrize("schema", [None, "variant"])
def test_a_payload_that_a_station_makes_null_is_the_null_of_json(
    flights, drive, found, tmp_path, schema, is_chained
):  # fmt: skip
    """Whether there is a queue behind the station or not; to a station in Python, and to one on Spark."""

    @flights.spark_station("raw", to="seen", schema=schema, max_wait=0)
    def inner(df, spark):
        inner = F.get_json_object(df.payload if schema is None else F.to_json("payload"), "$.inner")
        return df.withColumn("payload", inner if schema is None else F.parse_json(inner))

    flights.station("seen", to="bare")(lambda item: {"got": item.payload})

    @flights.spark_station("bare", to="end")
    def bare(df, spark):
        return df.withColumn("payload", F.get_json_object("payload", "$.got"))

    @flights.spark_sink("end")
    def end(df, spark, batch):
        write_batch(df.select("_id", "payload"), batch, str(tmp_path / "end"))

    if is_chained:
        flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"inner": {"a": 1}}, {}])

    assert drive("raw") == 1

    if is_chained:
        rows = stored(tmp_path, "end")
        assert {one: rows[one]["payload"] for one in rows} == {ids[0]: '{"a":1}', ids[1]: "null"}
    else:
        assert found("seen") == {ids[0]: {"a": 1}, ids[1]: None}


@pytest.mark.parametrize("schema", [None, "variant", "n int"])
def test_payloads_of_a_station_without_columns_go_on_as_they_are(flights, drive, spark, audit, tmp_path, schema):
    """As text, as variants, or as a column that is called like theirs."""
    flights.station("raw", to="kept")(lambda item: None)

    @flights.spark_station("kept", to="end", schema=schema)
    def keep(df, spark):
        return df.where("_id is not null")

    @flights.spark_sink("end", schema="n int")
    def end(df, spark, batch):
        write_batch(df.select("_id", "n"), batch, str(tmp_path / "end"))

    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(3)])

    assert drive("raw") == 1

    rows = stored(tmp_path, "end")
    assert {one: rows[one]["n"] for one in rows} == {one: n for n, one in enumerate(ids)}
    nothing_left(flights, audit)


def test_a_chain_may_begin_on_spark_and_the_queues_between_are_served_as_before(
    flights, drive, spark, audit, tmp_path
):
    declare(flights, tmp_path)
    flights.chain("departed", **CHAINED)
    ids = flights.push_many("departed", [{"n": n, "carrier": "c"} for n in range(4)])
    late = flights.push("late", {"n": 8, "carrier": "d"})

    assert (drive("departed"), drive("late")) == (1, 1)

    assert set(stored(tmp_path, "late")) == {ids[0], ids[2], late}
    assert set(stored(tmp_path, "on_time")) == {ids[1], ids[3]}
    nothing_left(flights, audit)


def test_a_sink_that_returns_its_frame_is_told(flights, take, tmp_path):
    flights.station("raw", to="end")(lambda item: None)
    flights.spark_sink("end", schema="n int")(lambda df, spark, batch: df)
    flights.chain("raw", **CHAINED)
    flights.push("raw", {"n": 1})
    with pytest.raises(StationError, match=r"sink 'flights/end' returned a DataFrame, which Spark never evaluates"):
        take("raw").run()


def test_a_station_that_several_ways_lead_to_is_called_once_with_the_rows_of_all(
    flights, drive, spark, table, audit, tmp_path
):
    """A second call for a batch passed for a repeated one: a table lacked the rows, whose items had succeeded."""
    called = []

    @flights.spark_station("raw", to=("by_python", "by_spark", "common", "end"), schema="n int")
    def fork(df, spark):
        ways = F.array(*map(F.lit, ("by_python", "by_spark", "common", "end")))
        return df.withColumn("_to", ways[F.col("n") % 4])

    flights.station("by_python", to="end")(lambda item: {"n": "eight"} if item.payload["n"] == 8 else None)
    flights.spark_station("by_spark", to="common", schema="n long")(lambda df, spark: df.select("_id", "n"))

    @flights.spark_station("common", to="end", schema="n int")
    def common(df, spark):
        called.append(df.count())
        return df.select("_id", "n")

    @flights.spark_sink("end", schema="n int")
    def store(df, spark, batch):
        write_table(df.select("_id", "n"), batch, table)
        write_batch(df.select("_id", "n"), batch, str(tmp_path / "end"))

    flights.chain("raw", **CHAINED)
    ids = flights.push_many("raw", [{"n": n} for n in range(40)])

    assert drive("raw") == 1

    assert called == [20]
    assert set(stored(tmp_path, "end")) == {*ids} - {ids[8]}
    assert sorted(rows_in(table)["_id"].to_pylist()) == sorted({*ids} - {ids[8]})
    nothing_left(flights, audit, but_dead=1)


@pytest.mark.parametrize("passes_on", [True, False])
@pytest.mark.parametrize("returned", [{"b": "2"}, {"a": "9", "b": None}, None])
def test_headers_that_a_station_on_spark_returns_are_added_to_those_of_the_item(
    flights, drive, returned, passes_on
):
    """As by a move between queues. They replaced those of the item, or were lost at the next station."""
    seen = []

    @flights.spark_station("raw", to="marked", schema="n int")
    def mark(df, spark):
        pairs = [F.lit(word).cast("string") for pair in (returned or {}).items() for word in pair]
        return df.withColumn("_headers", F.create_map(*pairs) if returned else F.lit(None))

    @flights.spark_station("marked", to="told", schema="n int")
    def leave(df, spark):
        return df if passes_on else df.select("_id", "n")

    @flights.station("told", to="end")
    def tell(item):
        return {"headers": item.headers}

    flights.spark_sink("end", schema="headers map<string,string>")(
        lambda df, spark, batch: seen.extend((row.headers, row._headers) for row in df.collect())
    )
    flights.chain("raw", **CHAINED)
    flights.push_many("raw", [Item({"n": 1}, headers={"a": "1"}), Item({"n": 2})])

    assert drive("raw") == 1

    new = {name: text for name, text in (returned or {}).items() if text}
    assert [one or {} for one, _ in seen] == [{"a": "1"} | new, new]
    assert [one or {} for _, one in seen] == [{"a": "1"} | new, new]


def test_a_station_that_no_row_goes_to_is_not_called(flights, drive, audit):
    """Functions that take a first row, or a largest value, failed the batch of others: alone, an item died of that."""
    seen = []
    flights.station("raw", to=("fork", "never"))(lambda item: To("fork"))

    @flights.spark_station("fork", to=("left", "right", "middle"), schema="n int")
    def fork(df, spark):
        return df.withColumn("_to", F.lit("right"))

    flights.station("middle", to="far")(lambda item: item.payload)
    for name in ("never", "left", "right", "far"):

        def store(df, spark, batch, name=name):
            seen.append((name, df.select(F.max("n")).first()[0] + 1))

        flights.spark_sink(name, schema="n int")(store)
    flights.chain("raw", **CHAINED)
    flights.push_many("raw", [{"n": n} for n in range(3)])

    assert drive("raw") == 1

    assert seen == [("right", 3)]
    nothing_left(flights, audit)


def test_a_null_in_the_column_that_names_the_target_is_the_only_target(flights, drive, audit):
    """As behind a queue; the item was dead, as its row named no target."""
    seen = []

    @flights.spark_station("raw", to="end", schema="n int")
    def mark(df, spark):
        return df.withColumn("_to", F.when(df.n == 1, "end"))

    flights.spark_sink("end", schema="n int")(
        lambda df, spark, batch: seen.extend(sorted(row.n for row in df.collect()))
    )
    flights.chain("raw", **CHAINED)
    flights.push_many("raw", [{"n": n} for n in range(3)])

    assert drive("raw") == 1

    assert seen == [0, 1, 2]
    nothing_left(flights, audit)
