"""The columns that Python reads are those that Spark would parse."""

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows

from jobrunner.errors import InvalidOption
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


VALUES: dict[str, list[Any]] = {
    "decimal(5,2)": [999.994, 999.995, -999.995, "1,000.5", "1,0", "1_0", " 1", "NaN", "", ".5", "5.", "1e2", 1e300],
    "decimal(38,18)": [12345678901234567890.5, 123456789012345678901, "12345678901234567890.123456789012345678"],
    "float": [1e39, 3.4028235e38, "NaN", "x"],
    "binary": ["", "aGk=", "aGk", "a===", "aG k=", "no base64!", "é"],
    "timestamp_ntz": ["2026-01-31T23:59:59", "2026-01-31 23:59:59.5", "2026-01-31T23:59:59Z", "2026-01-31t23:59:59"],
    "timestamp": ["2026-01-31T23:59:59z", "2026-01-31T23:59:59+18:00", "2026-01-31T23:59:59-18:30", "2026-01-31T23:59"],
    "time(6)": ["23:59:59", "23:59:59.999999", "23:59:59.9999999", "24:00:00", "23:59:59Z", "x"],
    "array<decimal(3,1)>": [[1.5, None], [99.95], ["x"]],
    "map<string,timestamp_ntz>": [{"a": None}, {"a": "2026-01-31T23:59:59Z"}],
}


def test_spark_parses_whatever_fits(spark):
    """A value that it does not parse would fail the whole batch, as the mode is FAILFAST."""
    kinds = dict(enumerate(VALUES))
    schema = ", ".join(f"v{place} {kind}" for place, kind in kinds.items())
    payloads = [json.dumps({f"v{place}": value}) for place, kind in kinds.items() for value in VALUES[kind]]
    _, misfits = PayloadTexts(shape_of(schema, "q").columns).read([one.encode() for one in payloads])
    fit = [one for place, one in enumerate(payloads) if place not in misfits]
    assert len(fit) > len(VALUES)

    frame = spark.createDataFrame(pa.table({"payload": fit}))
    parsed = frame.select("payload", F.from_json("payload", f"{schema}, _corrupt_record string").alias("p"))
    assert [row["payload"] for row in parsed.where("p._corrupt_record is not null").collect()] == []


@pytest.mark.parametrize("kind", ["interval day to second", "map<int,string>", "array<varchar(3)>", "void"])
def test_a_type_that_json_cannot_have_is_refused_where_the_station_starts(spark, kind):
    with pytest.raises(InvalidOption, match=r"column 'v' in the schema of queue 'q': .* cannot be read from JSON"):
        shape_of(f"n int, v {kind}", "q")
