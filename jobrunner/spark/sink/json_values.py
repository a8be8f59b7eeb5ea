"""Converts column values to their JSON form where Python's values or the encoder would change them.

A double that is not finite becomes the text that Spark's `to_json` writes and that payloads of a `double` are read
from; the encoder would write null. A variant becomes the value that it contains. A point in time is in UTC: an offset
in JSON has no seconds, but offsets of most zones before 1900 do.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

_UTC = pa.timestamp("us", "UTC")
_variant_json = msgspec.json.Encoder(decimal_format="number").encode
_Convert = Callable[[Any], Any]


def json_values(column: pa.Array) -> list[Any]:
    """The values of a column, ready for the encoder. Raises the error of pyarrow for a value that Python does not
    have."""
    kind = _in_utc(column.type)
    if kind != column.type:
        column = column.cast(kind)
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    convert = _converter(column)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return kind if kind.tz is None else _UTC
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        item = kind.item_field.with_type(_in_utc(kind.item_type))
        return pa.map_(kind.key_field.with_type(_in_utc(kind.key_type)), item)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return kind


def _converter(column: pa.Array) -> _Convert | None:
    """The function that converts a value, other than null, to its JSON form; None when no conversion is needed."""
    kind = column.type
    if pa.types.is_floating(kind):
        finite = pc.all(pc.is_finite(column)).as_py()  # nulls do not count
        return None if finite or finite is None else _number
    if pa.types.is_list(kind):
        element = _converter(column.flatten())
        return None if element is None else partial(_list, element)
    if pa.types.is_map(kind):
        of_key, of_item = _converter(column.keys), _converter(column.items)
        return None if of_key is None and of_item is None else partial(_map, of_key or _as_it_is, of_item or _as_it_is)
    if pa.types.is_struct(kind):
        if _is_variant(kind):
            return _variant
        found = {field.name: _converter(part) for field, part in zip(kind, column.flatten(), strict=True)}
        parts = {name: convert for name, convert in found.items() if convert is not None}
        return partial(_struct, parts) if parts else None
    return None


def _is_variant(kind: pa.StructType) -> bool:
    """Whether the struct is a variant, by Spark's mark in the Arrow field."""
    at = kind.get_field_index("metadata")
    return at >= 0 and (kind.field(at).metadata or {}).get(b"variant") == b"true"


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _variant(value: Mapping[str, bytes]) -> msgspec.Raw:
    found = spark.VariantVal(value["value"], value["metadata"]).toPython()
    return msgspec.Raw(_variant_json(_plain(found)))  # its own toJson writes a word that is no JSON for NaN


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


def _list(element: _Convert, value: list[Any]) -> list[Any]:
    return [None if one is None else element(one) for one in value]


def _map(of_key: _Convert, of_item: _Convert, value: Mapping[Any, Any]) -> dict[Any, Any]:
    return {of_key(key): None if item is None else of_item(item) for key, item in value.items()}


def _struct(parts: Mapping[str, _Convert], value: dict[str, Any]) -> dict[str, Any]:
    for name, convert in parts.items():
        if value[name] is not None:
            value[name] = convert(value[name])
    return value


def _as_it_is(value: Any) -> Any:
    return value
