"""The columns that Python reads are those that Spark would parse."""

import pyarrow as pa

from jobrunner.spark.payload_columns import PayloadTexts, payload_reader
from jobrunner.spark.station.payload_shape import arrow_schema, shape_of, spark_schema

SCHEMA = (
    "b tinyint, s smallint, n int comment 'how many', l bigint, d double, ok boolean, `a word` string, day date, "
    "at timestamp, payload string"
)
PAYLOADS = [
    b"{}",
    b'{"b": -128, "s": 32767, "n": -2147483648, "l": 9223372036854775807, "ok": false}',
    b'{"d": 0.1, "n": null, "more": {"x": [1, 2]}}',
    b'{"d": 9007199254740993}',
    b'{"d": "-Infinity"}',
    b'{"d": "NaN"}',
    b'{"d": "+INF"}',
    b'{"d": 1e300}',
    b'{"d": 2.2250738585072011e-308}',
    b'{"d": -0.0, "a word": "a\\u0000b"}',
    b'{"a word": "", "payload": "\\u00e4 \xe2\x82\xac \\ud83d\\ude00 \\n"}',
    b'{"day": "1969-02-28", "at": "2013-07-01T12:00:00"}',
    b'{"day": "9999-12-31", "at": "2013-03-10T02:30:00"}',
    b'{"at": "2013-11-03T01:30:00"}',
    b'{"at": "2013-01-01T05:00:00.000001+02:00"}',
    b'{"at": "1901-01-01T00:00:00Z"}',
    b'{"at": "1969-12-31T23:59:59.9999999Z", "a word": "1969-12-31T23:59:59.9999999Z"}',
    b'{"at": "2013-01-01T00:00:00.123456789+05:30"}',
    b' {"n" : 1 ,\n "at": "2013-01-01T00:00:00.5Z"}\t',
    b'{"n": 1, "n": 2}',
]


def test_both_ways_make_the_same_rows(spark):
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
        return frame.schema.jsonValue(), [str(row) for row in shown.orderBy(shown._id.cast("int")).collect()]

    def where_spark_runs(table, schema):
        return spark.range(0, 1, 1, 1).mapInArrow(lambda _: iter(table.to_batches()), schema)

    by_columns, by_text = payload_reader(shape.columns), PayloadTexts(shape.columns)
    assert by_columns.by_columns
    wanted = rows_by(by_text)
    for made in (rows_by(by_columns), rows_by(by_columns, where_spark_runs)):
        assert made[0] == wanted[0]
        assert [pair for pair in zip(made[1], wanted[1], strict=True) if pair[0] != pair[1]] == []
