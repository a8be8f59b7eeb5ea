"""Checks values that a table cannot store, each an error of its item and not of the table, and selects the row to keep
for each key."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from jobrunner.errors import PipelineError, TableError

_LONGEST_PARTITION = 255
"""Limit of bytes of `column=value`, quoted: compactions and merges create a folder of this name."""
_NAME_OF_NULL = "__HIVE_DEFAULT_PARTITION__"

_DAYS = -719_162, 2_932_896
_MICROSECONDS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The first and the last of the years 1 to 9999, counted from 1970."""


def check_nulls(table: str, schema: pa.Schema, rows: Any) -> None:
    """Raises PipelineError that names a column in which rows have a null that the table does not allow."""
    for one in schema:
        if not one.nullable and (nulls := rows.column(one.name).null_count):
            raise PipelineError(f"{nulls} rows have no value for column {one.name!r}, in which table {table} allows no "
                                "null")  # fmt: skip


def check_years(table: str, rows: pa.Table | pa.RecordBatch) -> None:
    """Raises PipelineError that names a column with a date or a point in time outside the years 1 to 9999 (UTC).

    Spark has such values, but `pyiceberg` fails to commit them and Python's readers to read them.
    """
    for name in rows.schema.names:
        for times in _times_in(rows.column(name)):
            is_date = pa.types.is_date(times.type)
            least, most = (_DAYS if is_date else _MICROSECONDS)
            numbers = times.cast(pa.int32() if is_date else pa.int64())
            is_outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
            if pc.any(is_outside).as_py():
                found = times.filter(is_outside)[0].cast(pa.date32() if is_date else pa.timestamp("us"))
                raise PipelineError(f"a value of column {name!r} for table {table} is {found.cast(pa.string())}: dates "
                                    "and points in time (UTC) must be in the years 1 to 9999")  # fmt: skip


def _times_in(values: Any) -> Iterator[Any]:
    """Each array of dates or points in time within an array, at any depth."""
    kind = values.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        yield values
    elif isinstance(values, pa.ChunkedArray):
        for chunk in values.chunks if pa.types.is_nested(kind) else ():
            yield from _times_in(chunk)
    elif pa.types.is_map(kind):
        yield from _times_in(values.keys)
        yield from _times_in(values.items)
    elif pa.types.is_struct(kind):
        for one in values.flatten():
            yield from _times_in(one)
    elif pa.types.is_nested(kind):
        yield from _times_in(values.flatten())


def check_partitions_of(table: str, columns: Sequence[str], rows: pa.Table, *, in_files: bool) -> None:
    """Raises PipelineError for a value of these columns that cannot partition rows, as `partition_text` does."""
    for name in columns:
        for value in rows.column(name).unique().to_pylist():
            partition_text(table, name, value, in_files=in_files)


def partition_text(table: str, column: str, value: Any, *, in_files: bool) -> str | None:
    """The text of a partition value. Raises PipelineError for a value that no path can have.

    `in_files`: files have the column (Iceberg). Otherwise (Delta), the library cannot parse a fraction below 0 from a
    path, and merges the partition of null with that of the text which stands for null in paths.
    """
    if value is None or isinstance(value, bool):
        return None if value is None else str(value).lower()
    text = str(value)
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(" ", "microseconds")
    if len(f"{quote(column, safe='')}={quote(text, safe='')}") > _LONGEST_PARTITION:
        reason = f"is longer than a name of {_LONGEST_PARTITION} bytes"
    elif isinstance(value, Decimal) and value < 0 and not in_files:
        reason = "is a decimal below 0, which deltalake cannot read"
    elif text == _NAME_OF_NULL and not in_files:
        reason = "is the name of null"
    else:
        return text
    raise PipelineError(f"a value of column {column!r}, by which table {table} is partitioned, {reason}: {text[:40]}")


def latest_rows(table: str, rows: pa.Table, merge_on: Sequence[str], order: Sequence[str]) -> pa.Table:
    """Keeps one row for each key: the last by the columns of `order`, where null is the least value and NaN the next;
    -0.0 in a key is 0. Raises PipelineError for a key that is null, or several rows with one key and no order, and
    TableError for an order by a list, a map or a struct."""
    key, place = list(merge_on), "\0place"
    for name in key:
        if nulls := rows.column(name).null_count:
            raise PipelineError(f"{nulls} rows have no value for {name!r}, a column of merge_on={key} for table "
                                f"{table}")  # fmt: skip
        rows = rows.set_column(rows.schema.get_field_index(name), name, as_key(rows.column(name)))
    if order:
        rows = rows.take(_places(table, rows, order))
    numbered = rows.select(key).append_column(place, pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(key).aggregate([(place, "max"), (place, "count")])
    if len(last) < len(rows) and not order:
        twice: Any = last.filter(pc.greater(last[f"{place}_count"], 1)).select(key).slice(0, 1).to_pylist()
        raise PipelineError(f"several rows for table {table} have the key {twice[0]}: give each key once, or "
                            "latest_by='a column' that says which row counts")  # fmt: skip
    return rows.take(last[f"{place}_max"].sort())


def as_key(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values of a key, -0.0 as 0: a merge of Delta finds both equal, a group or a join of Arrow does not."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _places(table: str, rows: pa.Table, order: Sequence[str]) -> pa.Array:
    """The ranks of the rows by `order`. Arrow alone would sort null and NaN after all values."""
    columns: dict[str, Any] = {}
    for at, name in enumerate(order):
        column = rows.column(name)
        if pa.types.is_nested(column.type):
            raise TableError(
                f"latest_by={name!r} for table {table}: the column is {column.type}: take a column of plain values"
            )
        if pa.types.is_floating(column.type):
            columns[f"is number {at}"] = pc.fill_null(pc.invert(pc.is_nan(column)), False)
        columns |= {f"is value {at}": pc.is_valid(column), f"value {at}": column}
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
