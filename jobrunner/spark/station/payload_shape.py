"""The shape of a station's DataFrame: the columns of the payload, or its text, and the item's own columns.

In rows as they were read, the payload's columns may have other names, and headers are text; `dress` converts these rows
to the form that a function sees.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everybody knows
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from jobrunner.errors import InvalidOption
from jobrunner.spark.columns import UTC, quoted
from jobrunner.spark.parsed_values import check_names, check_type
from jobrunner.spark.payload_columns import PayloadReader, has_times, payload_reader
from jobrunner.spark.running import (
    TIME_POLICY,
    conf_of,
    first_line,
    names_told,
    parses_as_spark_2,
    running_session,
    same_names,
)

VARIANT = "variant"
PAYLOAD = "payload"
OWN = ("_id", "_type", "_attempts", "_enqueue_time", "_headers")
OWN_KINDS = (pa.string(), pa.string(), pa.int32(), UTC, pa.string())
_OWN_TYPES = (StringType(), StringType(), IntegerType(), TimestampType(), StringType())
OWN_FIELDS = [StructField(name, kind) for name, kind in zip(OWN, _OWN_TYPES, strict=True)]
"""The item's own columns in rows as they were read: `_headers` is text, but a map in the frame of a function."""
_AS_IT_STANDS = {"mode": "FAILFAST", "columnNameOfCorruptRecord": "_corrupt_record"}
"""Options of `from_json`. Misfits were removed before; the mode ensures that no value becomes null silently. A session
may set the name of the column for corrupt records, and a payload column of that name would be null; so the name here
begins with `_`, which payload columns never do."""


@dataclass(frozen=True, slots=True)
class PayloadShape:
    """The form of payloads in a station: columns, or one column of JSON text or of variants."""

    columns: StructType | None = None
    is_variant: bool = False

    def dress(self, read: DataFrame, reader: PayloadReader | None = None, prefix: str = "") -> DataFrame:
        """Rows in the station's form, from payload columns that `reader` returned, whose names begin with `prefix`, or
        from the column `payload`, JSON text."""
        headers = F.from_json("_headers", "map<string,string>").alias("_headers")
        own: list[Column] = [F.col("_id"), F.col("_type"), F.col("_attempts"), F.col("_enqueue_time"), headers]
        if reader is not None and reader.by_columns:
            return read.select(*[_column(field, prefix) for field in reader.fields], *own)
        text = F.col(quoted(prefix + PAYLOAD))
        if self.columns is not None:
            parsed = F.from_json(text, self.columns, _AS_IT_STANDS).alias(PAYLOAD)
            named: list[Column] = [F.col(quoted(PAYLOAD, name)) for name in self.columns.fieldNames()]
            return read.select(parsed, *own).select(*named, *map(F.col, OWN))
        return read.select((F.parse_json(text) if self.is_variant else text).alias(PAYLOAD), *own)


def _column(field: StructField, prefix: str) -> Column:
    found = F.col(quoted(prefix + field.name))
    return found.alias(field.name, metadata=field.metadata) if field.metadata else found.alias(field.name)


def time_zone(spark: SparkSession, schemas: Iterable[StructType | None]) -> str:
    """The time zone that `from_json` uses for points in time without an offset; read only if a schema has such a
    type."""
    if not any(map(has_times, schemas)):
        return "UTC"
    return conf_of(spark, "spark.sql.session.timeZone") or "UTC"


def shape_of(schema: str | StructType | None, queue: str) -> PayloadShape:
    """The shape that a schema declares. Needs a session. Raises InvalidOption that names the column."""
    if schema is None or (isinstance(schema, str) and schema.strip().lower() == VARIANT):
        return PayloadShape(is_variant=schema is not None)
    try:
        columns = schema if isinstance(schema, StructType) else cast(StructType, StructType.fromDDL(schema))
    except PySparkException as error:
        reason = first_line(error).partition(" SQLSTATE")[0].rstrip(".")
        raise InvalidOption(f"schema={schema!r} of queue {queue!r}: {reason}; write 'id int, name string'") from error
    for column in columns.fields:
        if column.name.startswith("_"):
            raise InvalidOption(
                f"column {column.name!r} in the schema of queue {queue!r}: names that begin with _ are the item's own; "
                "leave the schema out and read it from the column payload"
            )
        try:
            check_names(columns)
            check_type(column.dataType)
        except ValueError as error:
            raise InvalidOption(
                f"column {column.name!r} in the schema of queue {queue!r}: {error}; leave the schema out and read it "
                "from the column payload"
            ) from error
    if twice := same_names(running_session(), columns.fieldNames()):
        raise InvalidOption(f"the schema of queue {queue!r} has {names_told(twice)}, or leave the schema out")
    _check_policy(columns, queue)
    return PayloadShape(columns)


def _check_policy(columns: StructType, queue: str) -> None:
    """Raises InvalidOption for times under the parser of Spark 2, which takes microseconds for milliseconds, and shifts
    dates before 1582."""
    spark = running_session()
    if spark is None or not parses_as_spark_2(spark) or not _has_days(columns):
        return
    if not payload_reader(columns, time_zone(spark, [columns])).by_columns:
        raise InvalidOption(
            f"the schema of queue {queue!r} is parsed by Spark, and {TIME_POLICY}=LEGACY would change its dates and "
            f'times: set it to "CORRECTED", or leave the schema out and read it from the column payload'
        )


def _has_days(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_days(one.dataType) for one in kind.fields)
    if isinstance(kind, MapType):
        return _has_days(kind.valueType)
    if isinstance(kind, ArrayType):
        return _has_days(kind.elementType)
    return isinstance(kind, (DateType, TimestampType))


def arrow_schema(reader: PayloadReader) -> pa.Schema:
    """The Arrow schema of rows as they were read: the columns that `reader` returns, then the item's own."""
    return pa.schema([*arrow_fields(reader), *zip(OWN, OWN_KINDS, strict=True)])


def spark_schema(reader: PayloadReader) -> StructType:
    """The Spark schema of rows as they were read."""
    return StructType([*spark_fields(reader), *OWN_FIELDS])


def arrow_fields(reader: PayloadReader, prefix: str = "") -> list[pa.Field]:
    """The Arrow fields of the columns that a reader returns, with names that begin with `prefix`."""
    return [pa.field(prefix + one.name, kind) for one, kind in zip(reader.fields, reader.kinds, strict=True)]


def spark_fields(reader: PayloadReader, prefix: str = "") -> list[StructField]:
    """The Spark fields of the columns that a reader returns, with names that begin with `prefix`."""
    return [StructField(prefix + one.name, one.dataType) for one in reader.fields]


def as_read(rows: DataFrame, payload: Column) -> DataFrame:
    """Converts rows back to the form in which they were read, with the payload as text: the inverse of `dress`."""
    own = [F.col(name) for name in OWN if name not in ("_id", "_headers")]
    return rows.select(F.col("_id"), payload.alias(PAYLOAD), *own, F.to_json("_headers").alias("_headers"))
