"""Queues and history as tables."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as fn
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNull, LessThan
from pyspark.sql.types import TimestampType, _parse_datatype_string
from structlog.testing import capture_logs

from jobrunner import Client, configure
from jobrunner.client.current import current_client
from jobrunner.clock import utc_now
from jobrunner.errors import InvalidOption, ParameterError, UnknownOption
from jobrunner.spark import register
from jobrunner.spark.failures import error_line
from jobrunner.spark.history.archive import archive
from jobrunner.spark.history.archive_files import read_archive
from jobrunner.spark.payloads import PROTECTED
from jobrunner.spark.source.batch_reader import FilteringReader
from jobrunner.spark.source.options import batch_options, default_schema, shape_of
from jobrunner.spark.source.scan import QueueSlice
from tests.security.conftest import KEY

LTZ = TimestampType()
NOW_MS = 1_700_000_000_000.0
NOW = datetime.fromtimestamp(NOW_MS / 1000, UTC)


@pytest.fixture
def load(spark, server, keys):
    """load(queue="mail"): a DataFrame of the test's server."""

    def made(*, schema=None, **options):
        reader = spark.read.format("jobrunner").options(url=server.url, prefix=keys.prefix, **options)
        return (reader.schema(schema) if schema else reader).load()

    return made


@pytest.fixture
def reader(spark, server, keys):
    """reader(queue="mail"): the reader that Spark builds from the options, without a Spark job."""

    def made(*, schema=None, **options):
        settled = batch_options({"url": server.url, "prefix": keys.prefix} | options)
        return FilteringReader(settled, shape_of(_parse_datatype_string(schema or default_schema(settled))))

    return made


def rows(reader):
    """The rows of a read, slice by slice."""
    return [row for piece in reader.partitions() for row in rows_of(reader, piece)]


def rows_of(reader, piece):
    return [row for batch in reader.read(piece) for row in pa.Table.from_batches([batch]).to_pylist()]


@pytest.fixture
def mail(client, clock):
    """One item in each state, on a stopped clock."""
    clock.set(NOW_MS)
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    for name in ("dead", "held", "wait"):
        queue.push({"n": name}, id=name, headers={"who": "me"}, priority=2)
    dead, _ = queue.reserve(2, keepalive=60)
    dead.rollback(error="no good")
    queue.push({"n": "later"}, id="later", in_=timedelta(hours=1))
    return queue


def test_each_state_has_its_rows_with_all_columns(mail, load):
    found = {row["_id"]: row.asDict() for row in load(queue="mail").collect()}
    assert set(found) == {"dead", "held", "wait", "later"}
    assert found["held"] == {
        "payload": '{"n":"held"}', "_id": "held", "_queue": "mail", "_state": "pending", "_type": "",
        "_attempts": 1, "_retry_count": 0, "_enqueue_time": NOW.replace(tzinfo=None), "_started_at": None,
        "_when": (NOW + timedelta(seconds=60)).replace(tzinfo=None), "_finished_at": None, "_priority": 2,
        "_error": None, "_result": None, "_headers": '{"who":"me"}', "_partition": None, "_hops": 0,
    }  # fmt: skip
    assert {name: row["_state"] for name, row in found.items()} == {
        "dead": "dead", "held": "pending", "wait": "waiting", "later": "scheduled",
    }  # fmt: skip
    assert "no good" in found["dead"]["_error"]
    assert found["dead"]["_attempts"] == 1
    assert found["wait"]["_when"] is None
    assert found["wait"]["_attempts"] == 0
    assert found["later"]["_when"] == (NOW + timedelta(hours=1)).replace(tzinfo=None)


def test_several_queues_and_patterns(client, load):
    for name in ("flights/raw", "flights/clean", "mail", "fly"):
        client.queue(name).push({"in": name})

    def counted(**options):
        return {row["_queue"]: row["count"] for row in load(**options).groupBy("_queue").count().collect()}

    assert counted(queue="flights/*") == {"flights/raw": 1, "flights/clean": 1}
    assert counted(queue="mail, fly,mail") == {"mail": 1, "fly": 1}
    assert counted(queue="none/*,never.used", missingQueues="ignore") == {}


def test_slices_have_every_item_once_and_spark_counts_them(client, load, reader):
    client.queue("mail").push_many([{"n": n} for n in range(5_000)])
    assert len(reader(queue="mail", rowsPerPartition="700").partitions()) == 8
    frame = load(queue="mail", rowsPerPartition=700, payloadSchema="n int")
    found = frame.agg(fn.count("*"), fn.countDistinct("_id"), fn.sum("n"), fn.count("_misfit")).first()
    assert tuple(found) == (5_000, 5_000, 12_497_500, 0)


def test_pages_grow_to_two_thousand_items(client, reader):
    client.queue("mail").push_many([{"n": n} for n in range(8_000)])
    read = reader(queue="mail")
    sizes = [batch.num_rows for piece in read.partitions() for batch in read.read(piece)]
    assert max(sizes) == 2_000
    assert max(sizes[:2]) <= 501  # the size of payloads is not known yet


def test_large_payloads_come_in_small_pages(client, reader):
    client.queue("mail").push_many(["x" * 300_000] * 60)
    read = reader(queue="mail", columns="payload")
    sizes = [batch.nbytes for piece in read.partitions() for batch in read.read(piece)]
    assert sum(sizes) > 60 * 300_000
    assert max(sizes[1:] or [0]) < 10_000_000


def test_filters_on_queue_state_type_and_time_are_answered_by_the_server(mail, client, load):
    client.queue("other").push(1)
    frame = load(queue="*", filters="server")
    wanted = frame.where("_queue = 'mail' and _state in ('dead', 'scheduled') and _type = ''")
    assert {row["_id"] for row in wanted.collect()} == {"dead", "later"}
    plan = frame.where("_queue = 'mail' and _state = 'dead'")._jdf.queryExecution().executedPlan().toString()
    assert "Filter (" not in plan.replace("RuntimeFilters", ""), "Spark filters nothing again"
    later = frame.where(fn.col("_when") > fn.lit(NOW + timedelta(minutes=30)))
    assert [row["_id"] for row in later.collect()] == ["later"]


def test_uses_of_one_frame_have_filters_of_their_own(mail, load):
    """Spark read both sides of these with the filters of one of them, and later reads of the frame, too."""
    frame = load(queue="*")
    waiting, dead = frame.where("_state = 'waiting'"), frame.where("_state = 'dead'")
    assert {row["_id"] for row in waiting.union(dead).collect()} == {"wait", "dead"}
    assert dead.union(frame).count() == 5
    assert {row["_id"] for row in frame.join(dead, "_id", "left_anti").collect()} == {"held", "wait", "later"}
    assert frame.join(waiting, "_id").count() == 1
    assert frame.count() == 4


def test_a_frame_that_is_used_again_has_what_came_since(client, load):
    """Spark plans it once. A cell of a notebook is run again, and a temporary view lives long."""
    queue = client.queue("mail")
    frame = load(queue="*", rowsPerPartition=3)
    assert frame.count() == 0
    for turn in range(1, 4):
        queue.push_many([{"n": n} for n in range(10)])
        queue.push({"n": 10}, in_=timedelta(hours=1))
        client.queue(f"other{turn}").push({"n": 11})
        found = frame.groupBy("_state").count().collect()
        assert {row["_state"]: row["count"] for row in found} == {"waiting": turn * 11, "scheduled": turn}
    queue.pop(25)
    assert frame.select("_id").distinct().count() == frame.count() == 3 * 12 - 25


def test_slices_have_each_item_that_there_is_when_they_are_read_once(client, reader):
    queue = client.queue("mail")
    queue.push_many([{"n": n} for n in range(10)])
    read = reader(queue="*", rowsPerPartition="4")
    planned = read.partitions()
    queue.pop(5)
    queue.push_many([{"n": n} for n in range(10, 20)])
    queue.push({"n": 20}, priority=2)
    client.queue("new").push({"n": 21})
    found = [row["payload"] for piece in planned for row in rows_of(read, piece)]
    assert sorted(found) == sorted(f'{{"n":{n}}}' for n in [*range(5, 20), 20, 21])


def test_what_is_filtered_out_is_not_planned(mail, client, reader):
    client.queue("other").push(1)

    def pieces(*filters):
        read = reader(queue="*")
        rest = list(read.pushFilters(list(filters)))
        return {(piece.queue, piece.state) for piece in read.partitions() if isinstance(piece, QueueSlice)}, rest

    assert pieces(EqualTo(("_queue",), "other")) == ({("other", "waiting")}, [])
    assert pieces(In(("_state",), ("dead", "waiting")), EqualTo(("_queue",), "mail"))[0] == {
        ("mail", "dead"), ("mail", "waiting"),
    }  # fmt: skip
    assert pieces(EqualTo(("_state",), "nonsense")) == (set(), [])
    time = GreaterThan(("_when",), NOW + timedelta(minutes=1))
    assert pieces(time) == ({("mail", "scheduled")} | {("mail", "pending")}, [time])
    before = LessThan(("_when",), NOW - timedelta(minutes=1))
    assert pieces(before) == (set(), [before])
    unknown = IsNull(("_error",))
    assert pieces(unknown)[1] == [unknown]


def test_a_type_that_is_filtered_for_is_all_that_is_read(client, reader):
    queue = client.queue("mail")
    for n in range(10):
        queue.push(n)
    read = reader(queue="mail")
    assert list(read.pushFilters([EqualTo(("_type",), "jobs:Send")])) == []
    assert rows(read) == []


def test_a_schema_of_the_user_has_fields_of_the_payload_and_columns_of_the_item(client, load):
    when = "2024-02-29T10:00:00+02:00"
    client.queue("mail").push(
        {"s": "é", "i": 7, "d": 1, "dec": "1.50", "t": when, "day": "2024-02-29", "l": [1, None], "m": {"a": 1.5},
         "o": {"x": {"y": "z"}}, "b": True, "more": 1}
    )  # fmt: skip
    schema = (
        "i int, _queue string, s string, d double, dec decimal(10,2), t timestamp, day date, l array<int>, "
        "m map<string,double>, o struct<x: struct<y: string>>, b boolean, missing string, payload binary, "
        "_misfit string"
    )
    row = load(queue="mail", schema=schema).first()
    assert (row["i"], row["_queue"], row["s"], row["d"], row["dec"]) == (7, "mail", "é", 1.0, Decimal("1.50"))
    assert row["t"] == datetime(2024, 2, 29, 8)
    assert (row["day"].isoformat(), row["l"], row["m"]) == ("2024-02-29", [1, None], {"a": 1.5})
    assert (row["o"]["x"]["y"], row["b"], row["missing"], row["_misfit"]) == ("z", True, None, None)
    assert bytes(row["payload"]).startswith(b'{"s":"')


def test_a_payload_that_does_not_fit_has_nulls_and_a_reason(client, reader):
    queue = client.queue("mail")
    for payload in ({"n": 1}, {"n": "one"}, [1], b"\xff", b"", {"n": 3_000_000_000}, {"n": 2}):
        queue.push(payload)
    found = rows(reader(queue="mail", schema="n int, _misfit string"))
    assert [row["n"] for row in found] == [1, None, None, None, None, None, 2]
    assert [row["_misfit"] is None for row in found] == [True, False, False, False, False, False, True]
    assert "'n'" in found[1]["_misfit"]
    with pytest.raises(ParameterError, match=r"task .* does not fit the schema: column 'n'"):
        rows(reader(queue="mail", schema="n int", mode="failfast"))


def test_a_payload_that_is_encrypted_says_so(server, client, keys, reader):
    client.queue("mail").push({"n": 1}, id="plain")
    with Client(server.url, keys.prefix, payload_keys=[KEY]) as secret:
        secret.queue("mail").push({"n": 2}, id="secret")
    client.queue("mail").push("no object", id="text")
    found = {row["_id"]: (row["n"], row["_misfit"]) for row in rows(reader(queue="mail", payloadSchema="n int"))}
    assert found.pop("plain") == (1, None)
    assert found.pop("secret") == (None, PROTECTED)
    assert "the payload" in found["text"][1]
    assert found["text"][1] != PROTECTED
    with pytest.raises(ParameterError, match="task secret: the payload is encrypted"):
        rows(reader(queue="mail", payloadSchema="n int", mode="FAILFAST"))


def test_values_beyond_a_decimal_or_a_date_are_misfits(client, reader):
    client.queue("mail").push({"d": "123456.5"})
    client.queue("mail").push({"d": 1.25})
    found = rows(reader(queue="mail", schema="d decimal(4,2), _misfit string"))
    assert [row["d"] for row in found] == [None, Decimal("1.25")]
    assert found[0]["_misfit"]


def test_bytes_that_are_no_text_come_with_replacement_characters_or_as_binary(client, reader):
    client.queue("mail").push(b"a\xff")
    client.queue("mail").push(b"b")
    assert [row["payload"] for row in rows(reader(queue="mail", columns="payload"))] == ["a�", "b"]
    assert [row["payload"] for row in rows(reader(queue="mail", schema="payload binary"))] == [b"a\xff", b"b"]


def test_halves_of_a_character_in_two_payloads_stay_apart(client, reader):
    client.queue("mail").push(b"\xc3")
    client.queue("mail").push(b"\xa9")
    assert [row["payload"] for row in rows(reader(queue="mail", columns="payload"))] == ["\ufffd", "\ufffd"]


def test_damage_is_left_out_or_null(client, reader, raw, keys):
    queue = client.queue("mail")
    first, second, third, fourth = (queue.push(n) for n in range(4))
    mail = keys.queue("mail")
    raw.delete(mail.task(first))
    raw.set(mail.task(second), "no hash")
    damage = {"enqueue_time": "soon", "retry_count": b"\xff", "priority": "1e99", "started_at": "nan"}
    raw.hset(mail.task(third), mapping=damage)
    found = {row["_id"]: row for row in rows(reader(queue="mail"))}
    assert set(found) == {third, fourth}
    assert (found[third]["_enqueue_time"], found[third]["_started_at"], found[third]["_retry_count"]) == (None, None, 0)


def test_an_item_that_moved_meanwhile_is_not_shown_in_its_old_queue(client, reader, raw, keys):
    queue = client.queue("flights/raw")
    moved = queue.push(1)
    read = reader(queue="flights/raw")
    planned = read.partitions()
    raw.hset(keys.queue("flights/raw").task(moved), "queue", "flights/clean")
    assert [batch for piece in planned for batch in read.read(piece)] == []


def test_a_task_with_the_id_of_one_in_history_is_not_taken_for_it(client, keys, clock, raw, reader):
    """It waited, and a report had it as succeeded: the hash of the one before had expired, its entry had not yet."""
    clock.set(NOW_MS)
    queue = client.queue("orders")
    queue.configure(history=3600)
    for one in ("again", "kept", "early"):
        queue.push({"of": "the first"}, id=one)
    clock.advance(1000)
    queue.commit_many(queue.reserve(2))
    clock.advance(-5000)  # the primary changed
    queue.commit_many(queue.reserve(1))
    clock.advance(9000)
    raw.delete(keys.queue("orders").task("again"))
    queue.push({"of": "the second"}, id="again")

    for columns in ("_id", "_id,_state,_enqueue_time,payload"):
        assert sorted(row["_id"] for row in rows(reader(history="orders", columns=columns))) == ["early", "kept"]
    assert [row["_id"] for row in rows(reader(queue="orders"))] == ["again"]
    queue.commit_many(queue.reserve(1))
    found = {row["_id"]: row["payload"] for row in rows(reader(history="orders"))}
    assert (len(found), found["again"]) == (3, '{"of":"the second"}')


def test_history_has_how_tasks_ended(client, clock, load):
    clock.set(NOW_MS)
    queue = client.queue("orders")
    queue.configure(history=timedelta(days=1))
    queue.push(1, id="a")
    queue.push(2, id="b")
    one, two = queue.reserve(2)
    clock.advance(1_500.25)
    one.commit({"sum": 3})
    two.commit()
    client.queue("orders").push(3)
    found = {row["_id"]: row for row in load(history="orders").collect()}
    assert set(found) == {"a", "b"}
    assert (found["a"]["_state"], found["a"]["_attempts"], found["a"]["_result"]) == ("succeeded", 1, '{"sum":3}')
    assert found["b"]["_result"] is None
    ended = (NOW + timedelta(milliseconds=1500.25)).replace(tzinfo=None)
    assert found["a"]["_finished_at"] == found["a"]["_when"] == ended
    since = fn.col("_finished_at") >= fn.lit(NOW + timedelta(seconds=1))
    assert load(history="orders").where(since).count() == 2
    assert load(history="orders").where(~since).count() == 0


def test_only_the_columns_asked_for_are_fetched(mail, server, raw, reader):
    read = reader(queue="mail", schema="_id string, _state string")
    assert len(rows(read)) == 4
    with raw.monitor() as seen:
        rows(read)
        raw.echo("that is all")
        commands = []
        while "that is all" not in (told := next(seen.listen())["command"]):
            commands.append(told)
    fetched = {word for told in commands if told.startswith("HMGET") for word in told.split()[2:]}
    assert fetched == {"queue"}


MISTAKES = [
    ({}, InvalidOption, "give exactly one of the two options"),
    ({"queue": "mail", "history": "mail"}, InvalidOption, "give exactly one of the two options"),
    ({"queeu": "mail"}, UnknownOption, "unknown option 'queeu' of a read from jobrunner; did you mean 'queue'"),
    ({"queue": "mail", "state": "wating"}, InvalidOption, "choose of waiting, scheduled, pending, dead"),
    ({"history": "mail", "state": "dead"}, InvalidOption, "leave out state"),
    ({"queue": "a b"}, InvalidOption, "is not allowed"),
    ({"queue": " , "}, InvalidOption, "give a name"),
    ({"queue": "mail", "columns": "_ids"}, InvalidOption, "did you mean '_id'"),
    ({"queue": "mail", "rowsPerPartition": "0"}, InvalidOption, "give a whole number from 1"),
    ({"queue": "mail", "columns": "_id,payload,_id"}, InvalidOption, "columns names '_id' twice"),
    ({"queue": "mail", "payloadSchema": " "}, InvalidOption, "give the fields of payloads"),
    ({"queue": "mail", "filters": "redis"}, InvalidOption, "choose one of spark, server"),
    ({"queue": "mail", "mode": "lax"}, InvalidOption, "choose one of PERMISSIVE, FAILFAST"),
]


@pytest.mark.parametrize(("options", "error", "message"), MISTAKES)
def test_a_wrong_option_says_what_is_right(options, error, message):
    with pytest.raises(ValueError, match=message) as told:
        batch_options(options)
    assert isinstance(told.value, error) or error is InvalidOption


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("_ids string", "did you mean '_id'"),
        ("_when string", "is timestamp_ltz, not string; cast it"),
        ("v variant", "payload column 'v': variant cannot be read"),
        ('`a"b` int', "payload columns: the name .* has a quote"),
        ("n int, n string", "payload columns: the name 'n' occurs twice"),
        ('o struct<`a"b`: int>', "payload column 'o': the name .* has a quote"),
        ("o struct<i: interval day>", "payload column 'o'"),
    ],
)
def test_a_column_that_cannot_be_is_refused(spark, schema, message):
    with pytest.raises(InvalidOption, match=message):
        shape_of(_parse_datatype_string(schema))


def test_instants_are_instants_also_where_spark_makes_timestamps_without_a_zone(spark, client, load, tmp_path):
    client.queue("mail").configure(history=3600)
    client.queue("mail").push_many([1, 2])
    (lease,) = client.queue("mail").reserve(1)
    lease.commit()
    expected = load(history="mail").collect()
    spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        assert load(history="mail").collect() == expected
        assert load(queue="mail", filters="server").where("_when is null").count() == 1
        assert spark.readStream.format("jobrunner").option("history", "mail").load().schema["_when"].dataType == LTZ
        assert archive(spark, client, str(tmp_path / "a"), lag_s=0).rows == {"mail": 1}
        assert read_archive(spark, str(tmp_path / "a"), since=utc_now() - timedelta(hours=1)).count() == 1
    finally:
        spark.conf.unset("spark.sql.timestampType")


def test_spark_tells_of_a_wrong_option_before_any_job(spark, load):
    with pytest.raises(AnalysisException, match="did you mean 'queue'") as told:
        load(queeu="mail")
    assert "Traceback" not in str(told.value)
    assert error_line(told.value).startswith("UnknownOption: unknown option 'queeu'")
    with pytest.raises(AnalysisException, match="is timestamp_ltz, not string"):
        load(queue="mail", schema="_when string").collect()


def test_a_queue_that_is_not_there_is_an_error(spark, client, load):
    client.queue("mail").push("a")
    with pytest.raises(AnalysisException, match="there is no queue 'mial'; did you mean 'mail'") as told:
        load(queue="mial").count()
    assert "Traceback" not in str(told.value)
    assert load(queue="mial,mail", missingQueues="ignore").count() == 1


def test_views_and_tables_of_sql_read_and_take_rows(spark, server, keys, client, tmp_path):
    client.queue("mail").push_many([{"n": 1}, {"n": "two"}])
    where = f"url '{server.url}', prefix '{keys.prefix}', queue 'mail'"
    with_queue = f"WITH (url='{server.url}', prefix='{keys.prefix}', queue='mail')"
    spark.sql(f"CREATE TEMPORARY VIEW mails USING jobrunner OPTIONS ({where}, payloadSchema 'n int')")
    spark.sql(
        f"CREATE TABLE mail_table USING jobrunner OPTIONS ({where}, payloadSchema 'n int', columns '_id') "
        f"LOCATION '{tmp_path}'"
    )
    try:
        assert [row.n for row in spark.sql("SELECT n FROM mails WHERE _misfit IS NULL").collect()] == [1]
        spark.sql(f"INSERT INTO mail_table {with_queue} SELECT 3 AS n, 'mail-3' AS _id")
        found = spark.sql("SELECT n FROM mail_table WHERE _id = 'mail-3'").collect()
        assert [row.n for row in found] == [3]
        assert [item.payload for item in client.queue("mail").pop(9)] == [{"n": 1}, {"n": "two"}, {"n": 3}]
    finally:
        spark.sql("DROP VIEW mails")
        spark.sql("DROP TABLE mail_table")


def test_a_password_is_in_no_plan_and_no_repr(spark, server, keys, capsys, caplog):
    url = server.url.replace("unix://", "unix://:hidden@")
    frame = spark.read.format("jobrunner").options(url=url, prefix=keys.prefix, queue="mail").load()
    plans = frame._jdf.queryExecution()
    assert "hidden" not in plans.logical().toString() + plans.analyzed().toString()
    settled = batch_options({"url": url, "queue": "mail"})
    assert "hidden" not in repr(settled)
    with pytest.raises(Exception) as told:
        frame.collect()
    assert "hidden" not in str(told.value)
    assert "hidden" not in caplog.text + "".join(capsys.readouterr())


def test_a_session_that_is_known_already_follows_the_server_that_is_configured_later(spark, current, start_server):
    register(spark)
    other = start_server()
    with Client(f"unix://{other.socket}", "late") as late:
        late.queue("mails").push({"n": 1})
    before = spark.read.format("jobrunner").options(queue="mails", missingQueues="ignore").load()

    configure(f"unix://{other.socket}", "late")

    assert spark.read.format("jobrunner").option("queue", "mails").load().count() == 1
    assert before.count() == 0, "it was made for the server before"


def test_a_session_whose_java_is_gone_does_not_keep_a_program_from_its_server(spark, current, server, monkeypatch):
    monkeypatch.setattr("jobrunner.spark.data_source._registered", {})  # other tests had sessions of their own
    register(spark)
    monkeypatch.setattr("jobrunner.spark.data_source.is_over", lambda _: 1 / 0)

    with capture_logs() as logs:
        made = configure(server.url, "elsewhere")

    assert current_client() is made
    assert [(one["error"], one["remedy"]) for one in logs] == [("division by zero", "register(spark)")]


def test_reads_writes_and_streams_go_to_the_server_that_the_process_configured(spark, current, tmp_path):
    """Spark makes the source in a process of its own, which knows nothing of `configure(...)`."""
    register(spark)
    mails, copies = current.queue("mails"), current.queue("copies")
    mails.configure(history=3600)
    mails.push_many([{"n": n} for n in range(5)])
    mails.commit_many(mails.reserve(2))

    found = spark.read.format("jobrunner").option("queue", "mails").option("payloadSchema", "n int").load()
    assert sorted(row.n for row in found.collect()) == [2, 3, 4]
    found.select("n").write.format("jobrunner").option("queue", "copies").mode("append").save()
    finished = spark.readStream.format("jobrunner").option("history", "mails").option("columns", "payload").load()
    query = finished.writeStream.format("jobrunner").option("queue", "copies")
    query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert sorted(item.payload["n"] for item in copies.pop(9)) == [0, 1, 2, 3, 4]

    elsewhere = spark.read.format("jobrunner").options(queue="mails", prefix="another", missingQueues="ignore")
    assert elsewhere.load().count() == 0, "an option wins"
