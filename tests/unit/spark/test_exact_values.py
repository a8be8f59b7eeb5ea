"""Values of a user's function against a type of Spark."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import types as spark

from jobrunner.spark.exact_values import exact, exact_series

NOON = datetime(2026, 11, 28, 12)
IN_PARIS = timezone(timedelta(hours=1))


TEXT, DOUBLE, INT = spark.StringType(), spark.DoubleType(), spark.IntegerType()
KINDS = {
    "array<double>": spark.ArrayType(DOUBLE),
    "array<int>": spark.ArrayType(INT),
    "array<string>": spark.ArrayType(TEXT),
    "array<struct<a:decimal(2,0)>>": spark.ArrayType(spark.StructType().add("a", spark.DecimalType(2, 0))),
    "array<timestamp>": spark.ArrayType(spark.TimestampType()),
    "binary": spark.BinaryType(),
    "boolean": spark.BooleanType(),
    "date": spark.DateType(),
    "decimal(38,0)": spark.DecimalType(38, 0),
    "decimal(4,2)": spark.DecimalType(4, 2),
    "double": DOUBLE,
    "float": spark.FloatType(),
    "int": INT,
    "interval day to second": spark.DayTimeIntervalType(),
    "map<string,double>": spark.MapType(TEXT, DOUBLE),
    "map<string,float>": spark.MapType(TEXT, spark.FloatType()),
    "map<string,int>": spark.MapType(TEXT, INT),
    "string": TEXT,
    "struct<a:int>": spark.StructType().add("a", INT),
    "struct<a:string>": spark.StructType().add("a", TEXT),
    "struct<a:string,b:double>": spark.StructType().add("a", TEXT).add("b", DOUBLE),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
}
"""A text of DDL is read by Spark's JVM alone."""


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("string", {"a": 1}), ("string", b"x"), ("string", 1), ("string", "\ud800"),
        ("decimal(4,2)", Decimal("12345.678")), ("decimal(4,2)", 100), ("decimal(4,2)", Decimal("Infinity")),
        ("decimal(4,2)", "1"), ("decimal(4,2)", True), ("decimal(4,2)", 1.5),
        ("float", 1e300), ("float", -(10**39)), ("double", 10**400), ("int", 1.5), ("int", 2**31), ("int", True),
        ("date", NOON), ("timestamp", datetime(1, 1, 1, tzinfo=IN_PARIS)), ("timestamp_ntz", NOON.replace(tzinfo=UTC)),
        ("array<string>", [1]), ("map<string,float>", {"a": 1e300}), ("map<string,int>", {1: 1}),
        ("struct<a:string>", {"a": 1}), ("struct<a:string>", (1,)), ("struct<a:int>", (1, 2)),
        ("array<struct<a:decimal(2,0)>>", [{"a": Decimal(100)}]),
    ],
)  # fmt: skip
def test_a_value_that_the_type_cannot_hold_is_refused(ddl, value):
    with pytest.raises((TypeError, ValueError, OverflowError)):
        exact(KINDS[ddl])(value)


@pytest.mark.parametrize(
    ("ddl", "value", "stored"),
    [
        ("string", "é", "é"), ("string", np.str_("a"), "a"), ("string", None, None),
        ("decimal(4,2)", Decimal("1.239"), Decimal("1.24")), ("decimal(4,2)", 12, Decimal("12.00")),
        ("decimal(4,2)", Decimal("NaN"), None), ("decimal(38,0)", Decimal(10**38 - 1), Decimal(10**38 - 1)),
        ("float", float("inf"), float("inf")), ("float", 1, 1.0), ("double", 1e300, 1e300),
        ("int", np.int64(7), 7), ("date", datetime(2026, 11, 28), date(2026, 11, 28)),
        ("date", date(2026, 11, 28), date(2026, 11, 28)), ("timestamp", NOON, NOON), ("timestamp_ntz", NOON, NOON),
        ("binary", b"x", b"x"), ("array<int>", np.array([1, 2]), [1, 2]), ("array<double>", (1, None), [1.0, None]),
        ("map<string,double>", {"a": 1}, {"a": 1.0}), ("struct<a:string,b:double>", ("x", 1), ("x", 1.0)),
        ("struct<a:string,b:double>", {"a": "x"}, {"a": "x", "b": None}),
    ],
)  # fmt: skip
def test_a_value_that_fits_is_stored_as_it_is(ddl, value, stored):
    found = exact(KINDS[ddl])(value)
    assert (found, type(found)) == (stored, type(stored))


@pytest.mark.parametrize(
    ("ddl", "value", "stored"),
    [
        ("int", 2.0, 2), ("int", float("nan"), None), ("string", float("nan"), None), ("string", pd.NA, None),
        ("timestamp", pd.NaT, None), ("date", pd.Timestamp(2026, 11, 28), date(2026, 11, 28)),
        ("array<int>", np.array([1.0, np.nan]), [1, None]), ("array<int>", float("nan"), None),
        ("array<timestamp>", np.array([NOON, "NaT"], "datetime64[ns]"), [NOON.replace(tzinfo=UTC), None]),
        ("decimal(4,2)", float("nan"), None), ("map<string,int>", {"a": 2.0}, {"a": 2}),
        ("struct<a:string>", {"a": pd.NA}, {"a": None}),
        ("timestamp", np.datetime64(NOON, "ns"), NOON.replace(tzinfo=UTC)),
        ("timestamp_ntz", pd.Timestamp(NOON), NOON), ("interval day to second", pd.Timedelta("1s"), timedelta(0, 1)),
    ],
)  # fmt: skip
def test_a_value_of_pandas_is_read_as_pandas_means_it(ddl, value, stored):
    assert exact(KINDS[ddl], "UTC")(value) == stored


@pytest.mark.parametrize(
    ("local", "utc"),
    [
        (NOON, datetime(2026, 11, 28, 17)),
        (datetime(2026, 11, 1, 1, 30), datetime(2026, 11, 1, 6, 30)),  # the second of two
        (datetime(2026, 3, 8, 2, 30), datetime(2026, 3, 8, 7)),  # there is none
    ],
)
def test_a_point_in_time_without_a_zone_is_one_of_the_sessions(local, utc):
    check = exact(KINDS["timestamp"], "America/New_York")
    assert check(pd.Timestamp(local)) == check(local) == utc.replace(tzinfo=UTC)
    whole = exact_series(pd.Series([pd.Timestamp(local), pd.NaT]), KINDS["timestamp"], "America/New_York")
    assert (whole[0], whole[1] is pd.NaT, whole.dtype.unit) == (utc.replace(tzinfo=UTC), True, "us")
    assert check(utc.replace(tzinfo=UTC)) == utc.replace(tzinfo=UTC)


@pytest.mark.parametrize("kind", ["timestamp[us][pyarrow]", "timestamp[ms, tz=UTC][pyarrow]"])
def test_points_in_time_of_arrow_in_a_series_are_looked_at_one_by_one(kind):
    series = pd.Series(pd.array([NOON, None], dtype=kind))
    assert exact_series(series, KINDS["timestamp"], "UTC") is None
    assert [exact(KINDS["timestamp"], "UTC")(one) for one in series] == [NOON.replace(tzinfo=UTC), None]


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("far", ["10000-01-01", "0000-12-31", "300000-01-01", "-300000-01-01"])
@pytest.mark.parametrize("unit", ["s", "ms"])
def test_a_point_in_time_beyond_the_years_of_python_is_looked_at_by_itself(far, unit, zone):
    """One that microseconds cannot hold failed the batch; one of the year 10 000 failed a later write of it."""
    series = pd.Series(np.array(["2026-11-28", "NaT", far], f"datetime64[{unit}]"))
    is_whole = exact_series(series, KINDS["timestamp"], zone) is not None
    assert not is_whole  # pandas crashes where it shows such a Series
    assert exact_series(series[:2], KINDS["timestamp"], zone)[0].year == 2026
    check = exact(KINDS["timestamp"], zone)
    good, nothing, bad = series
    assert (check(good).year, check(nothing)) == (2026, None)
    with pytest.raises((ValueError, OverflowError)):
        check(bad)


@pytest.mark.parametrize(
    ("ddl", "series", "fits"),
    [
        ("int", pd.Series([1.0, None]), True), ("int", pd.Series([1, 2], dtype="Int64"), True),
        ("int", pd.Series([1.5]), False), ("int", pd.Series([2**31]), False), ("int", pd.Series([True]), False),
        ("int", pd.Series([1], dtype=object), False), ("boolean", pd.Series([0, 5]), False),
        ("double", pd.Series([1, 2]), True), ("float", pd.Series([1e300]), False), ("string", pd.Series(["a"]), False),
    ],
)  # fmt: skip
def test_arrow_finds_for_a_whole_series_whether_it_fits(ddl, series, fits):
    assert (exact_series(series, KINDS[ddl], "UTC") is series) is fits
