"""Whether a payload fits a station's schema, decided in Python, so that an error can name the column.

Stricter than `from_json`, which reads the number 5 into a string column and turns what it cannot read into null:
nothing that fits here may lose a value there. Columns the schema does not name are no misfit; they are not read.
"""

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec
from pyspark.sql import types as spark

_NOT_A_NUMBER = Literal["NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF"]
"""What `to_json` writes for a double that is no number."""
_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_ONE_WORD: dict[type[spark.DataType], Any] = {
    spark.FloatType: float | _NOT_A_NUMBER,
    spark.DoubleType: float | _NOT_A_NUMBER,
    spark.DecimalType: int | float | str,
    spark.BooleanType: bool,
    spark.DateType: date,
    spark.TimestampType: datetime,
    spark.TimestampNTZType: datetime,
    spark.VariantType: Any,
}
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_OR_NULL = re.compile(r" \| null")

_RAW = msgspec.json.Decoder(msgspec.Raw)
Check = Callable[[bytes], object]


def payload_check(schema: spark.StructType | None) -> Check:
    """A function that raises ValueError for a payload that does not fit; without a schema, for one that is no JSON."""
    if schema is None:
        return _any_json
    return msgspec.json.Decoder(_struct(schema)).decode


def misfit(error: Exception) -> str:
    """What is wrong with a payload that a check refused, in one line that names the column."""
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return f"the payload is no JSON: {text}"
    place = _PATH.search(text)
    wrong = _OR_NULL.sub("", _PATH.sub("", text)).replace("`", "")
    wrong = wrong.replace("Invalid enum value", "Expected a number, got")
    if place is None or not place["path"]:
        missing = re.search(r"required field (\S+)", wrong)
        if missing:
            return f"the payload does not fit the schema: column {missing[1]!r} is missing"
        return f"the payload does not fit the schema: {wrong[0].lower()}{wrong[1:]}"
    return f"the payload does not fit the schema: column {place['path']!r}: {wrong[0].lower()}{wrong[1:]}"


def _any_json(payload: bytes) -> None:
    _RAW.decode(payload)
    payload.decode()  # what is skipped by the other is not looked at closely


def _struct(schema: spark.StructType) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for place, column in enumerate(schema.fields):
        kind = _kind(column.dataType)
        fields.append((f"f{place}", kind | None, None) if column.nullable else (f"f{place}", kind))
    names = {f"f{place}": column.name for place, column in enumerate(schema.fields)}
    return msgspec.defstruct("Payload", fields, rename=names, kw_only=True, gc=False)


def _kind(of: spark.DataType) -> Any:
    if isinstance(of, spark.StructType):
        return _struct(of)
    if isinstance(of, spark.ArrayType):
        return list[_kind(of.elementType) | None]  # type: ignore[misc]
    if isinstance(of, spark.MapType):
        return dict[str, _kind(of.valueType) | None]  # type: ignore[misc]
    bits = _BITS.get(type(of))
    if bits is not None:
        most = 2 ** (bits - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    return _ONE_WORD.get(type(of), str)
