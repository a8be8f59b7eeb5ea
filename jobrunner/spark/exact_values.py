"""Checks values that a user's function returns against a Spark type. A value that Spark would change (cut off a
fraction, turn a dict into text), or that would make it fail the whole batch, is refused alone."""

import math
from collections.abc import Callable, Mapping
from datetime import MAXYEAR, MINYEAR, UTC, datetime
from decimal import Decimal
from functools import partial
from typing import Any

from pyspark.sql import types as spark

from jobrunner.formatting import describe
from jobrunner.spark.parsed_values import decimal_of
from jobrunner.spark.payloads import LARGEST_FLOAT

Check = Callable[[Any], Any]
_FLOATS = (spark.FloatType, spark.DoubleType)


def exact(returns: spark.DataType, zone: str | None = None) -> Check:
    """Returns a function that converts a value to the form that Spark stores unchanged: numpy's values to Python's,
    decimals rounded to the scale. That function raises TypeError or ValueError for a value that does not fit.

    `zone`, the session's time zone, is given for values of a Series: pandas' nulls become None, a whole float an int
    for integer types, and a point in time without a zone is in the session's.
    """
    read = _check(returns, zone)
    verify = spark._make_type_verifier(returns)  # noqa: SLF001 - Spark makes null of another type

    def check(value: Any) -> Any:
        found = read(value)
        verify(found)
        return found

    return check


def exact_series(series: Any, returns: spark.DataType, zone: str) -> Any | None:
    """A Series in the form that Spark stores unchanged, when Arrow can tell for the whole Series that all values fit.
    None when each value has to be checked."""
    import pandas as pd
    import pyarrow as pa

    kind = series.dtype.kind
    if isinstance(returns, spark.TimestampType) and kind == "M":
        try:
            if not isinstance(series.dtype, pd.DatetimeTZDtype):
                series = series.dt.tz_localize(zone, **_CHANGES)
            series = series.dt.as_unit("us")
        except Exception:  # beyond the range of microseconds, or Arrow's types without such methods
            return None
        years = series.dt.tz_convert("UTC").dt.year
        return None if ((years < MINYEAR) | (years > MAXYEAR)).any() else series
    fitting = _WHOLE.get(type(returns))
    if fitting is None or kind not in fitting[0]:
        return None
    try:
        pa.Array.from_pandas(series, type=pa.type_for_alias(fitting[1]), safe=True)
    except pa.ArrowException:
        return None
    return series


_CHANGES: Mapping[str, Any] = {"ambiguous": False, "nonexistent": "shift_forward"}
"""Options for clock changes: Spark's choice for a time that occurs twice; a skipped time, on which Spark fails, is
shifted forward."""
_WHOLE: Mapping[type[spark.DataType], tuple[str, str]] = {
    spark.ByteType: ("iuf", "int8"),
    spark.ShortType: ("iuf", "int16"),
    spark.IntegerType: ("iuf", "int32"),
    spark.LongType: ("iuf", "int64"),
    spark.DoubleType: ("iuf", "double"),
    spark.BooleanType: ("b", "bool"),
}
"""Kinds of numpy's types that Arrow converts without a loss, or refuses, and the Arrow type. It cuts fractions in a
Series of objects, makes a number true, and an infinity of a large double for `float`."""


def _check(kind: spark.DataType, zone: str | None) -> Check:
    if isinstance(kind, spark.ArrayType):
        check: Check = partial(_list, _check(kind.elementType, zone))
    elif isinstance(kind, spark.MapType):
        check = partial(_map, _check(kind.keyType, zone), _check(kind.valueType, zone))
    elif isinstance(kind, spark.StructType):
        check = partial(_struct, {one.name: _check(one.dataType, zone) for one in kind.fields})
    elif isinstance(kind, spark.DecimalType):
        check = partial(_decimal, kind.precision, kind.scale)
    else:
        check = next((check for known, check in _CHECKS.items() if isinstance(kind, known)), _same)

    def run(value: Any) -> Any:
        value = _of_python(value)
        if zone is not None:
            value = _from_pandas(value, kind, zone)
        return None if value is None else check(value)

    return run


def _of_python(value: Any) -> Any:
    if type(value).__module__ != "numpy":
        return value
    if value.dtype.kind in "mM":  # in nanoseconds it would be a number
        value = value.astype(f"{value.dtype.kind}8[us]")
    return value.tolist()


def _list(element: Check, value: Any) -> Any:
    return [element(one) for one in value] if isinstance(value, (list, tuple)) else value


def _map(key: Check, each: Check, value: Any) -> Any:
    return {key(name): each(one) for name, one in value.items()} if isinstance(value, dict) else value


def _struct(fields: Mapping[str, Check], value: Any) -> Any:
    if isinstance(value, dict):
        return value | {name: check(value.get(name)) for name, check in fields.items()}
    if isinstance(value, (list, tuple)) and len(value) == len(fields):
        return tuple(check(one) for check, one in zip(fields.values(), value, strict=True))
    return value


def _same(value: Any) -> Any:
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected a string, got {describe(value)} of type {type(value).__name__}")
    value.encode()  # fails for half of a surrogate pair
    return value


def _double(value: Any) -> Any:
    return float(value) if type(value) is int else value


def _float(value: Any) -> Any:
    found = _double(value)
    if isinstance(found, float) and math.isfinite(found) and abs(found) > LARGEST_FLOAT:
        raise ValueError(f"{found!r} is larger than a float can be")
    return found


def _decimal(precision: int, scale: int, value: Any) -> Any:
    if not isinstance(value, (int, Decimal)):
        return value  # the verifier refuses it
    if isinstance(value, Decimal) and value.is_nan():
        return None
    return decimal_of(value, precision, scale)


def _date(value: Any) -> Any:
    if isinstance(value, datetime):
        if value.tzinfo is not None or value.time() != datetime.min.time():
            raise ValueError(f"expected a date, got the point in time {value}")
        return value.date()
    return value


def _instant(value: Any) -> Any:
    if isinstance(value, datetime):
        value.astimezone(UTC)  # fails beyond the years 1 to 9999
    return value


def _local(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        raise ValueError(f"expected a time without a zone, got {value}")
    return value


_CHECKS: Mapping[type[spark.DataType], Check] = {
    spark.StringType: _text,
    spark.CharType: _text,
    spark.VarcharType: _text,
    spark.FloatType: _float,
    spark.DoubleType: _double,
    spark.DateType: _date,
    spark.TimestampType: _instant,
    spark.TimestampNTZType: _local,
}


def _from_pandas(value: Any, returns: spark.DataType, zone: str) -> Any:
    import pandas as pd

    if value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, float) and math.isnan(value) and not isinstance(returns, _FLOATS):
        return None
    if isinstance(value, pd.Timedelta):
        return value.to_pytimedelta()
    if isinstance(value, float) and isinstance(returns, spark.IntegralType) and value.is_integer():
        return int(value)
    if isinstance(value, datetime):
        if value.tzinfo is None and isinstance(returns, spark.TimestampType):
            value = pd.Timestamp(value).tz_localize(zone, **_CHANGES)
        return value.to_pydatetime(warn=False) if isinstance(value, pd.Timestamp) else value
    return value
