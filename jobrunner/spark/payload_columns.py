"""Converts payloads to Arrow columns, for reads and stations on Spark. A payload that does not fit gets a reason that
names the column, and null in all columns.

Python decodes a payload for its check anyway, and makes 19 columns of it in 1 µs. In the first batch of a process
`from_json` took 18 µs of processors for each payload, compiling included.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_type

from jobrunner.errors import InvalidOption
from jobrunner.spark.columns import texts
from jobrunner.spark.parsed_values import check_names, decimal_of
from jobrunner.spark.payloads import UNREADABLE, misfit, payload_check

_FLAT = (
    spark.StringType(), spark.ByteType(), spark.ShortType(), spark.IntegerType(), spark.LongType(),
    spark.BooleanType(), spark.DateType(), spark.DoubleType(), spark.TimestampType(),
)  # fmt: skip
"""Types for which the decoder returns the same values as Spark's parser, to the last digit."""
_UTC = ("UTC", "Etc/UTC", "Z", "GMT")
_TOO_FINE = re.compile(rb"(:\d\d\.\d{6})\d+")
_INSTANTS = (spark.TimestampType, spark.TimestampNTZType)
_AS_THEY_ARE = (spark.StringType, spark.IntegralType, spark.BooleanType, spark.DateType)
_UNFIT = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, ValueError)
Convert = Callable[[Any], Any]


class PayloadReader(Protocol):
    """Reads payloads into columns. Thread-safe; each process creates its own reader and sends none to other
    processes."""

    by_columns: bool
    """Whether the reader returns the columns of the schema; else one column `payload`, JSON text."""
    fields: Sequence[spark.StructField]
    """Spark fields of the columns that `read` returns; `kinds` has their Arrow types."""
    kinds: Sequence[pa.DataType]

    def read(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], dict[int, str]]:
        """(one array for each column, reasons by position of the payloads that do not fit)."""
        ...


class PayloadColumns:
    """A PayloadReader for the columns of one schema. A point in time that names no offset is in UTC."""

    by_columns = True

    def __init__(self, schema: spark.StructType) -> None:
        self.fields: Sequence[spark.StructField] = [
            spark.StructField(column.name, column.dataType, metadata=column.metadata) for column in schema.fields
        ]
        self.kinds: Sequence[pa.DataType] = [
            to_arrow_type(column.dataType, timezone="UTC") for column in schema.fields
        ]
        self._decode = payload_check(schema)
        self._converters = [_converter(column.dataType) for column in schema.fields]
        self._times = [place for place, column in enumerate(schema.fields) if isinstance(column.dataType, _INSTANTS)]
        names = b"|".join(re.escape(msgspec.json.encode(schema.fields[place].name)) for place in self._times)
        self._too_fine = re.compile(rb"((?:%b)\s*:\s*\"[^\"]*:\d\d\.\d{6})\d+" % names) if names else None
        self._empty = msgspec.convert({}, _all_null(len(schema.fields)))

    def read(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], dict[int, str]]:
        """As PayloadReader has it."""
        rows, misfits = self._rows(payloads)
        columns = list(zip(*map(msgspec.structs.astuple, rows), strict=True)) or [()] * len(self.kinds)
        if self._times:
            self._cut_times(payloads, columns, misfits)
        shapes = zip(self.fields, columns, self.kinds, self._converters, strict=True)
        return [_array(field.name, values, misfits, kind, convert) for field, values, kind, convert in shapes], misfits

    def _cut_times(
        self, payloads: Sequence[bytes | None], columns: list[tuple[Any, ...]], misfits: Mapping[int, str]
    ) -> None:
        """Truncates points in time to microseconds, as Spark does; the decoder rounds them."""
        fine = [at for at, raw in enumerate(payloads) if at not in misfits and raw and _TOO_FINE.search(raw)]
        if not fine:
            return
        decode: Callable[[bytes], Any] = self._decode
        cut = {at: msgspec.structs.astuple(decode(_TOO_FINE.sub(rb"\1", payloads[at] or b""))) for at in fine}
        for place in self._times:  # no other column: it may have the same digits, and keeps them
            values = list(columns[place])
            for at, row in cut.items():
                values[at] = row[place]
            columns[place] = tuple(values)

    def _rows(self, payloads: Sequence[bytes | None]) -> tuple[list[Any], dict[int, str]]:
        decode, misfits = self._decode, {}
        try:
            return [decode(raw) for raw in payloads], {}  # type: ignore[arg-type]
        except UNREADABLE:
            pass
        rows = []
        for position, raw in enumerate(payloads):
            try:
                rows.append(_decoded(decode, b"null" if raw is None else raw, self._too_fine))
            except UNREADABLE as error:
                misfits[position] = misfit(error)
                rows.append(self._empty)
        return rows, misfits


class PayloadTexts:
    """A PayloadReader for one column `payload` of JSON text, checked against a schema if there is one."""

    by_columns = False
    fields: Sequence[spark.StructField] = (spark.StructField("payload", spark.StringType()),)
    kinds: Sequence[pa.DataType] = (pa.string(),)

    def __init__(self, schema: spark.StructType | None) -> None:
        self._check = payload_check(schema, is_parsed=True)

    def read(self, payloads: Sequence[bytes | None]) -> tuple[list[pa.Array], dict[int, str]]:
        """As PayloadReader has it."""
        check, misfits = self._check, {}
        try:
            for raw in payloads:
                check(raw)  # type: ignore[arg-type]
        except UNREADABLE:
            for position, raw in enumerate(payloads):
                try:
                    _decoded(check, raw or b"", _TOO_FINE)
                except UNREADABLE as error:
                    misfits[position] = misfit(error)
        return [texts(payloads)], misfits


def _decoded(decode: Callable[[bytes], Any], raw: bytes, too_fine: re.Pattern[bytes] | None) -> Any:
    """A payload, also one with a point in time within the last 500 ns of the year 9999, which the decoder cannot round
    up: this truncates what `too_fine` matches."""
    try:
        return decode(raw)
    except UNREADABLE:
        cut = raw if too_fine is None else too_fine.sub(rb"\1", raw)
        if cut == raw:
            raise
        return decode(cut)


@lru_cache(maxsize=64)  # building a decoder takes as long as reading some hundred payloads
def payload_reader(schema: spark.StructType | None, zone: str = "UTC") -> PayloadReader:
    """The reader for a station's schema: by columns where all of its types are those of `_FLAT`, in a session whose
    time zone is UTC if one of them is `timestamp`; else as text, which Spark parses."""
    is_flat = schema is not None and all(column.dataType in _FLAT for column in schema.fields)
    if schema is None or not is_flat or (has_times(schema) and zone not in _UTC):
        return PayloadTexts(schema)
    return PayloadColumns(schema)


def has_times(schema: spark.StructType | None) -> bool:
    """Whether the meaning of a payload depends on the session's time zone."""
    return schema is not None and any(isinstance(column.dataType, spark.TimestampType) for column in schema.fields)


def _array(
    name: str, values: Sequence[Any], misfits: dict[int, str], kind: pa.DataType, convert: Convert | None
) -> pa.Array:
    try:
        made = values if convert is None else [None if value is None else convert(value) for value in values]
        return pa.array(made, kind)
    except _UNFIT:
        return _one_by_one(name, values, misfits, kind, convert or _as_it_is)


def check_readable(schema: spark.StructType) -> None:
    """Raises InvalidOption for a column of a type that payloads cannot be read into."""
    try:
        check_names(schema)
    except ValueError as error:
        raise InvalidOption(f"payload columns: {error}") from None
    for column in schema.fields:
        try:
            _converter(column.dataType)
        except ValueError as error:
            raise InvalidOption(f"payload column {column.name!r}: {error}") from None


def _one_by_one(
    name: str, values: Sequence[Any], misfits: dict[int, str], kind: pa.DataType, convert: Convert
) -> pa.Array:
    kept = []
    for position, value in enumerate(values):
        try:
            kept.append(pa.scalar(convert(value), kind).as_py() if value is not None else None)
        except _UNFIT as error:
            reason = str(error).splitlines()[0]
            misfits.setdefault(position, f"the payload does not fit the schema: column {name!r}: {reason}")
            kept.append(None)
    return pa.array(kept, kind)


def _as_it_is(value: Any) -> Any:
    return value


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
    if isinstance(of, _INSTANTS):
        return _instant
    return _nested(of)


def _nested(of: spark.DataType) -> Convert:
    if isinstance(of, spark.StructType):
        check_names(of)
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
        return _as_it_is
    return lambda value: None if value is None else convert(value)


def _decimal(of: spark.DecimalType) -> Convert:
    precision, scale = of.precision, of.scale
    return lambda value: decimal_of(value, precision, scale)


def _instant(value: datetime) -> datetime:
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
