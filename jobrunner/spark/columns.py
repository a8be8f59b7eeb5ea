"""The columns that every item has in addition to those of its payload: names, types, and their conversion to Arrow.
A value that cannot be read (damage) is null; it never ends a read.

Also the checks of steering columns that rows of a station and rows of a write share.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as spark

from jobrunner.retry import seconds

UTC = pa.timestamp("us", "UTC")
_BAND = 2.0**42
_LARGEST = 2**31 - 1
_FARTHEST_S = 1e12
_MOST_DIGITS = 18
"""Python itself refuses texts of thousands of digits, with an error that names no option."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ItemChunk:
    """Items of one state of one queue, in the order of the read: ids, scores, and the values of the fields by
    position."""

    queue: str
    state: str
    ids: Sequence[bytes]
    scores: Sequence[bytes]
    values: Mapping[str, Sequence[bytes | None]]

    def texts(self, field: str) -> pa.Array:
        """A field as strings; bytes that are no UTF-8 become replacement characters."""
        return texts(self.values[field])

    def numbers(self, field: str) -> pa.Array:
        """A field as doubles."""
        return numbers(self.values[field])

    def whole(self, field: str, default: int | None) -> pa.Array:
        """A field as 32-bit whole numbers; `default` where it is missing."""
        values = self.values[field]
        if values.count(values[0]) == len(values):  # as for nearly all pages; conversion takes ten times as long
            return pa.repeat(_whole_number(values[0], default), len(values))
        return _whole_numbers(values, default)

    def all(self, value: str) -> pa.Array:
        """The same text for each item."""
        return pa.repeat(pa.scalar(value, pa.string()), len(self.ids))

    def nothing(self, kind: pa.DataType) -> pa.Array:
        """Null for each item."""
        return pa.nulls(len(self.ids), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemColumn:
    """One column: its types in Spark and in Arrow, the fields of the hash that it is computed from, and the function
    that computes it."""

    ddl: str
    kind: pa.DataType
    make: Callable[[ItemChunk], pa.Array]
    fields: tuple[str, ...] = ()
    only_done: tuple[str, ...] = ()
    """Fields that only finished items have."""


def texts(values: Sequence[bytes | None]) -> pa.Array:
    """Strings of UTF-8 bytes; other bytes become replacement characters."""
    try:
        return _texts(values)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([None if one is None else one.decode("utf-8", "replace") for one in values], pa.string())


def numbers(values: Sequence[bytes | None]) -> pa.Array:
    """Doubles of decimal text."""
    try:
        found = pc.cast(_texts(values), pa.float64())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        found = None
    if found is None or pc.any(pc.invert(pc.is_finite(found))).as_py():  # "nan" is damage too
        return pa.array([_number(one) for one in values], pa.float64())
    return found


def _texts(values: Sequence[bytes | None]) -> pa.Array:
    if _are_null(values):
        return pa.nulls(len(values), pa.string())
    try:
        joined = b"".join(values)  # type: ignore[arg-type]
    except TypeError:  # some are null
        return pa.array(values, pa.string())
    if not joined.isascii() or len(joined) > _LARGEST:
        return pa.array(values, pa.string())  # checks and copies one by one
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=ends[1:])  # type: ignore[arg-type]
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(joined))


def _are_null(values: Sequence[bytes | None]) -> bool:
    return bool(values) and values[0] is None and values.count(None) == len(values)


def instants(milliseconds: pa.Array) -> pa.Array:
    """Timestamps of Unix ms, whose fraction counts microseconds."""
    if milliseconds.null_count == len(milliseconds):
        return pa.nulls(len(milliseconds), UTC)
    if milliseconds.null_count:
        return pc.cast(pc.round(pc.multiply(milliseconds, 1000.0)), pa.int64(), safe=False).cast(UTC)
    whole = np.rint(milliseconds.to_numpy() * 1000.0).astype(np.int64)
    return pa.Array.from_buffers(UTC, len(whole), [None, pa.py_buffer(whole)])


def _whole_numbers(values: Sequence[bytes | None], default: int | None) -> pa.Array:
    found = pc.cast(numbers(values), pa.int32(), safe=False)
    return found if default is None else pc.fill_null(found, default)


@lru_cache(maxsize=256)
def _whole_number(value: bytes | None, default: int | None) -> pa.Scalar:
    return _whole_numbers([value], default)[0]


def _number(raw: bytes | None) -> float | None:
    try:
        number = float(raw or b"")
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None


def _text(field: str, *, done: bool = False) -> ItemColumn:
    def make(chunk: ItemChunk) -> pa.Array:
        return chunk.texts(field) if field in chunk.values else chunk.nothing(pa.string())

    return _column("string", make, field, done=done)


def _whole(field: str, default: int | None) -> ItemColumn:
    return _column("int", lambda chunk: chunk.whole(field, default), field)


def _instant(field: str) -> ItemColumn:
    return _column(_TIMESTAMP, lambda chunk: instants(chunk.numbers(field)), field)


def _score(*states: str) -> ItemColumn:
    def make(chunk: ItemChunk) -> pa.Array:
        return instants(numbers(chunk.scores)) if chunk.state in states else chunk.nothing(UTC)

    return _column(_TIMESTAMP, make)


_TIMESTAMP = "timestamp_ltz"
"""`timestamp` is another type in a session with spark.sql.timestampType=TIMESTAMP_NTZ."""
_KINDS = {"string": pa.string(), "int": pa.int32(), _TIMESTAMP: UTC}


def _column(ddl: str, make: Callable[[ItemChunk], pa.Array], *fields: str, done: bool = False) -> ItemColumn:
    return ItemColumn(
        ddl=ddl, kind=_KINDS[ddl], make=make, fields=() if done else fields, only_done=fields if done else ()
    )


def _attempts(chunk: ItemChunk) -> pa.Array:
    """Attempts that were begun: the recorded number, else the failures and the attempt that runs or succeeded."""
    begun = 1 if chunk.state in ("pending", "done") else 0
    counted = chunk.whole("retry_count", 0)
    if begun:
        counted = pc.add(counted, pa.scalar(begun, pa.int32()))
    if "attempts" in chunk.values:
        counted = pc.coalesce(chunk.whole("attempts", None), counted)
    return counted


def _type(chunk: ItemChunk) -> pa.Array:
    types = chunk.values["type"]
    if types.count(types[0]) == len(types):
        return pc.fill_null(pa.repeat(texts(types[:1])[0], len(types)), "")
    return pc.fill_null(texts(types), "")


def _state(chunk: ItemChunk) -> pa.Array:
    if chunk.state != "done":
        return chunk.all(chunk.state)
    return pc.fill_null(chunk.texts("outcome"), "succeeded")


def _due_time(chunk: ItemChunk) -> pa.Array:
    """The instant at which the last attempt was due: the item's queue position without its priority
    (lua/lib/queue_position.lua)."""
    bands = pc.subtract(1.0, pc.fill_null(chunk.numbers("priority"), 1.0))
    return instants(pc.subtract(chunk.numbers("place"), pc.multiply(bands, _BAND)))


ITEM_COLUMNS: dict[str, ItemColumn] = {
    "_id": _column("string", lambda chunk: texts(chunk.ids)),
    "_queue": _column("string", lambda chunk: chunk.all(chunk.queue)),
    "_state": ItemColumn(ddl="string", kind=pa.string(), make=_state, only_done=("outcome",)),
    "_type": _column("string", _type, "type"),
    "_attempts": ItemColumn(
        ddl="int", kind=pa.int32(), make=_attempts, fields=("retry_count",), only_done=("attempts",)
    ),
    "_retry_count": _whole("retry_count", 0),
    "_enqueue_time": _instant("enqueue_time"),
    "_started_at": _instant("started_at"),
    "_when": _score("scheduled", "pending", "dead", "done"),
    "_finished_at": _score("done"),
    "_priority": _whole("priority", 1),
    "_error": _text("error"),
    "_result": _text("result", done=True),
    "_headers": _text("headers"),
    "_partition": _text("key"),
    "_hops": _whole("hops", 0),
    "_due_time": _column(_TIMESTAMP, _due_time, "place", "priority"),
    "_encoding": _text("encoding"),
    "_max_attempts": _whole("max_attempts", None),
    "_max_stalled": _whole("max_stalled", None),
    "_keepalive_ms": _whole("keepalive_ms", None),
    "_run_ms": _whole("run_ms", None),
}
"""By name."""
_ON_DEMAND = ("_due_time", "_encoding", "_max_attempts", "_max_stalled", "_keepalive_ms", "_run_ms")
USUAL_COLUMNS = tuple(name for name in ITEM_COLUMNS if name not in _ON_DEMAND)
"""Columns of a read without `columns`, in this order; other columns are read only when they are named."""


class Selection:
    """The item columns of one read. Travels to other processes as names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __reduce__(self) -> Any:
        return Selection, (self.names,)

    @cached_property
    def columns(self) -> dict[str, ItemColumn]:
        """By name."""
        return {name: ITEM_COLUMNS[name] for name in self.names}

    def fields(self, state: str) -> tuple[str, ...]:
        """The fields of the hash to fetch for items of one state."""
        wanted = [field for column in self.columns.values() for field in column.fields]
        if state == "done":
            wanted += [field for column in self.columns.values() for field in column.only_done]
        return tuple(dict.fromkeys(wanted))


def quoted(*names: str) -> str:
    """The name of a column, or of a field in a column, as a Spark expression in which dots and backticks are
    literal."""
    return ".".join("`" + name.replace("`", "``") + "`" for name in names)


WHOLE = (spark.ByteType, spark.ShortType, spark.IntegerType, spark.LongType)
NUMBER = (*WHOLE, spark.FloatType, spark.DoubleType, spark.DecimalType)
_HIGHEST_PRIORITY = 2


def checked_priority(value: int) -> int:
    """The priority of a row. Raises ValueError when it is out of range."""
    if not 0 <= value <= _HIGHEST_PRIORITY:
        raise ValueError(value)
    return value


def delay_s(value: Any) -> float:
    """The delay of a row, in seconds. Raises ValueError for more than a century, and for a value that is no number."""
    return seconds(float(value), option="a delay", minimum=-_FARTHEST_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonForms:
    """The column types that one conversion to JSON carries without loss."""

    keys: tuple[type[spark.DataType], ...]
    """Types of map keys, which become member names of JSON objects."""
    formless: tuple[type[spark.DataType], ...] = ()

    def check(self, kind: spark.DataType) -> None:
        """Raises ValueError for any other type."""
        if isinstance(kind, self.formless):
            raise ValueError(f"{kind.simpleString()} has no JSON form; cast it to a string")
        if isinstance(kind, spark.ArrayType):
            self.check(kind.elementType)
        elif isinstance(kind, spark.MapType):
            if not isinstance(kind.keyType, self.keys):
                raise ValueError(f"keys of type {kind.keyType.simpleString()} have no JSON form; make them strings")
            self.check(kind.valueType)
        elif isinstance(kind, spark.StructType):
            names = kind.fieldNames()
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(f"it has the field {twice[0]!r} twice; rename one of them")
            for field in kind.fields:
                self.check(field.dataType)


def whole_number(text: str) -> int | None:
    """The value of a text of up to 18 decimal digits, as many as always fit into 64 bits; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


def refuses(check: Callable[[Any], object], value: Any) -> bool:
    """Whether a check raises for a value; finds the row that made a column fail."""
    try:
        check(value)
    except Exception:  # a check may refuse with any error
        return True
    return False
