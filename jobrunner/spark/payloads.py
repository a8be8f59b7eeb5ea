"""Checks whether a payload fits a schema. `payload_columns` reads payloads into columns.

The check is stricter than `from_json`, which reads the number 5 into a string column and turns an unreadable value into
null: a payload that passes the check loses no value in `from_json`. Columns that the schema does not name are not read.

Encrypted payloads are refused: Spark neither decrypts nor encrypts, and must not write plain payloads instead.
"""

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal

import msgspec
from pyspark.sql import types as spark

from jobrunner.encryption.envelope import is_protected
from jobrunner.errors import EncryptionError, InvalidOption
from jobrunner.settings import ClientSettings
from jobrunner.spark.parsed_values import check_parsed, exact_number, parsed_kind

_NOT_A_NUMBER = Literal["NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF"]
"""The texts that `to_json` writes for a double that is no number."""
LARGEST_FLOAT = 3.4028235e38
"""The largest finite `float`: a larger number would become infinity."""
_BITS: dict[type[spark.DataType], int] = {
    spark.ByteType: 8,
    spark.ShortType: 16,
    spark.IntegerType: 32,
    spark.LongType: 64,
}
_ONE_WORD: dict[type[spark.DataType], Any] = {
    spark.FloatType: Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)] | _NOT_A_NUMBER,
    spark.DoubleType: float | _NOT_A_NUMBER,
    spark.DecimalType: Any,
    spark.BooleanType: bool,
    spark.DateType: date,
    spark.TimestampType: datetime,
    spark.TimestampNTZType: datetime,
    spark.VariantType: Any,
}
PROTECTED = "the payload is encrypted, signed or in a payload store, and Spark reads none such"
"""The reason of a payload with an encoding that Spark cannot read, in reads and stations."""
_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`")
_OR_NULL = re.compile(r" \| null")

UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError, TypeError)
"""The errors that a check raises for a payload that does not fit."""
_RAW = msgspec.json.Decoder(msgspec.Raw)
Check = Callable[[bytes], object]


def payload_check(schema: spark.StructType | None, *, is_parsed: bool = False) -> Check:
    """A function that raises ValueError for a payload that does not fit; without a schema, for one that is no JSON.

    `is_parsed`: Spark parses the payload, so a payload that Spark could not parse does not fit. Else the function
    returns values.
    """
    if schema is None:
        return check_json
    return msgspec.json.Decoder(_struct(schema, is_parsed), dec_hook=check_parsed, float_hook=exact_number).decode


def misfit(error: Exception) -> str:
    """The reason why a check refused a payload, in one line that names the column."""
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


def check_json(payload: bytes) -> None:
    """Raises ValueError or RecursionError for a payload that is no JSON."""
    _RAW.decode(payload)
    payload.decode()  # msgspec does not check the UTF-8 of values that it skips


def _struct(schema: spark.StructType, is_parsed: bool) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for place, column in enumerate(schema.fields):
        kind = _kind(column.dataType, is_parsed)
        fields.append((f"f{place}", kind | None, None) if column.nullable else (f"f{place}", kind))
    names = {f"f{place}": column.name for place, column in enumerate(schema.fields)}
    return msgspec.defstruct("Payload", fields, rename=names, kw_only=True, gc=False)


def _kind(of: spark.DataType, is_parsed: bool) -> Any:
    if isinstance(of, spark.StructType):
        return _struct(of, is_parsed)
    if isinstance(of, spark.ArrayType):
        return list[_kind(of.elementType, is_parsed) | None]  # type: ignore[misc]
    if isinstance(of, spark.MapType):
        return dict[str, _kind(of.valueType, is_parsed) | None]  # type: ignore[misc]
    if is_parsed and (kind := parsed_kind(of)) is not None:
        return kind
    bits = _BITS.get(type(of))
    if bits is not None:
        most = 2 ** (bits - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    return _ONE_WORD.get(type(of), str)


def check_plain(settings: ClientSettings, what: str) -> None:
    """Raises InvalidOption where payloads are to be encrypted or signed."""
    if settings.payload_keys:
        raise InvalidOption(
            f"payload_keys are configured, and {what} has plain payloads only: enqueue and run secret payloads in "
            "Python, and use Spark from a program without payload_keys"
        )


def check_stored(encoding: str | None, task_id: str) -> None:
    """Raises EncryptionError for an encrypted or signed payload, as it is bound to its task's id."""
    if encoding is not None and is_protected(encoding.encode()):
        raise EncryptionError(
            f"the payload of task {task_id} is encrypted, signed or stored for this id, and Spark cannot give it "
            "another; replay it with Queue.replay, where keys and payload_store are configured"
        )
