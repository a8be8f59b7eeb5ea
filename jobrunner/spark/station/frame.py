"""The members of a batch as a DataFrame: the payload's columns and the item's own.

Small batches go through the driver, which saves Spark a stage of Python; larger ones are read where Spark runs, chunk
by chunk, and never pass the driver.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import StructType

from jobrunner.errors import InvalidOption
from jobrunner.spark.rows.schema_check import payload_check
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
        # What does not fit was sorted out before, so the mode only says that nothing may turn into null in silence.
        parsed = F.from_json(PAYLOAD, shape.columns, {"mode": "FAILFAST"}).alias(PAYLOAD)
        named: list[Column] = [F.col(f"`{PAYLOAD}`.`{name}`") for name in shape.columns.fieldNames()]
        return read.select(parsed, *own).select(*named, *map(F.col, OWN))
    payload = F.parse_json(PAYLOAD).alias(PAYLOAD) if shape.is_variant else F.col(PAYLOAD)
    return read.select(payload, *own)
