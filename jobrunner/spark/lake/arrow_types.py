"""The Arrow types of a DataFrame's columns, as both table formats can store them."""

import pyarrow as pa
from pyspark.sql import types as spark

from jobrunner.errors import TableError

_KINDS: dict[type[spark.DataType], pa.DataType] = {
    spark.BinaryType: pa.binary(),
    spark.BooleanType: pa.bool_(),
    spark.ByteType: pa.int8(),
    spark.DateType: pa.date32(),
    spark.DoubleType: pa.float64(),
    spark.FloatType: pa.float32(),
    spark.IntegerType: pa.int32(),
    spark.LongType: pa.int64(),
    spark.ShortType: pa.int16(),
    spark.StringType: pa.string(),
    spark.TimestampNTZType: pa.timestamp("us"),
    spark.TimestampType: pa.timestamp("us", "UTC"),
}


def arrow_schema(table: str, columns: spark.StructType) -> pa.Schema:
    """The schema of rows for a table. Raises TableError that names a column whose type no table can store."""
    return pa.schema([pa.field(one.name, _kind(table, one.name, one.dataType)) for one in columns.fields])


def _kind(table: str, column: str, kind: spark.DataType) -> pa.DataType:
    if isinstance(kind, spark.DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, spark.ArrayType):
        return pa.list_(pa.field("element", _kind(table, column, kind.elementType)))
    if isinstance(kind, spark.MapType):
        return pa.map_(_kind(table, column, kind.keyType), _kind(table, column, kind.valueType))
    if isinstance(kind, spark.StructType):
        _check_struct(table, column, kind)
        return pa.struct([pa.field(one.name, _kind(table, column, one.dataType)) for one in kind.fields])
    for known, made in _KINDS.items():
        if isinstance(kind, known):
            return made
    raise TableError(
        f"column {column!r} for table {table} is of type {kind.simpleString()}, which no table has: cast it, "
        "to a string say"
    )


def _check_struct(table: str, column: str, kind: spark.StructType) -> None:
    """Raises TableError for a struct that no data file can hold, or that Spark could not read back."""
    if not kind.fields:
        raise TableError(f"column {column!r} for table {table} has a struct without fields, which no "
                         "table has: drop it")  # fmt: skip
    names: dict[str, str] = {}
    for name in kind.names:
        if name.lower() in names:
            raise TableError(f"column {column!r} for table {table} has a struct with the fields "
                             f"{names[name.lower()]!r} and {name!r}: rename one of them")  # fmt: skip
        names[name.lower()] = name
