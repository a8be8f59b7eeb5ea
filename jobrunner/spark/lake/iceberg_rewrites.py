"""Rewrites data files of an Iceberg table: those that have rows with one of some keys, and small ones.

`upsert` of pyiceberg is not usable: for a key of several columns it builds one expression of all keys, which takes
minutes for thousands of rows and ends the process beyond some ten thousand. It does not find a key column with a dot in
its name. This module reads the files whose bounds admit a key, one at a time.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, GreaterThanOrEqual, In, LessThanOrEqual
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.table import Table, Transaction

from jobrunner.spark.lake.iceberg_repairs import overwrite
from jobrunner.spark.lake.row_values import as_key

_LISTED = 200
"""The most values of a column that pyiceberg compares one by one with the bounds of a file."""
_WITHOUT_BOUNDS = (pa.types.is_floating, pa.types.is_nested, pa.types.is_binary, pa.types.is_boolean)
"""Types whose bounds are not used: NaN has no order, and bounds of the other types are not worth the effort."""
_ROW = "row"
_SMALL = 64 * 2**20
"""Bytes below which a data file is merged with others of its partition."""


def replace_rows(transaction: Transaction, rows: pa.Table, key: Sequence[str], about: dict[str, str]) -> None:
    """Adds rows and removes the rows that have one of their keys, in one snapshot. Keys are unique and without nulls.
    """
    metadata, io = transaction.table_metadata, transaction._table.io  # noqa: SLF001 - as its own methods do
    keys = _numbered(rows, key)
    kept: list[tuple[Any, pa.Table]] = []
    for task in transaction._scan(_bounds(rows, key)).plan_files():  # noqa: SLF001
        there = ArrowScan(metadata, io, metadata.schema(), AlwaysTrue()).to_table([task])
        others = _without(there, keys, key)
        if len(others) < len(there):
            kept.append((task.file, others))
    with overwrite(transaction, about) as change:
        for file, others in kept:
            change.delete_data_file(file)
            for made in _files_of(metadata, io, others):
                change.append_data_file(made)
        for made in _files_of(metadata, io, rows):
            change.append_data_file(made)


def merge_small_files(table: Table, transaction: Transaction) -> int:
    """Replaces the small files of each partition by files with the same rows, in one snapshot. Returns how many it
    replaced; 0: no partition has two."""
    by_partition: dict[str, list[Any]] = {}
    for task in table.scan().plan_files():
        if task.file.file_size_in_bytes < _SMALL:
            by_partition.setdefault(repr(task.file.partition), []).append(task)
    groups = [tasks for tasks in by_partition.values() if len(tasks) > 1]
    if not groups:
        return 0
    with overwrite(transaction, {"jobrunner.compacted": "true"}) as change:
        for tasks in groups:
            scan = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
            for made in _dataframe_to_data_files(table.metadata, scan.to_table(tasks), table.io):
                change.append_data_file(made)
            for task in tasks:
                change.delete_data_file(task.file)
    return sum(map(len, groups))


def _files_of(metadata: Any, io: Any, rows: pa.Table) -> Iterator[Any]:
    if len(rows):
        yield from _dataframe_to_data_files(metadata, rows, io)


def _without(there: pa.Table, keys: pa.Table, key: Sequence[str]) -> pa.Table:
    """Rows of a file that have none of the keys. The join returns row numbers, as Arrow joins no nested columns."""
    numbered = _numbered(there, key)
    names = [name for name in numbered.column_names if name != _ROW]
    same = [keys.column(name).cast(numbered.schema.field(name).type) for name in names]
    found = numbered.join(pa.table(same, names=names), names, join_type="left anti")
    return there.take(found.column(_ROW).sort())


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The columns of the key, under neutral names, and the number of each row."""
    columns = [as_key(rows.column(name)) for name in key]
    return pa.table([*columns, pa.array(range(len(rows)))], names=[*(f"key {at}" for at in range(len(key))), _ROW])


def _bounds(rows: pa.Table, key: Sequence[str]) -> Any:
    """An expression that is true for all rows with one of the keys."""
    found: Any = AlwaysTrue()
    among: Any = In
    least: Any = GreaterThanOrEqual
    most: Any = LessThanOrEqual
    for name in key:
        column = rows.column(name)
        if any(is_without(column.type) for is_without in _WITHOUT_BOUNDS):
            continue
        if len(values := column.unique()) <= _LISTED:
            found = And(found, among(name, values.to_pylist()))
        else:
            bounds = pc.min_max(column).as_py()
            found = And(found, And(least(name, bounds["min"]), most(name, bounds["max"])))
    return found
