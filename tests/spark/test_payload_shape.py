"""The columns that Python reads are those that Spark would parse."""

import pyarrow as pa
import pytest

from jobrunner.spark.payload_columns import PayloadTexts, payload_reader
from jobrunner.spark.station.payload_shape import arrow_schema, shape_of, spark_schema

SCHEMA = (
    "b tinyint, s smallint, n int, l bigint, f float, d double, ok boolean, `a word` string, day date, at timestamp, "
    "payload string"
)
PAYLOADS = [
    b"{}",
    b'{"b": -128, "s": 32767, "n": -2147483648, "l": 9223372036854775807, "ok": false}',
    b'{"f": 0.1, "d": 0.1, "n": null, "more": {"x": [1, 2]}}',
    b'{"f": 5, "d": 9007199254740993}',
    b'{"f": "NaN", "d": "-Infinity"}',
    b'{"d": "+INF", "f": "Infinity"}',
    b'{"d": 1e300, "f": 1e300}',
    b'{"d": -0.0, "f": 1e-3, "a word": "a\\u0000b"}',
    b'{"a word": "", "payload": "\\u00e4 \xe2\x82\xac \\ud83d\\ude00 \\n"}',
    b'{"day": "1969-02-28", "at": "2013-07-01T12:00:00"}',
    b'{"day": "9999-12-31", "at": "2013-03-10T02:30:00"}',
    b'{"at": "2013-11-03T01:30:00"}',
    b'{"at": "2013-01-01T05:00:00.000001+02:00"}',
    b'{"at": "1901-01-01T00:00:00Z"}',
    b' {"n" : 1 ,\n "at": "2013-01-01T00:00:00.5Z"}\t',
    b'{"n": 1, "n": 2}',
]


@pytest.fixture
def zone(spark, request):
    """The session's time zone while a test runs."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"], indirect=True)
def test_both_ways_make_the_same_rows(spark, zone):
    shape = shape_of(SCHEMA, "flights/clean")

    def rows_by(reader, make=lambda table, _: spark.createDataFrame(table)):
        arrays, misfits = reader.read(PAYLOADS)
        assert not misfits
        count = len(PAYLOADS)
        ids = [str(number) for number in range(count)]
        own = [ids, ["t"] * count, [1] * count, [None] * count, ['{"a":"b"}'] * count]
        schema = arrow_schema(reader)
        arrays += [pa.array(values, kind) for values, kind in zip(own, schema.types[-5:], strict=True)]
        frame = shape.dress(make(pa.Table.from_arrays(arrays, schema=schema), spark_schema(reader)), reader)
        shown = frame.selectExpr("*", "unix_micros(at) AS us").drop("at")
        return shown.columns, [str(row) for row in shown.orderBy(shown._id.cast("int")).collect()]

    def where_spark_runs(table, schema):
        return spark.range(0, 1, 1, 1).mapInArrow(lambda _: iter(table.to_batches()), schema)

    by_columns, by_text = payload_reader(shape.columns, zone), PayloadTexts(shape.columns)
    assert by_columns.by_columns
    wanted = rows_by(by_text)
    for made in (rows_by(by_columns), rows_by(by_columns, where_spark_runs)):
        assert made[0] == wanted[0]
        assert [pair for pair in zip(made[1], wanted[1], strict=True) if pair[0] != pair[1]] == []
