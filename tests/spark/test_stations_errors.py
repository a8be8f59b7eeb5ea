"""Bad input at Spark stations: an error that names the column and the item, and nothing lost."""

import math

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from structlog.testing import capture_logs

from jobrunner.client.item import Item
from jobrunner.errors import InvalidOption
from jobrunner.inspector.error_groups import read_groups
from jobrunner.retry import Backoff
from jobrunner.spark import data_source, failures, write_batch, write_table
from jobrunner.spark.failures import Cause, cause_of, error_line
from jobrunner.spark.station.payload_shape import shape_of
from tests.support.waiting import wait_for

NO_PAUSE = Backoff(base=0)


def station(flights, function, to="late", schema="n int", **options):
    """Declares `function` as the station of queue clean, and one item in it, whose id it returns."""
    flights.spark_station("clean", to=to, max_wait=0, schema=schema, **options)(function)
    for target in (to,) if isinstance(to, str) else to:
        flights.declare(target)
    return flights.push("clean", {"n": 1})


SHAPES = {
    "nothing": (lambda df: None, "returned nothing: return a DataFrame"),
    "a list": (lambda df: [1], r"returned list [1]: return a DataFrame"),
    "no _id": (lambda df: df.select("n"), "lost the column _id: keep it in select and groupBy"),
    "no payload": (lambda df: df.select("_id"), "returned no column for the payload"),
    "a column twice": (lambda df: df.select("_id", "n", "n"), "returned column 'n' twice"),
    "two columns of one name but for its case": (
        lambda df: df.select("_id", "n", F.col("n").alias("N")),
        "returned columns 'n' and 'N', which Spark takes for one name: drop or rename one of them",
    ),
    "a name that steers nothing": (
        lambda df: df.withColumn("_priorty", F.lit(1)),
        "returned column '_priorty': names that begin with _ steer the item; did you mean '_priority'?",
    ),
    "_priority of words": (lambda df: df.withColumn("_priority", F.lit("high")), "column '_priority' of type string"),
    "_priority beyond 32 bits": (
        lambda df: df.withColumn("_priority", F.lit(2**32 + 1)), "returned 4294967297 in column '_priority' of item "
    ),
    "_delay of words": (lambda df: df.withColumn("_delay", F.lit("1h")), "column '_delay' of type string: make it a n"),
    "_headers of words": (lambda df: df.withColumn("_headers", F.lit("x")), "column '_headers' of type string: make"),
    "_to of numbers": (lambda df: df.withColumn("_to", F.lit(1)), "column '_to' of type int: make it a string"),
    "a numeric _id": (lambda df: df.withColumn("_id", F.lit(1)), "column '_id' of type int: make it a string"),
    "keys that are no text": (
        lambda df: df.withColumn("n", F.array(F.create_map(F.current_date(), "n"))),
        "returned column 'n': keys of type date have no JSON form; make them strings",
    ),
    "an interval of months": (
        lambda df: df.withColumn("n", F.array(F.make_ym_interval(F.lit(1)))),
        "returned column 'n': interval year to month has no JSON form; cast it to a string",
    ),
    "a struct with a field twice": (
        lambda df: df.withColumn("n", F.struct("n", "n")),
        "returned column 'n': it has the field 'n' twice; rename one of them",
    ),
    "a column that is not there": (lambda df: df.select("_id", "m"), "name `m` cannot be resolved"),
}


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "told"),
    [(ValueError("no \ud800 file"), "ValueError: no \\ud800 file"), (Mute(), "Mute: (an error that cannot be shown)")],
)
def test_an_error_whose_text_is_no_text_is_reported_all_the_same(flights, drive, client, error, told):
    """Else the batch waits for the end of its lease, which counts as an expiry."""

    def fail(df, spark):
        raise error

    item = station(flights, fail, max_attempts=1)
    assert drive("clean", at_most=20) < 20
    record = client.task(item).record()
    assert record.error.startswith(told), record.error


@pytest.mark.parametrize("wrong", SHAPES)
def test_what_the_columns_tell_names_the_column(flights, attempt, wrong):
    function, said = SHAPES[wrong]
    station(flights, lambda df, spark: function(df))
    error = attempt("clean")
    assert said in error
    assert "\n" not in error


CASES = {
    "write_batch": (lambda df, batch, path: write_batch(df, batch, path), "StationError: the rows for {path} have"),
    "write_table": (
        lambda df, batch, path: write_table(df, batch, f"delta:{path}"),
        "TableError: the rows for table delta:{path} have",
    ),
}


@pytest.mark.parametrize("writer", CASES)
def test_a_sink_of_two_columns_of_one_name_but_for_its_case_names_both(flights, attempt, tmp_path, writer):
    write, said = CASES[writer]
    path = f"{tmp_path}/rows"

    @flights.spark_sink("clean", max_wait=0, schema="n int")
    def store(df, _, batch):
        write(df.select("_id", "n", F.col("n").alias("N")), batch, path)

    flights.push("clean", {"n": 1})
    error = attempt("clean")
    assert f"{said.format(path=path)} columns 'n' and 'N', which Spark takes for one name" in error


@pytest.mark.parametrize(
    ("value", "column"),
    [("x" * 254, "p"), ("a\0b", "p"), ("__HIVE_DEFAULT_PARTITION__", "p"), ("__HIVE_DEFAULT_PARTITION__", "P")],
)
def test_a_value_that_no_folder_can_be_named_after_stops_no_station(
    spark, flights, drive, client, tmp_path, value, column
):
    @flights.spark_sink("clean", max_wait=0, schema="p string, n int", quarantine=True)
    def store(df, _, batch):
        write_batch(df.select("p", "n"), batch, f"{tmp_path}/rows", partition_by=[column])

    flights.push_many("clean", [{"p": "a", "n": 1}, {"n": 2}])  # one in the folder of null
    bad = flights.push("clean", {"p": value})
    drive("clean")
    assert sorted(row["n"] for row in spark.read.parquet(f"{tmp_path}/rows").collect()) == [1, 2]
    assert client.queue("flights/clean").ids("dead") == [bad]
    assert f"are partitioned by column {column!r}, and have a value" in client.task(bad).record().error


@pytest.mark.parametrize("name", ["batch", "Batch"])
def test_a_column_that_the_folders_of_batches_would_hide_is_refused(flights, attempt, tmp_path, name):
    @flights.spark_sink("clean", max_wait=0, schema=f"{name} int")
    def store(df, _, batch):
        write_batch(df.drop("_headers"), batch, f"{tmp_path}/rows")

    flights.push("clean", {name: 1})
    assert attempt("clean") == (
        f"StationError: the rows for {tmp_path}/rows have a column {name!r}: readers would see the id of the batch "
        "instead, which its folder batch=<id> has under this name; rename it"
    )


def test_columns_of_one_name_but_for_its_case_are_two_where_the_session_says_so(spark, flights, drive, found):
    def doubled(df, _):
        return df.withColumns({"n": df.n + 1, "N": df.N + 2})

    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        flights.spark_station("clean", to="late", max_wait=0, schema="n int, N int")(doubled)
        flights.declare("late")
        flights.push("clean", {"n": 1, "N": 2})
        drive("clean")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert list(found("late").values()) == [{"n": 2, "N": 4}]


def test_a_schema_with_one_name_in_two_cases_names_both(spark):
    with pytest.raises(InvalidOption, match="the schema of queue 'flights/clean' has columns 'n' and 'N', which Spark"):
        shape_of("n int, N int", "flights/clean")


def test_several_targets_need_a_column_that_names_one(flights, attempt):
    station(flights, lambda df, spark: df, to=("late", "on_time"))
    assert "returned no column _to but leads to 'late', 'on_time'" in attempt("clean")


ROWS = {
    "an unknown target": (("_to", "'lat'"), "'lat' in column '_to' of item {id}: did you mean 'late'?"),
    "a strange id": (("_id", "'stranger'"), "UnknownMember: item 'stranger' is no member of batch"),
    "another strange id": (("_id", "'stranger'"), "those of a station on Spark by emits_new=True and a null _id"),
}


@pytest.mark.parametrize("wrong", ROWS)
def test_what_rows_tell_names_the_column_and_the_item(flights, attempt, wrong):
    (column, value), said = ROWS[wrong]

    def change(df, spark):
        return df.withColumn("_to", F.lit("late")).withColumn(column, F.expr(value))

    task_id = station(flights, change, to=("late", "on_time"))
    error = attempt("clean")
    assert said.format(id=task_id) in error
    assert "\n" not in error


def test_several_rows_for_an_item_need_fan_out(flights, attempt):
    task_id = station(flights, lambda df, spark: df.union(df).union(df))
    assert attempt("clean") == (
        f"PipelineError: station 'flights/clean' returned 3 rows for item {task_id} (1 such items): declare "
        "fan_out=True to make items of them, or drop what is double"
    )


def test_an_error_in_a_function_of_python_is_its_last_line(flights, attempt):
    @F.udf("int")
    def divide(n):
        return 1 // (n - 1)

    station(flights, lambda df, spark: df.withColumn("n", divide("n")))
    assert attempt("clean").startswith("ZeroDivisionError: integer division or modulo by zero")


def test_an_error_of_the_engine_is_its_first_sentence(flights, attempt):
    station(flights, lambda df, spark: df.withColumn("n", F.raise_error(F.lit("too old"))))
    assert attempt("clean") == "SparkRuntimeException: [USER_RAISED_EXCEPTION] too old"


@pytest.mark.parametrize("how", ["from_json", "parse_json"])
def test_an_error_of_a_value_that_python_has_no_class_for_is_that_of_a_row(flights, take, spark, how):
    """PySpark passes it on as `Py4JJavaError`, in which the class is one of Java's."""
    text, strict = F.lit("{"), {"mode": "FAILFAST"}
    read = F.parse_json(text) if how == "parse_json" else F.from_json(text, "a int", strict).a
    station(flights, lambda df, spark: df.withColumn("n", read).where("n is not null"))
    with pytest.raises(Exception, match="MALFORMED") as caught:
        take("clean").run()
    assert error_line(caught.value).startswith("SparkException: [MALFORMED_RECORD_IN_PARSING")
    assert cause_of(caught.value, spark) is Cause.ROWS


@pytest.mark.parametrize("name", ["spark.sql.shuffle.partitions", "spark.io.compression.codec"])
def test_a_setting_that_spark_refuses_when_it_reads_it_is_named_and_blames_no_item(
    flights, take, spark, monkeypatch, name
):  # fmt: skip
    """Not at the start of the session. The check that Spark is alive may fail of it as well."""

    def leave(df, spark):
        if "codec" in name:
            conf = spark.sparkContext._jsc.sc().conf().clone().set(name, "wrong")
            spark._jvm.org.apache.spark.io.CompressionCodec.createCodec(conf)
        spark.conf.set(name, "wrong")
        return df

    station(flights, leave)
    with pytest.raises(Exception, match="wrong") as caught:
        take("clean").run()
    assert name in error_line(caught.value)
    monkeypatch.setattr(failures, "is_alive", lambda *_: False)
    assert cause_of(caught.value, spark) is Cause.CODE


def test_what_a_sink_returns_is_not_lost_in_silence(flights, attempt):
    flights.spark_sink("late", max_wait=0)(lambda df, spark, batch: df)
    flights.push("late", 1)
    assert "returned a DataFrame, which Spark never evaluates: write it" in attempt("late")


def test_payloads_that_do_not_fit_are_dead_with_the_column_and_hold_nothing_up(flights, drive, client, audit, found):
    seen = []

    def leave(df, spark):
        seen.append(df.count())
        return df

    station(flights, leave, schema="n int, s string")
    wrong = [b"\x00\x01", [1], {"s": 5}, {"n": "x"}, {"n": "y"}]
    ids = flights.push_many("clean", [Item(payload, id=f"id-{'abcde'[at]}") for at, payload in enumerate(wrong)])
    assert drive("clean") == 1
    assert seen == [1]
    assert audit("flights/clean")["dead"] == 5
    assert [client.task(task_id, queue="flights/clean").record().error for task_id in ids] == [
        "PipelineError: the payload is bytes, not JSON",
        "PipelineError: the payload does not fit the schema: expected object, got array",
        "PipelineError: the payload does not fit the schema: column 's': expected str, got int",
        *["PipelineError: the payload does not fit the schema: column 'n': expected int, got str"] * 2,
    ]
    groups = read_groups(client, ["flights/clean"]).groups
    assert sorted(one.dead for one in groups) == [1, 1, 1, 2], "no id of an item is in the way"
    assert list(found("late").values()) == [{"n": 1, "s": None}]


@pytest.mark.parametrize("size", [10, 10_001])
def test_a_schema_that_no_payload_fits_stops_the_station_until_one_fits(
    flights, driver_of, spark, audit, client, found, size
):  # fmt: skip
    """A wrong schema= made all items of a queue dead within seconds. The larger batch is read by executors."""
    flights.spark_station("clean", to="late", max_wait=0, schema="n int", batch=size)(lambda df, spark: df)
    flights.declare("late")
    flights.push_many("clean", [{"n": "x"}] * size)
    driver = driver_of("clean")
    with capture_logs() as logs:
        for _ in range(2):
            driver.step(spark)
    (stop,) = [one for one in logs if one["log_level"] == "error"]
    assert stop["error"] == (
        f"NoPayloadFits: none of {size:,} payloads fits, and no batch has succeeded in this process: the payload does "
        "not fit the schema: column 'n': expected int, got str; correct the schema of queue 'flights/clean', or what "
        "fills it"
    )
    assert (audit("flights/clean")["dead"], audit("flights/clean")["pending"]) == (0, size)

    flights.push_many("clean", [{"n": 1}] * 2)

    def is_done():
        driver.step(spark)
        return client.queue("flights/clean").counts()["dead"] == size

    wait_for(is_done, timeout_s=60)
    driver.stop(20)
    assert [payload["n"] for payload in found("late").values()] == [1, 1]


def test_an_outage_behind_a_sink_kills_no_item_while_payloads_that_do_not_fit_come_in_between(
    flights, driver_of, spark, client
):  # fmt: skip
    """A batch in which no payload fits passed for a success of the function, and ended the row of failures."""

    @flights.spark_sink("late", max_wait=0, schema="n int", batch=1, max_attempts=1)
    def store(df, spark, batch):
        if df.count():
            raise OSError("the database is away")

    driver = driver_of("late")
    driver._failures._history.succeeded()  # in the past
    flights.push_many("late", [{"n": "x" if at % 3 == 0 else 1} for at in range(30)])
    for _ in range(13):
        driver.step(spark)
    driver.stop(20)
    errors = {client.task(one).record().error for one in client.queue("flights/late").ids("dead")}
    assert errors == {"PipelineError: the payload does not fit the schema: column 'n': expected int, got str"}


def test_misfits_of_a_sink_that_was_tried_twice_are_dead_once(flights, drive, audit):
    tries = []

    @flights.spark_sink("late", max_wait=0, schema="n int", backoff=NO_PAUSE)
    def store(df, spark, batch):
        tries.append(df.count() + df.count())
        if len(tries) == 1:
            raise OSError("not yet")

    flights.push_many("late", [{"n": "x"}, {"n": 1}])
    drive("late")
    assert tries == [2, 2]
    assert audit("flights/late")["dead"] == 1


def test_an_item_that_fails_alone_is_dead_with_the_error(flights, drive, client, audit):
    def fail(df, spark):
        raise ValueError("no such\nairport")

    task_id = station(flights, fail, max_attempts=2, backoff=NO_PAUSE)
    assert drive("clean") == 2
    assert audit("flights/clean")["dead"] == 1
    error = client.task(task_id).record().error
    assert error == f"ValueError: no such (test_stations_errors.py:{fail.__code__.co_firstlineno + 1} fail)"


@pytest.mark.parametrize(
    "many",
    [
        pytest.param(60, id="60"),
        pytest.param(3_000, id="3000", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(100_000, id="100000", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
    ],
)
def test_bad_items_among_many_die_with_the_error_and_the_others_move_on(
    flights, drive, client, audit, many, raw, keys, wait_until
):
    tries, bad = [], [7] if many < 100 else [17, many // 2, many - 1]

    def fail(df, spark):
        tries.append(1)
        found = df.where(F.col("n").isin(bad)).count()
        if found:
            raise ValueError(f"{found} bad ones")
        return df

    station(flights, fail, backoff=NO_PAUSE, batch=many)
    flights.push_many("clean", [{"n": n} for n in range(many)])

    def is_done():  # the last attempt of an item that is alone comes again, behind others
        drive("clean", at_most=1_000)
        return not client.queue("flights/clean").counts()["pending"]

    wait_until(is_done, timeout_s=900)
    assert audit("flights/late")["waiting"] == many + 1 - len(bad)
    dead = raw.zrange(keys.queue("flights/clean").dead, 0, -1)
    errors = [raw.hget(keys.queue("flights/clean").tasks + one, "error") for one in dead]
    place = f"test_stations_errors.py:{fail.__code__.co_firstlineno + 4} fail"
    assert errors == [f"ValueError: 1 bad ones ({place})".encode()] * len(bad)
    print(f"{len(tries)} runs for {len(bad)} bad ones among {many}")
    assert len(tries) <= 2 + 16 + len(bad) * 4 * (math.ceil(math.log(many, 4)) + 4), "not logarithmic"


def test_a_schema_that_is_none_is_told_when_the_station_starts(spark):
    with pytest.raises(InvalidOption, match=r"schema='n integr' of queue 'flights/clean'.*write 'id int, name"):
        shape_of("n integr", "flights/clean")
    with pytest.raises(InvalidOption, match=r"of queue 'flights/clean': \[PARSE_SYNTAX_ERROR\] .* near ','; write"):
        shape_of("n int,,", "flights/clean")
    with pytest.raises(InvalidOption, match="column '_n' in the schema of queue"):
        shape_of("_n int", "flights/clean")
    for schema in ('`a"b` int', "`a\\b` int", "n struct<`a\nb`: int>", "n int, n int"):  # no item is dead of it
        with pytest.raises(InvalidOption, match=r"in the schema of queue 'flights/clean': the name .* (has a|occurs)"):
            shape_of(schema, "flights/clean")


def test_a_session_that_parses_times_as_spark_2_did_is_told_and_starts_no_station_that_has_some(spark, monkeypatch):
    monkeypatch.setattr(data_source, "_warned_of", set())
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "legacy")
    try:
        with capture_logs() as told:
            data_source.prepare(spark)
            data_source.prepare(spark)
        for schema in ("t timestamp, x decimal(9,2)", "d date, x float", "a array<struct<m: map<string, date>>>"):
            with pytest.raises(InvalidOption, match=r"timeParserPolicy=LEGACY would change its dates .*CORRECTED"):
                shape_of(schema, "flights/clean")
        for schema in ("t timestamp, d date, n int", "n timestamp_ntz, x decimal(9,2)", "a array<int>", None):
            shape_of(schema, "flights/clean")
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        with pytest.raises(InvalidOption, match="CORRECTED"):
            shape_of("t timestamp", "flights/clean")
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert [one["setting"] for one in told if "setting" in one] == ["spark.sql.legacy.timeParserPolicy=LEGACY"]


WRONG_CODE = {
    "a column that is misspelt": lambda df, spark: df.withColumn("m", F.col("typo")),
    "a name that is not defined": lambda df, spark: undefined_name(df),  # noqa: F821
    "nothing returned": lambda df, spark: None,
    "no _id": lambda df, spark: df.select("n"),
    "a function from before the session": lambda df, spark: (_ for _ in ()).throw(
        PySparkRuntimeError(errorClass="SESSION_OR_CONTEXT_NOT_EXISTS", messageParameters={})
    ),
}


@pytest.mark.parametrize("wrong", WRONG_CODE)
def test_errors_of_the_code_are_not_counted_against_items(flights, driver_of, warm, client, wrong):
    task_id = station(flights, WRONG_CODE[wrong], backoff=NO_PAUSE)
    client.queue("flights/clean").configure(max_attempts=1)
    driver = driver_of("clean")
    driver._stopping.wait = lambda *_: False
    for _ in range(4):
        driver.step(warm)
    driver.stop(5)

    record = client.task(task_id).record()
    assert (record.state, record.retry_count) == ("pending", 0)


def test_an_error_of_planning_splits_its_batch_and_dies_with_the_item_that_it_comes_from(
    flights, driver_of, warm, client, clock
):
    """A function may plan by what it collected: then one bad item must not hold up others."""

    def pick(df, spark):
        bad = df.where("n = 9").count()
        return df.withColumn("m", F.col("missing" if bad else "n"))

    station(flights, pick, backoff=NO_PAUSE, batch=4)
    client.queue("flights/clean").configure(max_attempts=2)
    driver = driver_of("clean")
    driver.step(warm)  # the function has worked
    (bad, *_) = flights.push_many("clean", [{"n": n} for n in (9, 2, 3, 4)])
    for _ in range(6):
        driver.step(warm)
    driver.stop(20)
    assert client.queue("flights/late").counts()["waiting"] == 4
    assert client.queue("flights/clean").counts()["pending"] + client.queue("flights/clean").counts()["dead"] == 1
    assert client.task(bad).record().retry_count <= 2


def test_an_error_of_the_plan_has_the_same_words_for_each_batch(flights, attempt):
    """So a station that stops says so once, and not for each batch."""

    @flights.spark_station("raw", to="clean", schema="n int", max_wait=0)
    def add(df, spark):
        return df.withColumn("n", df.n + 1).withColumn("m", df.n + 1)

    flights.declare("clean")
    flights.push_many("raw", [{"n": 1}])
    first = attempt("raw")
    flights.push_many("raw", [{"n": 2}])
    assert attempt("raw") == first
    assert 'attribute(s) "n" missing' in first
