"""Values that a table cannot have, each the fault of its item and not of the table, and which row of a key counts."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from jobrunner.errors import PipelineError

_LONGEST_PARTITION = 255
"""Bytes of `column=value`, quoted: compactions and merges have a folder of this name."""


def check_nulls(table: str, schema: pa.Schema, rows: Any) -> None:
    """Raises PipelineError that names a column in which the table allows no null, and rows have one."""
    for one in schema:
        if not one.nullable and (nulls := rows.column(one.name).null_count):
            raise PipelineError(f"{nulls} rows have no value for column {one.name!r}, in which table {table} allows no "
                                "null")  # fmt: skip


def check_partitions_of(table: str, columns: Sequence[str], rows: pa.Table, *, in_files: bool) -> None:
    """Raises PipelineError for a value of these columns that cannot partition rows, as `partition_text` does."""
    for name in columns:
        for value in rows.column(name).unique().to_pylist():
            partition_text(table, name, value, in_files=in_files)


def partition_text(table: str, column: str, value: Any, *, in_files: bool) -> str | None:
    """The text of a value that partitions rows. Raises PipelineError for one that no path can have.

    `in_files`: files have the column (Iceberg). Without (Delta), the library reads no fraction below 0 out of a path.
    """
    if value is None or isinstance(value, bool):
        return None if value is None else str(value).lower()
    text = value.strftime("%Y-%m-%d %H:%M:%S.%f") if isinstance(value, datetime) else str(value)
    if len(f"{quote(column, safe='')}={quote(text, safe='')}") > _LONGEST_PARTITION:
        reason = f"is longer than a name of {_LONGEST_PARTITION} bytes"
    elif isinstance(value, Decimal) and value < 0 and not in_files:
        reason = "is a decimal below 0, which deltalake cannot read"
    else:
        return text
    raise PipelineError(f"a value of column {column!r}, by which table {table} is partitioned, {reason}: {text[:40]}")


def latest_rows(table: str, rows: pa.Table, merge_on: Sequence[str], order: Sequence[str]) -> pa.Table:
    """One row for each key: the last by the columns of `order`, where null is the least value and NaN the next; -0.0 in
    a key is 0. Raises PipelineError for a key that is null, or several rows with one key and no order."""
    key, place = list(merge_on), "\0place"
    for name in key:
        if nulls := rows.column(name).null_count:
            raise PipelineError(f"{nulls} rows have no value for {name!r}, a column of merge_on={key} for table "
                                f"{table}")  # fmt: skip
        if pa.types.is_floating(kind := rows.schema.field(name).type):  # a merge finds both equal, a group does not
            plain = pc.add(rows.column(name), pa.scalar(0.0, kind))
            rows = rows.set_column(rows.schema.get_field_index(name), name, plain)
    if order:
        rows = rows.take(_places(rows, order))
    numbered = rows.select(key).append_column(place, pa.array(range(len(rows)), pa.int64()))
    last = numbered.group_by(key).aggregate([(place, "max"), (place, "count")])
    if len(last) < len(rows) and not order:
        twice: Any = last.filter(pc.greater(last[f"{place}_count"], 1)).select(key).slice(0, 1).to_pylist()
        raise PipelineError(f"several rows for table {table} have the key {twice[0]}: give each key once, or "
                            "latest_by='a column' that says which row counts")  # fmt: skip
    return rows.take(last[f"{place}_max"].sort())


def _places(rows: pa.Table, order: Sequence[str]) -> pa.Array:
    """The places of the rows in their order. Arrow alone would put null, and NaN, behind all values."""
    columns: dict[str, Any] = {}
    for at, name in enumerate(order):
        column = rows.column(name)
        if pa.types.is_floating(column.type):
            columns[f"is number {at}"] = pc.fill_null(pc.invert(pc.is_nan(column)), False)
        columns |= {f"is value {at}": pc.is_valid(column), f"value {at}": column}
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])
