"""The DataFrames of a station: the members of a batch as its input, and its output as rows to stage.

Small batches go through the driver, which saves Spark a stage of Python; larger batches are read where Spark runs,
chunk by chunk, and never pass the driver. In the output, columns that begin with `_` steer the item or are its own; all
others are its payload. Errors that the columns alone reveal are raised here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql import types as spark_types
from pyspark.sql.types import StructType

from jobrunner.errors import InvalidOption, StationError
from jobrunner.etl.graph import nearest
from jobrunner.etl.spark_station import SparkStation
from jobrunner.spark.payloads import payload_check
from jobrunner.spark.station.members import CHUNK, COLUMNS, DDL, BatchRef, read_members

THROUGH_DRIVER = 10_000
"""Largest batch, in items, that is read by the driver."""
VARIANT = "variant"
PAYLOAD = "payload"
OWN = ("_id", "_type", "_attempts", "_enqueue_time", "_headers")


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """How a station sees payloads: by columns, or as one column of JSON text or of variants."""

    columns: StructType | None = None
    is_variant: bool = False

    @property
    def is_text(self) -> bool:
        """Whether the payload is one column of JSON text."""
        return self.columns is None and not self.is_variant


def shape_of(schema: str | StructType | None, queue: str) -> PayloadShape:
    """The shape that a schema declares. Needs a session. Raises InvalidOption that names the column."""
    if schema is None or (isinstance(schema, str) and schema.strip().lower() == VARIANT):
        return PayloadShape(is_variant=schema is not None)
    try:
        columns = schema if isinstance(schema, StructType) else cast(StructType, StructType.fromDDL(schema))
    except PySparkException as error:
        said = str(error).split("\n")[0]
        raise InvalidOption(f"schema={schema!r} of queue {queue!r}: {said}; write 'id int, name string'") from error
    for name in columns.fieldNames():
        if name.startswith("_"):
            raise InvalidOption(
                f"column {name!r} in the schema of queue {queue!r}: names that begin with _ are the item's own; "
                "leave the schema out and read it from the column payload"
            )
    return PayloadShape(columns)


def members_frame(spark: SparkSession, place: BatchRef, shape: PayloadShape) -> DataFrame:
    """The items of a batch whose payloads fit; the others are staged as dead when the frame is evaluated, or now."""
    if place.size <= THROUGH_DRIVER:
        read = list(read_chunks(place, shape.columns, CHUNK, range(0, place.size, CHUNK)))
        return _dress(spark.createDataFrame(pa.Table.from_batches(read, COLUMNS)), shape)
    chunks = spark.range(0, place.size, CHUNK)
    return _dress(chunks.mapInArrow(partial(_read_task, place, shape.columns, CHUNK), DDL), shape)


def read_chunks(
    place: BatchRef, columns: StructType | None, size: int, starts: Iterable[int]
) -> Iterator[pa.RecordBatch]:
    """The chunks of a batch that begin at these positions."""
    check = payload_check(columns)
    with place.open() as access:
        for start in starts:
            yield read_members(access, start, size, check)


def _read_task(
    place: BatchRef, columns: StructType | None, size: int, rows: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """One Spark task: each row says where a chunk begins."""
    yield from read_chunks(place, columns, size, (start for batch in rows for start in batch.column(0).to_pylist()))


def _dress(read: DataFrame, shape: PayloadShape) -> DataFrame:
    headers = F.from_json("_headers", "map<string,string>").alias("_headers")
    own: list[Column] = [F.col("_id"), F.col("_type"), F.col("_attempts"), F.col("_enqueue_time"), headers]
    if shape.columns is not None:
        # Misfits were sorted out before; the mode makes sure that no value turns into null silently.
        parsed = F.from_json(PAYLOAD, shape.columns, {"mode": "FAILFAST"}).alias(PAYLOAD)
        named: list[Column] = [F.col(f"`{PAYLOAD}`.`{name}`") for name in shape.columns.fieldNames()]
        return read.select(parsed, *own).select(*named, *map(F.col, OWN))
    payload = F.parse_json(PAYLOAD).alias(PAYLOAD) if shape.is_variant else F.col(PAYLOAD)
    return read.select(payload, *own)


ID, TO, DELAY, PRIORITY, HEADERS = "_id", "_to", "_delay", "_priority", "_headers"
_STEERING = (TO, DELAY, PRIORITY, HEADERS)
_WHOLE = (spark_types.ByteType, spark_types.ShortType, spark_types.IntegerType, spark_types.LongType)
_NUMBER = (*_WHOLE, spark_types.FloatType, spark_types.DoubleType, spark_types.DecimalType)
_JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_HEADERS_TYPE = spark_types.MapType(spark_types.StringType(), spark_types.StringType())


@dataclass(frozen=True, slots=True)
class OutputRows:
    """Rows to stage: `frame` has _id, payload and those of _to, _delay, _priority, _headers that were there."""

    frame: DataFrame
    checks_payload: bool
    """Whether the payload is text of the user's own, which may be no JSON."""


def rows_of(returned: Any, station: SparkStation, shape: PayloadShape) -> OutputRows:
    """The rows of what the function returned for payloads of that shape. Raises StationError that names the column."""
    who = f"station {station.queue!r}"
    if not isinstance(returned, DataFrame):
        said = "nothing" if returned is None else f"{type(returned).__name__} {returned!r}"[:80]
        raise StationError(f"{who} returned {said}: return a DataFrame")
    if returned.isStreaming:
        raise StationError(f"{who} returned a streaming DataFrame: return one made from df")
    columns = {field.name: field.dataType for field in returned.schema.fields}
    _check_names(who, returned.columns, station)
    _check_types(who, columns)
    payload = {name: kind for name, kind in columns.items() if not name.startswith("_")}
    if not payload:
        raise StationError(f"{who} returned no column for the payload: keep those that are to go on, next to _id")
    text, checked = _payload(payload, shape)
    kept = [_steering(name) for name in columns if name in _STEERING]
    task_id = F.col(ID) if ID in columns else F.lit(None).cast("string").alias(ID)
    return OutputRows(returned.select(task_id, text.alias(PAYLOAD), *kept), checked)


def _check_names(who: str, names: list[str], station: SparkStation) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StationError(f"{who} returned column {twice[0]!r} twice: drop or rename one of them (join by name)")
    if ID not in names and not station.emits_new:
        raise StationError(
            f"{who} lost the column _id: keep it in select and groupBy, or declare emits_new=True for new items"
        )
    if TO not in names and len(station.targets) != 1:
        short = ", ".join(repr(name.partition("/")[2]) for name in station.targets)
        raise StationError(f"{who} returned no column _to but leads to {short}: name one of them for each row")
    for name in names:
        if name.startswith("_") and name not in _STEERING + OWN:
            hint = nearest(name, _STEERING)
            raise StationError(f"{who} returned column {name!r}: names that begin with _ steer the item; {hint}")


def _check_types(who: str, columns: dict[str, spark_types.DataType]) -> None:
    wanted: dict[str, tuple[tuple[type[spark_types.DataType], ...], str]] = {
        ID: ((spark_types.StringType,), "a string, as it was in df"),
        TO: ((spark_types.StringType,), "a string, the name of a queue"),
        DELAY: (_NUMBER, "a number of seconds"),
        PRIORITY: (_WHOLE, "a whole number: 0, 1 or 2"),
        HEADERS: ((spark_types.MapType,), "a map of strings"),
    }
    for name, (kinds, should) in wanted.items():
        kind = columns.get(name)
        if kind is None or isinstance(kind, (*kinds, spark_types.NullType)):
            continue
        raise StationError(f"{who} returned column {name!r} of type {kind.simpleString()}: make it {should}")


def _payload(columns: dict[str, spark_types.DataType], shape: PayloadShape) -> tuple[Column, bool]:
    if list(columns) == [PAYLOAD] and shape.columns is None:
        if isinstance(columns[PAYLOAD], spark_types.StringType):
            return F.col(PAYLOAD), True
        if isinstance(columns[PAYLOAD], spark_types.VariantType):
            return F.to_json(F.col(PAYLOAD)), False
    return F.to_json(F.struct(*[F.col(f"`{name}`") for name in columns]), _JSON), False


def _steering(name: str) -> Column:
    if name == HEADERS:
        return F.to_json(F.col(name).cast(_HEADERS_TYPE)).alias(name)
    return F.col(name).cast({TO: "string", DELAY: "double", PRIORITY: "int"}[name]).alias(name)
