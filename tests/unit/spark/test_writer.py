"""Writes rows into a queue step by step, as Spark uses a writer, without Spark."""

import copy
import pickle
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema

from jobrunner.broker.calls.server import FORMAT
from jobrunner.client.batches import Batches
from jobrunner.client.client import broker_of
from jobrunner.coordinator.recovery import roll_forward
from jobrunner.errors import (
    BatchLost,
    InvalidName,
    InvalidOption,
    NewerFormat,
    ParameterError,
    PayloadTooLarge,
    UnknownJob,
    UnknownOption,
)
from jobrunner.jobs.decorator import job
from jobrunner.jobs.registry import forget
from jobrunner.spark.sink.writer import BatchWriter
from tests.support.waiting import wait_for

ORDERS = {"n": [1, 2, 3], "name": ["ada", "bob", None], "x": [0.5, 1.0, -2.0]}


class Write:
    """One write into queue orders: `parts` are the tables of the Spark tasks."""

    def __init__(self, server: Any, keys: Any, schema: pa.Schema, **options: str) -> None:
        given = {"url": server.url, "prefix": keys.prefix, "queue": "orders"} | options
        given = {name: value for name, value in given.items() if value}
        made = BatchWriter(from_arrow_schema(schema), given, False)
        self.writer = pickle.loads(pickle.dumps(made))  # as it travels

    def stage(self, part: pa.Table) -> Any:
        return self.writer.write(iter(part.to_batches(max_chunksize=2)))


@pytest.fixture
def write(server, keys):
    """write({"n": [1, 2]}, type="Send"): writes these columns as two Spark tasks do."""

    def run(columns, **options):
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        made = Write(server, keys, table.schema, **options)
        middle = len(table) // 2
        made.writer.commit([made.stage(table[:middle]), made.stage(table[middle:])])
        return made

    return run


@pytest.fixture
def send():
    """A job `Send`, on the queue mail."""

    @job(queue="mail", name="Send", max_attempts=2, priority=2, keepalive=9, partition_by="to")
    def send(to: str, count: int = 1, at: datetime | None = None, tags: list[str] = []) -> None:  # noqa: B006
        """Sends."""

    yield send
    forget("Send")


def tasks(client, queue="orders"):
    return client.queue(queue).tasks("waiting", limit=1000)


def payloads(client, queue="orders"):
    return [msgspec.json.decode(task.raw_payload) for task in tasks(client, queue)]


def leftovers(raw, keys):
    """Keys of writes, but for the marks of those that are done."""
    found = set(raw.scan_iter(match=f"{keys.prefix}:*:batch:*", count=1000))
    return {key for key in found if raw.type(key) != b"hash" or raw.hget(key, "state") != b"done"}


def test_nothing_is_written_below_a_newer_format(server, keys, raw):
    raw.set(keys.format, FORMAT + 1)

    with pytest.raises(NewerFormat):
        Write(server, keys, pa.table(ORDERS).schema)

    assert raw.keys(f"{keys.prefix}:*") == [keys.format]


def test_each_row_is_a_task_whose_payload_has_the_columns(write, client, raw, keys, audit):
    write(ORDERS)

    assert payloads(client) == [
        {"n": 1, "name": "ada", "x": 0.5},
        {"n": 2, "name": "bob", "x": 1.0},
        {"n": 3, "name": None, "x": -2.0},
    ]
    (lease,) = client.queue("orders").reserve(1)
    assert lease.payload == {"n": 1, "name": "ada", "x": 0.5}
    assert client.queues() == ["orders"]
    assert leftovers(raw, keys) == set()
    audit("orders")


def test_values_of_any_type_have_their_json_form(write, client):
    at = datetime(2026, 11, 20, 8, tzinfo=UTC)
    columns = {
        "odd name": pa.array([[1, 2]]),
        "at": pa.array([at], pa.timestamp("us", "UTC")),
        "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
        "row": pa.array([{"b": True}]),
        "day": pa.array([at.date()]),
    }
    write(columns)
    assert payloads(client) == [
        {"odd name": [1, 2], "at": "2026-11-20T08:00:00Z", "map": {"a": 1}, "row": {"b": True}, "day": "2026-11-20"}
    ]


def test_values_that_python_or_json_would_change_are_kept(write, client):
    """A double that is no number became null, a variant its bytes in base64, an offset lost its seconds."""
    nan, inf, zone = float("nan"), float("inf"), "Europe/Berlin"
    variant = spark.VariantVal.parseJson('{"a": [1, null, 1.50], "b": "ä"}')
    fields = [pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})]
    old = datetime(1890, 1, 1, tzinfo=ZoneInfo(zone))
    columns = {
        "x": pa.array([nan, None, 0.5]),
        "f": pa.array([inf, -inf, -0.0], pa.float32()),
        "l": pa.array([[1.0, None], [nan, None], None]),
        "m": pa.array([[("k", inf), ("n", None)], [], None], pa.map_(pa.string(), pa.float64())),
        "s": pa.array([{"a": 1.0}, {"a": -inf}, {"a": None}]),
        "v": pa.array([{"value": variant.value, "metadata": variant.metadata}, None, None], pa.struct(fields)),
        "at": pa.array([old, None, old], pa.timestamp("us", zone)),
        "ats": pa.array([[old], None, []], pa.list_(pa.timestamp("us", zone))),
    }
    write(columns)
    first, second, third = [task.raw_payload.decode() for task in tasks(client)]
    assert first == (
        '{"x":"NaN","f":"Infinity","l":[1.0,null],"m":{"k":"Infinity","n":null},"s":{"a":1.0},'
        '"v":{"a":[1,null,1.50],"b":"ä"},"at":"1889-12-31T23:06:32Z","ats":["1889-12-31T23:06:32Z"]}'
    )
    assert second == (
        '{"x":null,"f":"-Infinity","l":["NaN",null],"m":{},"s":{"a":"-Infinity"},"v":null,"at":null,"ats":null}'
    )
    assert third == (
        '{"x":0.5,"f":-0.0,"l":null,"m":null,"s":{"a":null},"v":null,"at":"1889-12-31T23:06:32Z","ats":[]}'
    )


def test_a_value_that_python_does_not_have_names_column_and_row(write, client):
    at = pa.array([0, 0, 0, 253402300800000000], pa.timestamp("us", "UTC"))
    with pytest.raises(InvalidOption, match=r"row 2 of its partition: column 'at' has no JSON form: .*out of range"):
        write({"n": [1, 2, 3, 4], "at": at})
    assert client.queue("orders").counts()["waiting"] == 0


def test_one_column_payload_is_the_payload_as_it_is_stored(write, client):
    write({"payload": ['{"a": 1}', "[2]", None]})
    assert [task.raw_payload for task in tasks(client)] == [b'{"a": 1}', b"[2]", b"null"]
    with pytest.raises(InvalidOption, match=r"row 2 of its partition .*column 'payload' is no JSON"):
        write({"payload": ["1", "2", "3", "{"]})


@pytest.mark.parametrize("bad", ["[" * 3000 + "]" * 3000, b'"\xff"'])
def test_a_payload_that_no_reader_reads_names_its_row(write, client, bad):
    """JSON too deep to read, and text that is no UTF-8."""
    good = b"1" if isinstance(bad, bytes) else "1"
    with pytest.raises(InvalidOption, match=r"row 2 of its partition .*column 'payload' is no JSON"):
        write({"payload": [good, good, good, bad]})
    assert client.queue("orders").counts()["waiting"] == 0


def test_a_map_that_has_a_key_twice_names_column_and_row(write):
    twice = pa.array([[("a", 1)]] * 3 + [[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64()))
    with pytest.raises(InvalidOption, match=r"row 2 of its partition: column 'm' has no JSON form: .*a"):
        write({"n": [1, 2, 3, 4], "m": twice})


def test_columns_are_the_parameters_of_a_job_and_its_options_hold(write, client, send, raw):
    write({"to": ["ada", "bob"], "count": [3, 4]}, type="Send", queue="")

    found = tasks(client, "mail")
    assert [(task.type, task.raw_payload) for task in found] == [
        ("Send", b'{"to":"ada","count":3}'),
        ("Send", b'{"to":"bob","count":4}'),
    ]
    told = [found[0].fields[name] for name in ("max_attempts", "keepalive_ms", "priority", "key")]
    assert told == [b"2", b"9000", b"2", b"ada"]
    assert "encoding" not in found[0].fields


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"to": ["ada", "bob", "cy", 5]}, "no strings"),
        ({"to": ["ada", "bob", "cy", None]}, "column 'to' does not fit job 'Send'"),
        ({"to": ["a", "b", "c", "d"], "count": [1, 2, 3, None]}, "column 'count' does not fit"),
        ({"to": ["a", "b", "c", "d"], "at": ["2026-11-20T08:00Z", None, None, "soon"]}, "column 'at' does not fit"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_column_and_row(write, client, send, raw, keys, server, columns, said):
    if said == "no strings":
        columns, said = {"to": [1, 2, 3, 4]}, "column 'to' does not fit"
    with pytest.raises(ParameterError, match=rf"row [12] of its partition .*{said}"):
        write(columns, type="Send", queue="")
    assert client.queue("mail").counts()["waiting"] == 0


def test_columns_with_an_underscore_steer_single_tasks(write, client):
    at = datetime.now(UTC) + timedelta(hours=1)
    write(
        {
            "n": [1, 2, 3, 4],
            "_id": ["a", "b", None, "d"],
            "_priority": [2, None, 0, None],
            "_delay": [None, 60, 0, None],
            "_at": pa.array([None, None, None, at], pa.timestamp("us", "UTC")),
            "_headers": pa.array([[("trace", "7")], None, [], None], pa.map_(pa.string(), pa.string())),
            "_partition": ["tenant", None, None, None],
        }
    )
    first, third = tasks(client)
    assert (first.id, first.raw_payload, first.priority) == ("a", b'{"n":1}', 2)
    assert first.fields["headers"] == b'{"trace":"7"}'
    assert first.fields["key"] == b"tenant"
    assert (third.raw_payload, third.priority) == (b'{"n":3}', 0)
    later = client.queue("orders").tasks("scheduled")
    assert [task.id for task in later] == ["b", "d"]
    assert abs((later[1].when - at).total_seconds()) < 0.001


def test_the_last_instant_there_is_stays_readable(write, client):
    last = datetime.max.replace(tzinfo=UTC)
    write({"n": [1], "_at": pa.array([last], pa.timestamp("us", "UTC"))})
    (task,) = client.queue("orders").tasks("scheduled")
    assert task.when == last.replace(microsecond=0)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("_priority", [1, 3]), ("_delay", [0.0, float("nan")]), ("_delay", [0.0, 1e18]),
        ("_delay", [0.0, float("-inf")]),
        ("_partition", ["a", "x" * 300]),
        ("_headers", ["{}", "[1]"]),
        ("_headers", ["{}", f'{{"trace": "{"x" * (64 << 10)}"}}']),
    ],
)
def test_a_wrong_steering_value_is_an_error_that_names_column_and_row(write, client, column, values):
    with pytest.raises(InvalidOption, match=rf"row 1 of its partition .*column '{column}'"):
        write({"n": [1, 2], column: values})
    assert client.queue("orders").counts()["waiting"] == 0


def test_ids_from_columns_make_a_second_write_harmless(write, client):
    for _ in range(2):
        write(ORDERS, idFrom="n,name")
    write(ORDERS | {"x": [9.0, 9.0, 9.0]}, idFrom="n,name")
    assert len(tasks(client)) == 3
    assert payloads(client)[0]["x"] == 0.5

    write({"no": ["a1", "a2"], "y": [1, 2]}, id="no")
    write({"no": ["a2", "a3"], "y": [5, 6]}, id="no")
    assert [task.id for task in tasks(client)[3:]] == ["a1", "a2", "a3"]
    assert payloads(client)[4] == {"no": "a2", "y": 2}
    with pytest.raises(InvalidName, match=r"row 1 of its partition .*column 'no'"):
        write({"no": ["a1", "b c"], "y": [1, 2]}, id="no")


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"queeu": "x"}, UnknownOption, "did you mean 'queue'"),
        ({"queue": ""}, InvalidOption, "queue is missing"),
        ({"queue": "a b"}, InvalidName, "queue name"),
        ({"type": "Sned"}, UnknownJob, "did you mean 'Send'"),
        ({"id": "n", "idFrom": "n"}, InvalidOption, "give one of them"),
        ({"id": "m"}, UnknownOption, "unknown column 'm' of the rows"),
        ({"type": "Send"}, UnknownOption, "unknown parameter 'n' of job 'Send'"),
    ],
)
def test_what_is_wrong_with_options_is_said_before_anything_is_written(write, send, raw, options, error, said):
    with pytest.raises(error, match=said):
        write({"n": [1]}, **options)
    assert raw.dbsize() == 0


@pytest.mark.parametrize(
    ("columns", "options", "error", "said"),
    [
        ({"count": [1]}, {"type": "Send"}, ParameterError, "needs a column for its parameter 'to'"),
        ({"n": [1], "_prio": [1]}, {}, InvalidOption, "column '_prio' .*did you mean '_priority'"),
        ({"n": [1], "_zone": ["x"]}, {}, InvalidOption, r"known are _id, .*, _partition\. Other columns must"),
        (
            {"n": [1], "_priority": ["high"]},
            {},
            InvalidOption,
            "'_priority' is string; it must be a whole number",
        ),
        ({"_priority": [1]}, {}, InvalidOption, "no column for the payload"),
        ({}, {}, InvalidOption, "the rows have no column, and so none would arrive"),
        ({}, {"type": "Send"}, InvalidOption, "the rows have no column, and so none would arrive"),
        ({"n": [1], "_id": ["a"]}, {"idFrom": "n"}, InvalidOption, "'_id' and the option"),
        (
            {"m": pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", pa.int32())]), pa.int32()))},
            {},
            InvalidOption,
            "column 'm': keys of type struct<a:int> have no JSON form; make them strings",
        ),
        (
            {"l": pa.array([], pa.list_(pa.struct([("a", pa.int32()), ("a", pa.int32())])))},
            {},
            InvalidOption,
            "column 'l': it has the field 'a' twice",
        ),
        ({'a"b': [1]}, {}, InvalidOption, "cannot be fields of a payload: the name .* has a quote"),
    ],
)
def test_what_is_wrong_with_columns_is_said_before_anything_is_written(write, send, raw, columns, options, error, said):
    with pytest.raises(error, match=said):
        write(columns, **options)
    assert raw.dbsize() == 0


def test_only_appending_makes_sense(server, keys, raw):
    with pytest.raises(InvalidOption, match='mode\\("append"\\)'):
        BatchWriter(spark.StructType(), {"queue": "orders", "url": server.url, "prefix": keys.prefix}, True)
    assert raw.dbsize() == 0


def test_a_payload_above_the_limit_ends_the_write(write, client, monkeypatch, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.jobrunner]\npayload_limit = 50\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PayloadTooLarge, match="row 1 of its partition"):
        write({"text": ["short", "x" * 60]})
    assert client.queue("orders").counts()["waiting"] == 0


def test_a_job_that_is_unique_is_not_written_in_bulk(write, raw):
    @job(queue="mail", name="WrittenOnce", unique=True)
    def once(to: str) -> None:
        """Once."""

    try:
        with pytest.raises(InvalidOption, match="unique"):
            write({"to": ["a"]}, type="WrittenOnce")
    finally:
        forget("WrittenOnce")
    assert raw.dbsize() == 0


def test_what_a_task_that_does_not_count_staged_is_not_there(server, keys, client, raw):
    table = pa.table({"n": list(range(10))})
    made = Write(server, keys, table.schema)
    made.stage(table)  # a first attempt, killed before it reported to Spark
    counted = made.stage(table)
    made.stage(table[:4])  # a speculative one
    assert client.queue("orders").counts()["waiting"] == 0, "nothing is seen before the decision"

    made.writer.commit([counted, None])

    assert [one["n"] for one in payloads(client)] == list(range(10))
    assert leftovers(raw, keys) == set()


def test_a_failed_write_leaves_nothing_and_a_late_task_of_it_is_refused(server, keys, client, raw):
    table = pa.table({"n": [1, 2]})
    made = Write(server, keys, table.schema)
    done = made.stage(table)

    made.writer.abort([done, None])

    assert client.queue("orders").counts()["waiting"] == 0
    assert leftovers(raw, keys) == set()
    with pytest.raises(BatchLost):
        made.stage(table)
    with pytest.raises(BatchLost):
        made.writer.commit([done])
    assert leftovers(raw, keys) == set()


def test_a_write_whose_driver_died_keeps_its_rows_for_an_hour_and_ten_minutes(server, keys, client, raw):
    made = Write(server, keys, pa.schema([("n", pa.int64())]))
    orders = keys.queue("orders")
    (batch,) = raw.zrange(orders.finishing, 0, -1)
    opened_at = float(raw.hget(orders.batch + batch, "ends")) - 86_400_000  # Spark may compute for long by now

    made.stage(pa.table({"n": [1, 2]}))
    assert leftovers(raw, keys) != set()
    renewed_at = float(raw.hget(orders.batch + batch, "ends")) - 3_600_000
    assert opened_at <= renewed_at < opened_at + 3_600_000
    assert raw.zscore(orders.finishing, batch) == renewed_at + 4_200_000

    raw.zadd(orders.finishing, {batch: 1})  # as if the time had passed
    roll_forward(Batches(broker_of(client), orders), slices=10)
    assert leftovers(raw, keys) == set()


def test_a_spark_task_renews_the_lease_while_it_waits_for_its_next_rows(server, keys, raw, monkeypatch):
    monkeypatch.setattr("jobrunner.spark.sink.held_lease._RENEWED_EACH_S", 0.001)
    table = pa.table({"n": [1, 2]})
    made = Write(server, keys, table.schema)
    orders = keys.queue("orders")
    (batch,) = raw.zrange(orders.finishing, 0, -1)

    def slow_rows():
        yield from table.to_batches()
        for _ in range(3):
            ends = raw.hget(orders.batch + batch, "ends")
            wait_for(lambda ends=ends: raw.hget(orders.batch + batch, "ends") > ends)
        yield from table.to_batches()

    assert made.writer.write(slow_rows()).rows == 4
    assert not [one for one in threading.enumerate() if one.name.startswith("jobrunner-write-")]


def test_a_spark_task_of_a_write_that_was_taken_back_computes_nothing(server, keys, client, raw):
    made = Write(server, keys, pa.schema([("n", pa.int64())]))
    made.writer.abort([None])

    def rows():
        pytest.fail("Spark computed rows for nothing")
        yield

    with pytest.raises(BatchLost):
        made.writer.write(rows())


def test_abort_behind_a_commit_that_spark_did_not_hear_of_takes_nothing_back(server, keys, client, raw, monkeypatch):
    table = pa.table({"n": [1, 2, 3]})
    made = Write(server, keys, table.schema)
    done = made.stage(table)

    def broken(lease):
        raise ConnectionError("the driver was cut off behind the decision")

    monkeypatch.setattr("jobrunner.spark.sink.writer._roll_forward", broken)
    with pytest.raises(ConnectionError):
        made.writer.commit([done])
    made.writer.abort([done])
    monkeypatch.undo()

    made.writer.commit([done])  # or any worker's sweep
    assert len(tasks(client)) == 3
    assert leftovers(raw, keys) == set()


def test_a_full_queue_takes_the_rest_as_room_comes(server, keys, client, monkeypatch):
    monkeypatch.setattr("jobrunner.spark.sink.writer._WAITED_FOR_ROOM_S", 0.0)
    client.queue("orders").configure(max_size=2)
    table = pa.table({"n": [1, 2, 3]})
    made = Write(server, keys, table.schema)
    made.writer.commit([made.stage(table)])
    assert len(tasks(client)) == 2

    client.queue("orders").pop(2)
    made.writer.commit([])  # any holder; in production a worker's sweep
    assert [one["n"] for one in payloads(client)] == [3]


def test_the_url_is_in_no_text_of_the_options(server, keys):
    made = Write(server, keys, pa.schema([("n", pa.int64())]))
    assert server.url not in repr(made.writer._options)
    assert server.url not in repr(copy.copy(made.writer))
