"""Payloads against a schema: whether one fits, and payloads as Arrow columns.

The check is stricter than `from_json`, which reads the number 5 into a string column and turns what it cannot read into
null: a payload that fits here loses no value there. Columns that the schema does not name are not read. A payload that
does not fit has null in all columns, and a reason that names the column.

Encrypted payloads are refused: Spark neither decrypts nor encrypts, and must not write plain payloads instead.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from jobrunner.encryption.envelope import is_protected
from jobrunner.errors import EncryptionError, InvalidOption
from jobrunner.settings import ClientSettings

_NOT_A_NUMBER = Literal["NaN", "Infinity", "-Infinity", "+INF", "-INF", "INF"]
"""The texts that `to_json` writes for a double that is no number."""
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


def _any_json(payload: bytes) -> None:
    _RAW.decode(payload)
    payload.decode()  # msgspec does not check the UTF-8 of what it skips


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


_AS_THEY_ARE = (spark.StringType, spark.IntegralType, spark.BooleanType, spark.DateType)
Convert = Callable[[Any], Any]


class PayloadColumns:
    """Reads payloads into the columns of one schema. Life: a process makes its own; it is not sent to others."""

    def __init__(self, schema: spark.StructType) -> None:
        self._decode = payload_check(schema)
        self._columns = [
            (attrgetter(f"f{place}"), to_arrow_type(column.dataType, timezone="UTC"), _converter(column.dataType))
            for place, column in enumerate(schema.fields)
        ]
        self._empty = msgspec.convert({}, _all_null(len(schema.fields)))

    def read(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], dict[int, str]]:
        """(one array for each column, reasons by position of the payloads that do not fit)."""
        rows, misfits = self._rows(payloads)
        return [self._array(rows, misfits, *column) for column in self._columns], misfits

    def _rows(self, payloads: Sequence[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        decode, misfits = self._decode, {}
        try:
            return [decode(raw) for raw in payloads], {}  # type: ignore[arg-type]
        except (msgspec.MsgspecError, ValueError, RecursionError, TypeError):
            pass
        rows = []
        for position, raw in enumerate(payloads):
            try:
                rows.append(decode(raw or b"null"))
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                misfits[position] = misfit(error)
                rows.append(self._empty)
        return rows, misfits

    def _array(
        self, rows: list[Any], misfits: dict[int, str], get: Convert, kind: pa.DataType, convert: Convert | None
    ) -> pa.Array:
        values = [get(row) for row in rows]
        if convert is not None:
            values = [None if value is None else convert(value) for value in values]
        try:
            return pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return _one_by_one(values, kind, misfits)


def check_readable(schema: spark.StructType) -> None:
    """Raises InvalidOption for a column of a type that payloads cannot be read into."""
    for column in schema.fields:
        try:
            _converter(column.dataType)
        except InvalidOption as error:
            raise InvalidOption(f"payload column {column.name!r}: {error}") from None


def _one_by_one(values: list[Any], kind: pa.DataType, misfits: dict[int, str]) -> pa.Array:
    kept = []
    for position, value in enumerate(values):
        try:
            kept.append(pa.scalar(value, kind).as_py() if value is not None else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            misfits.setdefault(position, f"the payload does not fit the schema: {str(error).splitlines()[0]}")
            kept.append(None)
    return pa.array(kept, kind)


def _all_null(count: int) -> type[msgspec.Struct]:
    return msgspec.defstruct("Misfit", [(f"f{place}", Any, None) for place in range(count)])


def _converter(of: spark.DataType) -> Convert | None:
    """The function that converts a decoded value for Arrow; None when Arrow takes it as it is."""
    if isinstance(of, _AS_THEY_ARE):
        return None
    if isinstance(of, (spark.FloatType, spark.DoubleType)):
        return float
    if isinstance(of, spark.DecimalType):
        return _decimal(of)
    if isinstance(of, (spark.TimestampType, spark.TimestampNTZType)):
        return _instant
    return _nested(of)


def _nested(of: spark.DataType) -> Convert:
    if isinstance(of, spark.StructType):
        parts = [(f"f{place}", part.name, _inside(part.dataType)) for place, part in enumerate(of.fields)]
        return lambda value: {name: convert(getattr(value, slot)) for slot, name, convert in parts}
    if isinstance(of, spark.ArrayType):
        element = _inside(of.elementType)
        return lambda value: [element(one) for one in value]
    if isinstance(of, spark.MapType) and isinstance(of.keyType, spark.StringType):
        held = _inside(of.valueType)
        return lambda value: [(key, held(one)) for key, one in value.items()]
    raise InvalidOption(f"{of.simpleString()} cannot be read from JSON here; read `payload` and convert it in Spark")


def _inside(of: spark.DataType) -> Convert:
    convert = _converter(of)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _decimal(of: spark.DecimalType) -> Convert:
    step = Decimal(1).scaleb(-of.scale)

    def convert(value: Any) -> Decimal | str:
        try:
            return Decimal(str(value)).quantize(step)
        except InvalidOperation:
            return str(value)

    return convert


def _instant(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


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
