"""Values that a table cannot have: each is the fault of its item, and not of the table."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import pyarrow as pa

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
