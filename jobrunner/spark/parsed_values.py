"""Checks values that `from_json` parses from text, because `from_json` fails the whole batch for a value that it cannot
parse.

A check takes a JSON text or number, and raises ValueError when Spark does not read it. Invariant: a check accepts no
value that Spark refuses.
"""

import re
from base64 import b64decode
from collections.abc import Callable
from datetime import datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any, TypeVar

import msgspec
from pyspark.sql import types as spark

from jobrunner.formatting import describe

_EXACT = Context(prec=400, rounding=ROUND_HALF_UP)
"""Doubles have up to 309 digits in front of the point; the default context refuses more than 28."""
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?", re.ASCII)
_TIME = re.compile(r"\d\d:\d\d:\d\d(\.\d{1,6})?", re.ASCII)
T = TypeVar("T")
_NO_NAME = re.compile(r'["\\\x00-\x1f]')
_MOST_OFFSET = timedelta(hours=18)
_ONE_WORD = (
    spark.StringType, spark.IntegralType, spark.BooleanType, spark.FloatType, spark.DoubleType, spark.DecimalType,
    spark.DateType, spark.TimestampType, spark.TimestampNTZType, spark.TimeType, spark.BinaryType, spark.VariantType,
)  # fmt: skip


class Parsed:
    """A value that passed its check. msgspec makes one through `check_parsed`; subclasses are made by `parsed_kind`."""

    check: Callable[[Any], object]


def parsed_kind(of: spark.DataType) -> type[Parsed] | None:
    """The msgspec type for a Spark type whose values need a check; None for other types."""
    if isinstance(of, spark.DecimalType):
        precision, scale = of.precision, of.scale
        return _kind(lambda value: decimal_of(value, precision, scale))
    check = next((check for kind, check in _CHECKS.items() if isinstance(of, kind)), None)
    return None if check is None else _kind(check)


def check_parsed(kind: type[Any], value: Any) -> Any:
    """The `dec_hook` of a msgspec decoder."""
    kind.check(value)
    return kind()


def exact_number(text: str) -> Decimal | str:
    """The `float_hook` of a msgspec decoder: decimals keep digits that a double does not have."""
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent beyond all bounds; the text fits no column either
        return text


def decimal_of(value: Any, precision: int, scale: int) -> Decimal:
    """A JSON number (an int, or the result of `exact_number`) or a text as a decimal, rounded as Spark rounds it.
    Raises ValueError."""
    text = value.replace(",", "") if isinstance(value, str) else str(value)
    shown = text if isinstance(value, Decimal) else describe(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, Decimal)) or not _DECIMAL.fullmatch(text):
        raise ValueError(f"expected a decimal, got {shown}")
    try:
        found = Decimal(text).quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    except InvalidOperation:
        found = None
    if found is None or found.copy_abs() >= Decimal(10) ** (precision - scale):  # abs() rounds to 28 digits
        raise ValueError(f"{shown} has too many digits for decimal({precision},{scale})")
    return found


def check_names(of: spark.StructType) -> None:
    """Raises ValueError for field names that the decoder of payloads cannot have."""
    seen = set()
    for name in of.fieldNames():
        if _NO_NAME.search(name):
            raise ValueError(f"the name {name!r} has a quote, a backslash or a control character")
        if name in seen:
            raise ValueError(f"the name {name!r} occurs twice")
        seen.add(name)


def check_type(of: spark.DataType) -> None:
    """Raises ValueError for a type that cannot be read from JSON."""
    if isinstance(of, spark.StructType):
        check_names(of)
        for part in of.fields:
            check_type(part.dataType)
    elif isinstance(of, spark.ArrayType):
        check_type(of.elementType)
    elif isinstance(of, spark.MapType) and isinstance(of.keyType, spark.StringType):
        check_type(of.valueType)
    elif not isinstance(of, _ONE_WORD):
        raise ValueError(f"{of.simpleString()} cannot be read from JSON")


def _kind(check: Callable[[Any], object]) -> type[Parsed]:
    return type("Parsed", (Parsed,), {"check": staticmethod(check)})


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected {what}, got {describe(value)}")
    return value


def _converted(text: str, kind: type[T]) -> T:
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error  # msgspec adds the column to a ValueError only


def _instant(value: Any) -> timedelta | None:
    """The UTC offset of a point in time."""
    text = _text(value, "a point in time")
    offset = _converted(text, datetime).utcoffset()
    if text[10] not in "T " or text.endswith("z"):
        raise ValueError(f"expected a point in time like 2026-01-31T23:59:59Z, got {describe(value)}")
    if offset is not None and abs(offset) > _MOST_OFFSET:
        raise ValueError(f"{describe(value)} has an offset of more than 18 hours")
    return offset


def _local_instant(value: Any) -> None:
    if _instant(value) is not None:
        raise ValueError(f"expected a point in time without an offset, got {describe(value)}")


def _time_of_day(value: Any) -> None:
    if not _TIME.fullmatch(text := _text(value, "a time of day")):
        raise ValueError(f"expected a time like 23:59:59.999999, got {describe(value)}")
    _converted(text, time)


def _base64(value: Any) -> None:
    try:
        b64decode(_text(value, "base64").encode("ascii"), validate=True)
    except ValueError as error:
        raise ValueError(f"expected base64, got {describe(value)}") from error


_CHECKS: dict[type[spark.DataType], Callable[[Any], object]] = {
    spark.TimestampType: _instant,
    spark.TimestampNTZType: _local_instant,
    spark.TimeType: _time_of_day,
    spark.BinaryType: _base64,
}
