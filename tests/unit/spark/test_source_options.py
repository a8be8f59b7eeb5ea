"""Options of the data source: queues that are not there, `_misfit`, and the options of a table in Spark's catalog."""

import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from jobrunner.errors import InvalidName, InvalidOption
from jobrunner.spark.source.options import batch_options, default_schema, shape_of, stream_options
from jobrunner.spark.source.table import options_of_table, stored_options, storing_options

THERE = ["flights/raw", "flights/late", "orders"]


@pytest.mark.parametrize(
    ("queue", "message"),
    [
        ("ordres", "there is no queue 'ordres'; did you mean 'orders'"),
        ("orders,flights/rew", "there is no queue 'flights/rew'; did you mean 'flights/raw'"),
        ("fligths/*", r"no queue matches 'fligths/\*'"),
    ],
)
def test_a_queue_that_is_not_there_is_an_error_that_names_the_nearest(queue, message):
    options = batch_options({"queue": queue})
    with pytest.raises(InvalidOption, match=message):
        options.check_there(THERE)
    batch_options({"queue": queue, "missing_queues": "ignore"}).check_there(THERE)


@pytest.mark.parametrize("queue", ["orders", "flights/*,orders", "*"])
def test_queues_that_are_there_are_no_error(queue):
    batch_options({"queue": queue}).check_there(THERE)


def test_exact_queues_are_read_alone_and_may_be_shards():
    """An archive has an instant of its own for each shard; a name of a queue means all its shards in other reads."""
    registered = ["orders", "orders@1", "orders@2"]
    assert batch_options({"queue": "orders"}).select(registered) == registered
    exact = batch_options({"queue": "orders,orders@2", "exactQueues": "true", "missingQueues": "ignore"})
    assert exact.select(registered) == ["orders", "orders@2"]
    with pytest.raises(InvalidName):
        batch_options({"queue": "orders@2"})


@pytest.mark.parametrize(
    ("ddl", "told"),
    [
        ("n", r"'n', field 'n' has no type: give"),
        ("n int, town", "field 'town' has no type"),
        ("at struct<x:int,y:int>, n", "field 'n' has no type"),
        ("n int,, m int", "'n int,, m int': give the fields"),
        ("n int,", "'n int,': give the fields"),
        (":int", "field ':int' has no type"),
    ],
)
def test_a_field_without_a_type_is_named_with_the_option(ddl, told):
    with pytest.raises(InvalidOption, match=f"payloadSchema={told}" if told.startswith("'") else told):
        batch_options({"queue": "q", "payloadSchema": ddl})


@pytest.mark.parametrize(
    "ddl",
    [
        "n int", "n:int", "n : int", "`a, b` int, c map<string,array<int>>", "n decimal(10,2) NOT NULL",
        "n int COMMENT 'a, b (c'", "s struct<x: int, y: struct<z: int>>, t timestamp", "`` int",
        'n int COMMENT "it\'s, x"',
        "a STRING COLLATE UTF8_LCASE, b Timestamp_NTZ, c long, d varchar(5), e interval day, f date, g binary",
        "a byte, b short, c real, d dec(3), e numeric, f double, g boolean, h float, i variant, j time(3)",
    ],
)  # fmt: skip
def test_fields_that_have_types_are_left_to_spark(ddl):
    assert batch_options({"queue": "q", "payloadSchema": ddl}).payload_schema == ddl


@pytest.mark.parametrize(
    ("ddl", "wanted"),
    [
        ("n intt", "names the type 'intt', which Spark does not have; did you mean 'int'"),
        ("a decimal(5,2), s: strnig COMMENT 'a, b'", "names the type 'strnig', .* did you mean 'string'"),
        ("a uuid", "names the type 'uuid', .* known are string, int"),
    ],
)
def test_a_type_that_spark_does_not_have_is_named_with_the_option(ddl, wanted):
    with pytest.raises(InvalidOption, match=f"payloadSchema=.* {wanted}"):
        batch_options({"queue": "q", "payloadSchema": ddl})


def test_fields_that_are_not_null_are_required_and_their_columns_hold_the_null_of_a_misfit():
    """Spark ended the read at the null of the first payload that did not fit, and folded `n IS NULL` into false."""
    ddl = "n int NOT NULL, `a, ``b` map<string,struct<x:int NOT NULL>> not  null COMMENT 'x NOT NULL, y', c: date"
    options = batch_options({"queue": "q", "payloadSchema": ddl, "columns": "_id"})
    assert default_schema(options) == (
        "n int, `a, ``b` map<string,struct<x:int NOT NULL>> COMMENT 'x NOT NULL, y', c: date, _id string"
    )
    schema = StructType([StructField(name, IntegerType()) for name in ("n", "a, `b", "c")])
    shape = shape_of(schema, options.payload_schema)
    assert [one.nullable for one in shape.fields] == [False, False, True]
    assert all(one.nullable for one in shape.schema)


@pytest.mark.parametrize("given", ["²", "٣", "9" * 5000, "0", "-1", ""])
def test_a_size_of_partitions_that_is_no_number_is_refused_with_its_option(given):
    with pytest.raises(InvalidOption, match=r"rowsPerPartition='.{0,200}: give a whole number from 1$"):
        batch_options({"queue": "q", "rowsPerPartition": given})


def test_an_empty_server_and_streams_that_may_wait_need_no_queue():
    batch_options({"queue": "*"}).check_there([])
    stream_options({"history": "later", "missingQueues": "ignore"}).check_there([])
    with pytest.raises(InvalidOption, match=r"no queue 'later'; .* \(missingQueues=ignore waits for it\)"):
        stream_options({"history": "later"}).check_there([])
    with pytest.raises(InvalidOption, match="the server has 0 queues, none like it"):
        batch_options({"history": "orders"}).check_there([])
    with pytest.raises(InvalidOption, match="missingQueues='maybe': choose one of fail, ignore"):
        batch_options({"queue": "orders", "missingQueues": "maybe"})


def test_the_column_for_misfits_needs_a_schema_of_payloads():
    given = {"queue": "orders", "columns": "_id,_misfit"}
    with pytest.raises(InvalidOption, match="'_misfit', which needs the option payloadSchema"):
        batch_options(given)
    assert default_schema(batch_options(given | {"payloadSchema": "n int"})) == "n int, _id string, _misfit string"


def column(comment):
    return StructField("_id", StringType(), True, {"comment": comment} if comment else {})


def test_the_options_of_a_table_survive_in_the_comment_of_its_last_column():
    given = {"provider": "jobrunner", "owner": "root", "queue": "it's \\ \"x\"", "option.queue": "it's \\ \"x\"",
             "option.payloadschema": "n int", "x.y": "1"}  # fmt: skip
    options = options_of_table(given)
    assert options == {"queue": "it's \\ \"x\"", "payloadschema": "n int"}
    ddl = storing_options("n int, _id string", options)
    assert ddl.startswith("n int, _id string COMMENT 'jobrunner: ")
    comment = ddl.partition(" COMMENT '")[2][:-1].replace("\\'", "'").replace("\\\\", "\\")  # as Spark reads a text
    schema = StructType([StructField("n", IntegerType()), column(comment)])
    assert stored_options(schema) == options
    assert stored_options(schema, writes=True) == {"queue": options["queue"]}
    assert stored_options(StructType([column(""), column("mine")])) == {}


def test_what_is_no_table_keeps_its_options_and_a_table_keeps_no_password():
    assert options_of_table({"queue": "orders", "owner": "me"}) is None
    with pytest.raises(InvalidOption, match="set JOBRUNNER_URL") as told:
        options_of_table({"provider": "jobrunner", "option.url": "redis://:secret@host"})
    assert "secret" not in str(told.value)
