"""Payloads as columns: types that Python reads, types that Spark parses, and payloads that do not fit."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as spark

from jobrunner.spark.payload_columns import PayloadColumns, payload_reader

FLAT = spark.StructType(
    [
        spark.StructField("n", spark.IntegerType()),
        spark.StructField("far", spark.DoubleType()),
        spark.StructField("name", spark.StringType(), nullable=False),
        spark.StructField("on", spark.DateType()),
        spark.StructField("at", spark.TimestampType()),
        spark.StructField("late", spark.BooleanType()),
    ]
)


def columns_of(payloads: list[bytes | None]) -> tuple[dict[str, list[Any]], dict[int, str]]:
    reader = payload_reader(FLAT)
    assert reader.by_columns
    arrays, misfits = reader.read(payloads)
    for array, kind in zip(arrays, reader.kinds, strict=True):
        assert array.type == kind
    return {one.name: array.to_pylist() for one, array in zip(reader.fields, arrays, strict=True)}, misfits


def test_payloads_become_columns() -> None:
    found, misfits = columns_of(
        [
            b'{"name": "\\u00e4\xc3\xb6", "n": -2147483648, "far": 5, "on": "2013-02-28", "late": true, "more": [1]}',
            b'{"at": "2013-01-01T05:00:00.000001+02:00", "name": "", "far": "-Infinity", "n": null}',
        ]
    )
    assert not misfits
    assert found == {
        "n": [-(2**31), None], "far": [5.0, float("-inf")], "name": ["äö", ""], "on": [date(2013, 2, 28), None],
        "at": [None, datetime(2013, 1, 1, 3, 0, 0, 1, UTC)], "late": [True, None],
    }  # fmt: skip


def test_times_are_cut_off_behind_the_microseconds_and_texts_keep_their_digits() -> None:
    fine = b'{"name": "2013-07-01T12:00:00.1234567Z", "at": "2013-07-01T12:00:00.1234565Z"}'
    old = b'{"name": "", "at": "1969-12-31T23:59:59.9999999Z"}'
    found, misfits = columns_of([b'{"name": "", "at": "2013-07-01T12:00:00"}', fine, b"[", old])
    assert [None if one is None else one.isoformat() for one in found["at"]] == [
        "2013-07-01T12:00:00+00:00", "2013-07-01T12:00:00.123456+00:00", None, "1969-12-31T23:59:59.999999+00:00",
    ]  # fmt: skip
    assert found["name"][1] == "2013-07-01T12:00:00.1234567Z"
    assert set(misfits) == {2}


def test_what_does_not_fit_has_its_reason_and_its_neighbours_stay() -> None:
    found, misfits = columns_of([b'{"name": "a"}', b'{"name": 5}', b"{", b'{"name": "b", "n": 1}', None])
    assert found["name"] == ["a", None, None, "b", None]
    assert found["n"] == [None, None, None, 1, None]
    assert set(misfits) == {1, 2, 4}
    assert misfits[1] == "the payload does not fit the schema: column 'name': expected str, got int"
    assert misfits[2].startswith("the payload is no JSON")


def test_the_last_instant_of_dotnet_is_truncated_and_keeps_its_neighbours() -> None:
    """`DateTime.MaxValue`, often for "never", was refused as no datetime: rounded, it is in the year 10000."""
    last = b'{"name": "9999-12-31T23:59:59.9999999Z", "at": "9999-12-31T23:59:59.9999999Z"}'
    found, misfits = columns_of([b'{"name": "a"}', last, b'{"name": "b", "at": "9999-12-31T23:59:60.9999999Z"}'])
    assert [None if one is None else one.isoformat() for one in found["at"]] == [
        None, "9999-12-31T23:59:59.999999+00:00", None,
    ]  # fmt: skip
    assert found["name"][1] == "9999-12-31T23:59:59.9999999Z"
    assert set(misfits) == {2}
    schema = spark.StructType([spark.StructField("at", spark.TimestampNTZType())])
    assert payload_reader(schema).read([b'{"at": "9999-12-31T23:59:59.9999999"}'])[1] == {}


def test_no_payload_makes_no_rows() -> None:
    found, misfits = columns_of([])
    assert (set(map(len, found.values())), misfits) == ({0}, {})


@pytest.mark.parametrize(
    ("kind", "zone"),
    [
        (spark.DecimalType(10, 2), "UTC"),
        (spark.ArrayType(spark.IntegerType()), "UTC"),
        (spark.StructType([spark.StructField("x", spark.IntegerType())]), "UTC"),
        (spark.MapType(spark.StringType(), spark.StringType()), "UTC"),
        (spark.VariantType(), "UTC"),
        (spark.TimestampNTZType(), "UTC"),
        (spark.TimestampType(), "Europe/Amsterdam"),  # the tables of Python and Java differ for old dates
        (spark.FloatType(), "UTC"),  # Java reads the digits at once, Python a double first
        (spark.StringType("UTF8_LCASE"), "UTC"),
        (spark.BinaryType(), "UTC"),
    ],
    ids=str,
)
def test_what_only_spark_parses_stays_text(kind: spark.DataType, zone: str) -> None:
    schema = spark.StructType([spark.StructField("n", spark.IntegerType()), spark.StructField("x", kind)])
    reader = payload_reader(schema, zone)
    arrays, misfits = reader.read([b'{"n": 1}', b'{"n": "one"}', b'{"n": 2}'])

    assert not reader.by_columns
    assert [array.to_pylist() for array in arrays] == [['{"n": 1}', '{"n": "one"}', '{"n": 2}']]
    assert misfits == {1: "the payload does not fit the schema: column 'n': expected int, got str"}


def test_a_zone_does_not_matter_where_no_column_is_a_point_in_time() -> None:
    schema = spark.StructType([spark.StructField("n", spark.IntegerType())])
    assert isinstance(payload_reader(schema, "Europe/Amsterdam"), PayloadColumns)


def test_without_a_schema_payloads_are_text() -> None:
    arrays, misfits = payload_reader(None).read([b"1", b"{", b'"a"'])
    assert [array.to_pylist() for array in arrays] == [["1", "{", '"a"']]
    assert set(misfits) == {1}


def test_decimals_keep_all_digits_and_are_rounded_as_spark_rounds_them() -> None:
    """Python's own context has 28 digits, and rounds halves to even."""
    reader = PayloadColumns(spark.StructType([spark.StructField("d", spark.DecimalType(38, 2))]))
    (found,), misfits = reader.read(
        [
            b'{"d": "123456789012345678901234567890123456.785"}',
            b'{"d": 123456789012345678901234567890}',
            b'{"d": 0.125}',
            b'{"d": 1e36}',
            b'{"d": "1,000"}',
        ]
    )
    assert found.to_pylist() == [
        Decimal("123456789012345678901234567890123456.79"), Decimal("123456789012345678901234567890.00"),
        Decimal("0.13"), None, Decimal("1000.00"),
    ]  # fmt: skip
    assert set(misfits) == {3}


def test_numbers_keep_the_digits_that_a_double_does_not_have() -> None:
    money = spark.DecimalType(19, 2)
    kinds = {"d": money, "whole": spark.DecimalType(38, 0), "l": spark.ArrayType(money)}
    reader = PayloadColumns(spark.StructType([spark.StructField(name, kind) for name, kind in kinds.items()]))
    columns, misfits = reader.read(
        [
            b'{"d": 99999999999999999.99, "l": [12345678901234567.89], "whole": ' + b"9" * 38 + b"}",
            b'{"whole": -99999999999999999999999999999999999999.4}',
            b'{"d": 99999999999999999.995}',
            b'{"whole": 1e99999999999999999999}',
            b'{"l": [1, [2]]}',
        ]
    )
    most = Decimal("9" * 38)
    assert [column.to_pylist() for column in columns] == [
        [Decimal("99999999999999999.99"), None, None, None, None],
        [most, most.copy_negate(), None, None, None],
        [[Decimal("12345678901234567.89")], None, None, None, None],
    ]
    told = "the payload does not fit the schema: column "
    assert misfits == {
        2: f"{told}'d': 99999999999999999.995 has too many digits for decimal(19,2)",
        3: f"{told}'whole': expected a decimal, got '1e99999999999999999999'",
        4: f"{told}'l': expected a decimal, got [2]",
    }
