"""Payloads as Arrow columns of a schema. A payload that does not fit has null in all of them, and a reason."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from jobrunner.errors import InvalidOption
from jobrunner.spark.rows.schema_check import misfit, payload_check

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
    """What makes of a decoded value one that Arrow takes; None when it does already."""
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
