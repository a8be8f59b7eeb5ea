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
