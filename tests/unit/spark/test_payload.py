"""Checks of payloads against a schema, and the errors for those that do not fit."""

import pytest
from pyspark.sql import types as spark

from jobrunner.spark.payloads import misfit, payload_check

FLIGHT = spark.StructType(
    [
        spark.StructField("tail num", spark.StringType()),
        spark.StructField("day", spark.IntegerType()),
        spark.StructField("dep_delay", spark.DoubleType()),
        spark.StructField("carrier", spark.StringType(), nullable=False),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("on", spark.DateType()),
        spark.StructField("cost", spark.DecimalType(10, 2)),
        spark.StructField("legs", spark.ArrayType(spark.StructType([spark.StructField("x", spark.ShortType())]))),
        spark.StructField("tags", spark.MapType(spark.StringType(), spark.BooleanType())),
        spark.StructField("rest", spark.VariantType()),
    ]
)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"carrier": ""}',
        b'{"carrier": "UA", "day": 0, "dep_delay": 5, "unknown": [1]}',
        b'{"carrier": "UA", "day": null, "tail num": null, "legs": null, "tags": null}',
        b'{"carrier": "UA", "dep_delay": "NaN"}',
        b'{"carrier": "UA", "at": "2013-01-01T05:00:00.000001+02:00", "on": "2013-01-01"}',
        b'{"carrier": "UA", "cost": 1.25, "legs": [{"x": 1}, null], "tags": {"a": true, "b": null}}',
        b'{"carrier": "UA", "rest": {"a": [1]}}',
    ],
)
def test_what_fits_is_let_through(payload):
    payload_check(FLIGHT)(payload)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"carrier": "UA", "day": "2"}', "column 'day': expected int, got str"),
        (b'{"carrier": "UA", "day": 1.5}', "column 'day': expected int, got float"),
        (b'{"carrier": "UA", "day": 3000000000}', "column 'day': expected int <= 2147483647"),
        (b'{"carrier": "UA", "tail num": 5}', "column 'tail num': expected str, got int"),
        (b'{"carrier": "UA", "dep_delay": "late"}', "column 'dep_delay': expected a number, got 'late'"),
        (b'{"carrier": null}', "column 'carrier': expected str, got null"),
        (b'{"day": 1}', "column 'carrier' is missing"),
        (b'{"carrier": "UA", "at": "yesterday"}', "column 'at': invalid RFC3339 encoded datetime"),
        (b'{"carrier": "UA", "legs": [{"x": 1}, {"x": "y"}]}', "column 'legs[1].x': expected int, got str"),
        (b'{"carrier": "UA", "tags": {"a": 1}}', "column 'tags[...]': expected bool, got int"),
        (b"[1, 2]", "does not fit the schema: expected object, got array"),
        (b"0", "does not fit the schema: expected object, got int"),
        (b'{"carrier"', "is no JSON"),
        (b"\x80\x81", "is no JSON"),
    ],
)
def test_what_does_not_fit_is_told_with_its_column(payload, said):
    with pytest.raises(Exception) as caught:
        payload_check(FLIGHT)(payload)
    assert said in misfit(caught.value)


PARSED = spark.StructType(
    [
        spark.StructField("cost", spark.DecimalType(5, 2)),
        spark.StructField("costs", spark.ArrayType(spark.DecimalType(38, 10))),
        spark.StructField("large", spark.DecimalType(19, 2)),
        spark.StructField("whole", spark.DecimalType(38, 0)),
        spark.StructField("far", spark.FloatType()),
        spark.StructField("raw", spark.BinaryType()),
        spark.StructField("local", spark.TimestampNTZType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("time", spark.TimeType()),
    ]
)


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        b'{"cost": null, "costs": [null], "raw": null, "local": null, "at": null, "time": null}',
        b'{"cost": 999.994, "costs": [1, 0.5, "1e3", "-1,000.5", "1234567890123456789012345678.5"]}',
        b'{"large": 99999999999999999.99, "whole": 99999999999999999999999999999999999999}',
        b'{"far": 3.4028235e38, "raw": "aGk=", "local": "2026-01-31 23:59:59.5", "time": "23:59:59.999999"}',
        b'{"far": "-Infinity", "raw": "", "at": "2026-01-31T23:59:59.123456789+18:00"}',
    ],
)
def test_what_spark_can_parse_is_let_through(payload):
    payload_check(PARSED, is_parsed=True)(payload)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b'{"cost": 999.995}', "column 'cost': 999.995 has too many digits for decimal(5,2)"),
        (b'{"cost": 1e300}', "column 'cost': 1E+300 has too many digits for decimal(5,2)"),
        (b'{"cost": "1e9999"}', "column 'cost': '1e9999' has too many digits for decimal(5,2)"),
        (b'{"large": 99999999999999999.995}', "column 'large': 99999999999999999.995 has too many digits for dec"),
        (b'{"cost": "NaN"}', "column 'cost': expected a decimal, got 'NaN'"),
        (b'{"cost": ""}', "column 'cost': expected a decimal, got ''"),
        (b'{"cost": "1_0"}', "column 'cost': expected a decimal, got '1_0'"),
        (b'{"cost": true}', "column 'cost': expected a decimal, got True"),
        (b'{"costs": [1, {}]}', "column 'costs[1]': expected a decimal, got {}"),
        (b'{"far": 1e39}', "column 'far': expected float <= 3.4028235e+38"),
        (b'{"raw": "no base64"}', "column 'raw': expected base64, got 'no base64'"),
        (b'{"raw": "aGk"}', "column 'raw': expected base64, got 'aGk'"),
        (b'{"raw": 5}', "column 'raw': expected base64, got 5"),
        (b'{"local": "2026-01-31T23:59:59Z"}', "column 'local': expected a point in time without an offset, got '2026"),
        (b'{"local": "2026-01-31t23:59:59"}', "column 'local': expected a point in time like 2026"),
        (b'{"at": "2026-01-31T23:59:59+19:00"}', "column 'at': '2026-01-31T23:59:59+19:00' has an offset of more than"),
        (b'{"at": "2026-01-31T23:59:59z"}', "column 'at': expected a point in time like 2026"),
        (b'{"at": "yesterday"}', "column 'at': invalid RFC3339 encoded datetime"),
        (b'{"at": 5}', "column 'at': expected a point in time, got 5"),
        (b'{"time": "23:59:59Z"}', "column 'time': expected a time like 23:59:59.999999, got '23:59:59Z'"),
        (b'{"time": "24:00:00"}', "column 'time': invalid RFC3339 encoded time"),
    ],
)
def test_what_spark_cannot_parse_does_not_fit(payload, said):
    """Else `from_json` would fail the whole batch, with a message that names no column."""
    with pytest.raises(Exception) as caught:
        payload_check(PARSED, is_parsed=True)(payload)
    assert said in misfit(caught.value)


@pytest.mark.parametrize("payload", [b"0", b'""', b"null", b"false", b"[]", b'{"a": 1}'])
def test_without_a_schema_any_json_will_do(payload):
    payload_check(None)(payload)


def test_without_a_schema_what_is_no_json_is_told():
    with pytest.raises(Exception) as caught:
        payload_check(None)(b"{'a': 1}")
    assert "is no JSON: JSON is malformed" in misfit(caught.value)


def test_text_that_is_no_utf_8_is_no_json():
    with pytest.raises(Exception) as caught:
        payload_check(None)(b'{"a": "\xff"}')
    assert "is no JSON: 'utf-8' codec" in misfit(caught.value)
