"""The columns that every item has, beside those of its payload: names, types, and how they come about in Arrow.

A value that cannot be read (damage) is null; it never ends a read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

UTC = pa.timestamp("us", "UTC")
_BAND = 2.0**42


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """Items of one state of one queue, as they came: ids, scores, and the values of the fields by position."""

    queue: str
    state: str
    ids: Sequence[bytes]
    scores: Sequence[bytes]
    values: Mapping[str, Sequence[bytes | None]]

    def texts(self, field: str) -> pa.Array:
        """A field as strings; what is no UTF-8 with replacement characters."""
        return texts(self.values[field])

    def numbers(self, field: str) -> pa.Array:
        """A field as doubles."""
        return numbers(self.values[field])

    def all(self, value: str) -> pa.Array:
        """The same word for each item."""
        return pa.repeat(pa.scalar(value, pa.string()), len(self.ids))

    def nothing(self, kind: pa.DataType) -> pa.Array:
        """Null for each item."""
        return pa.nulls(len(self.ids), kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: its type in Spark and in Arrow, the fields of the hash it is made of, and how."""

    ddl: str
    kind: pa.DataType
    make: Callable[[Chunk], pa.Array]
    fields: tuple[str, ...] = ()
    only_done: tuple[str, ...] = ()
    """Fields that only finished items have."""


def texts(values: Sequence[bytes | None]) -> pa.Array:
    """Strings of UTF-8 bytes; bytes that are none come with replacement characters."""
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([None if one is None else one.decode("utf-8", "replace") for one in values], pa.string())


def numbers(values: Sequence[bytes | None]) -> pa.Array:
    """Doubles of decimal text."""
    try:
        return pc.cast(pa.array(values, pa.string()), pa.float64())
    except (pa.ArrowInvalid, UnicodeDecodeError):
        return pa.array([_number(one) for one in values], pa.float64())


def instants(milliseconds: pa.Array) -> pa.Array:
    """Timestamps of Unix ms, whose fraction counts microseconds."""
    return pc.cast(pc.round(pc.multiply(milliseconds, 1000.0)), pa.int64(), safe=False).cast(UTC)


def _number(raw: bytes | None) -> float | None:
    try:
        number = float(raw or b"")
    except ValueError:
        return None
    return number if abs(number) < 1e15 else None


def _text(field: str, *, done: bool = False) -> Column:
    def make(chunk: Chunk) -> pa.Array:
        return chunk.texts(field) if field in chunk.values else chunk.nothing(pa.string())

    return _column("string", make, field, done=done)


def _whole(field: str, default: int | None) -> Column:
    def make(chunk: Chunk) -> pa.Array:
        found = pc.cast(chunk.numbers(field), pa.int32(), safe=False)
        return found if default is None else pc.fill_null(found, default)

    return _column("int", make, field)


def _instant(field: str) -> Column:
    return _column("timestamp", lambda chunk: instants(chunk.numbers(field)), field)


def _score(*states: str) -> Column:
    def make(chunk: Chunk) -> pa.Array:
        return instants(numbers(chunk.scores)) if chunk.state in states else chunk.nothing(UTC)

    return _column("timestamp", make)


_KINDS = {"string": pa.string(), "int": pa.int32(), "timestamp": UTC}


def _column(ddl: str, make: Callable[[Chunk], pa.Array], *fields: str, done: bool = False) -> Column:
    return Column(
        ddl=ddl, kind=_KINDS[ddl], make=make, fields=() if done else fields, only_done=fields if done else ()
    )


def _attempts(chunk: Chunk) -> pa.Array:
    """Runs that were begun: as noted, else the failures and the run that goes on or went well."""
    begun = 1 if chunk.state in ("pending", "done") else 0
    counted = pc.add(pc.fill_null(chunk.numbers("retry_count"), 0.0), float(begun))
    if "attempts" in chunk.values:
        counted = pc.coalesce(chunk.numbers("attempts"), counted)
    return pc.cast(counted, pa.int32(), safe=False)


def _state(chunk: Chunk) -> pa.Array:
    if chunk.state != "done":
        return chunk.all(chunk.state)
    return pc.fill_null(chunk.texts("outcome"), "succeeded")


def _due_time(chunk: Chunk) -> pa.Array:
    """When the last attempt was due: a place in line without its priority (lua/lib/place.lua)."""
    bands = pc.subtract(1.0, pc.fill_null(chunk.numbers("priority"), 1.0))
    return instants(pc.subtract(chunk.numbers("place"), pc.multiply(bands, _BAND)))


ITEM_COLUMNS: dict[str, Column] = {
    "_id": _column("string", lambda chunk: texts(chunk.ids)),
    "_queue": _column("string", lambda chunk: chunk.all(chunk.queue)),
    "_state": Column(ddl="string", kind=pa.string(), make=_state, only_done=("outcome",)),
    "_type": _column("string", lambda chunk: pc.fill_null(chunk.texts("type"), ""), "type"),
    "_attempts": Column(
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
    "_key": _text("key"),
    "_hops": _whole("hops", 0),
    "_due_time": _column("timestamp", _due_time, "place", "priority"),
    "_encoding": _text("encoding"),
    "_max_attempts": _whole("max_attempts", None),
    "_max_expiries": _whole("max_expiries", None),
    "_keepalive_ms": _whole("keepalive_ms", None),
}
"""By name."""
_ON_DEMAND = ("_due_time", "_encoding", "_max_attempts", "_max_expiries", "_keepalive_ms")
USUAL_COLUMNS = tuple(name for name in ITEM_COLUMNS if name not in _ON_DEMAND)
"""Those that a read without `columns` has, in their order; the others are read when they are named."""


class Selection:
    """The item columns of one read. Travels to other processes as names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __reduce__(self) -> Any:
        return Selection, (self.names,)

    @cached_property
    def columns(self) -> dict[str, Column]:
        """By name."""
        return {name: ITEM_COLUMNS[name] for name in self.names}

    def fields(self, state: str) -> tuple[str, ...]:
        """The fields of the hash to fetch for items of one state."""
        wanted = [field for column in self.columns.values() for field in column.fields]
        if state == "done":
            wanted += [field for column in self.columns.values() for field in column.only_done]
        return tuple(dict.fromkeys(wanted))
