"""Data files that executors write below the table, under names that identify the batch and the attempt.

Readers find data files by the log of the table, so they never see a file that no transaction names. Spark's tasks may
run twice; the driver commits the files of the task attempts that count, and removes the others by their names.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import pairwise
from secrets import token_hex
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobrunner.clock import unix_ms
from jobrunner.errors import TableError
from jobrunner.spark.lake.file_names import folder_of, owner_of
from jobrunner.spark.lake.identity import WriteAttempt
from jobrunner.spark.lake.row_values import check_nulls, check_years, partition_text
from jobrunner.spark.lake.storage import Storage

ROWS_PER_FILE = 1_000_000
_MARKED_S = 43_200
"""Half of the time for which every table remembers a commit, as the clock of the storage may differ."""
_LONGEST_BOUND = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """A complete data file, as its writer reports it to the driver."""

    name: str
    """The path below the root of the table."""
    size: int
    rows: int
    partition: Mapping[str, str | None] = field(default_factory=dict)
    """The text of its partition's values, by column."""
    nulls: Mapping[str, int] = field(default_factory=dict)
    lowest: Mapping[str, Any] = field(default_factory=dict)
    highest: Mapping[str, Any] = field(default_factory=dict)
    """Upper bounds of the columns that have bounds, as JSON values."""

    def as_json(self) -> str:
        """The report as text, from an executor to the driver."""
        return json.dumps([self.name, self.size, self.rows, *map(dict, (
            self.partition, self.nulls, self.lowest, self.highest))])  # fmt: skip

    @classmethod
    def of_json(cls, text: str) -> "DataFile":
        """The file that this text reports."""
        name, size, rows, partition, nulls, lowest, highest = json.loads(text)
        return cls(name=name, size=size, rows=rows, partition=partition, nulls=nulls, lowest=lowest, highest=highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTarget:
    """The arguments with which executors write the files of one attempt. Sent inside functions, never in a plan."""

    table: str
    storage: Storage = field(repr=False)
    prefix: str
    """Prefix of the file names, see `prefix_of`."""
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    keeps_partitions: bool = False
    """Whether data files have the columns they are partitioned by (Iceberg) or not (Delta)."""
    rows_per_file: int = ROWS_PER_FILE

    @property
    def in_files(self) -> pa.Schema:
        """The columns that files have."""
        dropped = () if self.keeps_partitions else self.partition_by
        return pa.schema([one for one in self.schema if one.name not in dropped])


def write_files(target: FileTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[DataFile]:
    """Writes rows that are sorted by partition, and yields each file when it is complete.

    Raises TableError when the storage refuses, PipelineError for a value that the table cannot have.
    """
    current: _OpenFile | None = None
    try:
        for rows, partition in _runs(target, batches):
            first = 0
            while first < rows.num_rows:
                if current is not None and (current.partition != partition or current.rows >= target.rows_per_file):
                    yield current.close()
                    current = None
                if current is None:
                    current = _OpenFile(target, partition)
                fitting = rows.slice(first, target.rows_per_file - current.rows)
                current.write(fitting)
                first += fitting.num_rows
        if current is not None:
            yield current.close()
            current = None
    except OSError as error:
        raise TableError(f"table {target.table}: no data file can be written: {error}") from error
    finally:
        if current is not None:
            current.give_up()


class _OpenFile:
    def __init__(self, target: FileTarget, partition: Mapping[str, str | None]) -> None:
        self.partition = partition
        self.rows = 0
        self._target = target
        self._name = f"{target.prefix}-{token_hex(8)}.parquet"
        self._stream = target.storage.create(self._name)
        self._footer: list[Any] = []
        self._floats = _Floats(target)
        self._writer = pq.ParquetWriter(
            self._stream, target.in_files, compression="zstd", store_schema=False, metadata_collector=self._footer,
            write_statistics=self._floats.others,
        )  # fmt: skip

    def write(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._writer.write_batch(rows)
        self._floats.add(rows)

    def give_up(self) -> None:
        """Closes the file without completing it. Otherwise the writer would complete it in its finalizer, and print a
        traceback when the disk is full."""
        self._writer.is_open = False
        with suppress(OSError):
            self._stream.close()

    def close(self) -> DataFile:
        self._writer.close()
        size = self._stream.tell()
        self._stream.close()
        nulls, lowest, highest = _statistics(self._footer[0])
        by_us = self._floats
        return DataFile(
            name=self._name, size=size, rows=self.rows, partition=self.partition, nulls=nulls | by_us.nulls,
            lowest=lowest | by_us.lowest, highest=highest | by_us.highest,
        )  # fmt: skip


class _Floats:
    """Statistics of the columns of floats in a Delta file. Arrow's statistics ignore NaN, so readers that rank NaN
    above all numbers would skip its rows. Therefore the file has no statistics, and the log has bounds of columns
    without NaN."""

    def __init__(self, target: FileTarget) -> None:
        self._names = [one.name for one in target.in_files if pa.types.is_floating(one.type)]
        self.others: bool | list[str] = list(_without_floats(target.in_files))
        if target.keeps_partitions:  # the library for Iceberg takes statistics from the file
            self._names, self.others = [], True
        self.nulls = dict.fromkeys(self._names, 0)
        self._bounds: dict[str, list[float]] = {name: [] for name in self._names}

    def add(self, rows: pa.RecordBatch) -> None:
        for name in self._names:
            column = rows.column(name)
            self.nulls[name] += column.null_count
            if pc.any(pc.is_nan(column)).as_py():
                self._bounds[name].append(float("nan"))
            elif column.null_count < len(column):
                self._bounds[name] += pc.min_max(column).as_py().values()

    @property
    def lowest(self) -> dict[str, float]:
        return {name: min(found) or -0.0 for name, found in self._finite().items()}

    @property
    def highest(self) -> dict[str, float]:
        return {name: max(found) or 0.0 for name, found in self._finite().items()}

    def _finite(self) -> dict[str, list[float]]:
        return {name: found for name, found in self._bounds.items() if found and np.isfinite(found).all()}


def _without_floats(fields: Iterable[pa.Field], above: str = "") -> Iterator[str]:
    """Paths of the columns that are no floats, at any depth of structs."""
    for one in fields:
        if pa.types.is_struct(one.type):
            yield from _without_floats(one.type, f"{above}{one.name}.")
        elif not pa.types.is_nested(one.type) and not pa.types.is_floating(one.type):
            yield f"{above}{one.name}"


def _runs(
    target: FileTarget, batches: Iterable[pa.RecordBatch]
) -> Iterator[tuple[pa.RecordBatch, Mapping[str, str | None]]]:
    """Yields (rows of one partition, the text of its values)."""
    for batch in batches:
        check_nulls(target.table, target.schema, batch)
        typed = pa.record_batch([batch.column(one.name).cast(one.type) for one in target.schema], schema=target.schema)
        check_years(target.table, typed)
        kept = typed.select(target.in_files.names).cast(target.in_files)
        for start, end in _borders(typed, target.partition_by):
            first_row = {name: typed.column(name)[start].as_py() for name in target.partition_by}
            values = {
                name: partition_text(target.table, name, value, in_files=target.keeps_partitions)
                for name, value in first_row.items()
            }
            yield kept.slice(start, end - start), values


def _borders(rows: pa.RecordBatch, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Begin and end of each run of rows with the same values in these columns."""
    if not rows.num_rows:
        return []
    if not columns:
        return [(0, rows.num_rows)]
    codes = [pc.dictionary_encode(rows.column(name), null_encoding="encode").indices.to_numpy() for name in columns]
    starts = np.flatnonzero(np.any([np.diff(one) != 0 for one in codes], axis=0)) + 1
    edges = [0, *starts.tolist(), rows.num_rows]
    return list(pairwise(edges))


def _statistics(footer: Any) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """(nulls, lowest, highest value) of the columns that are neither nested nor of a kind without bounds in JSON."""
    nulls: dict[str, int] = {}
    bounds: dict[str, list[Any]] = {}
    for place in range(footer.num_columns):
        column = footer.schema.column(place)
        if (name := column.name) != column.path:
            continue  # part of a nested column: the field `b` of a struct `a` has the path of a column `a.b`
        chunks = [footer.row_group(group).column(place).statistics for group in range(footer.num_row_groups)]
        if not all(one is not None and one.has_null_count for one in chunks):
            continue
        nulls[name] = sum(one.null_count for one in chunks)
        filled = [one for one in chunks if one.num_values]
        if filled and all(one.has_min_max for one in filled):
            bounds[name] = [min(one.min for one in filled), max(one.max for one in filled)]
    usable = {name: [_bound(one) for one in pair] for name, pair in bounds.items()}
    usable = {name: pair for name, pair in usable.items() if None not in pair}
    return nulls, {name: pair[0] for name, pair in usable.items()}, {name: pair[1] for name, pair in usable.items()}


def _bound(value: Any) -> Any:
    """A bound as a JSON value; None for a bound that is omitted: of a long text, a point in time, a number that is not
    finite."""
    if isinstance(value, bool) or value is None or isinstance(value, datetime):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_BOUND else None
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value if isinstance(value, int) else None


def remove_others(storage: Storage, folder: str, attempt: WriteAttempt, committed: Iterable[str]) -> int:
    """Removes files of other attempts at a committed batch, and of tasks of this attempt that do not count. Returns how
    many.

    The marks of this commit guarantee that those files can never be committed. Files of other parts stay, and so do
    those of more than half a day: a commit of them may be forgotten, as of an earlier batch of this name, and then the
    table still names them.
    """
    kept, own = set(committed), {attempt.batch_id, *attempt.larger}
    removed, oldest_ns = 0, (unix_ms() / 1000 - _MARKED_S) * 1e9
    for found in storage.list(folder_of(folder, attempt.root)):
        owner = owner_of(found.path)
        is_new = (found.mtime_ns or 0) > oldest_ns
        if owner is not None and owner[0] in own and found.path not in kept and is_new:
            storage.remove(found.path)
            removed += 1
    return removed


def remove_own(storage: Storage, folder: str, attempt: WriteAttempt) -> None:
    """Removes the files of an attempt that was not committed and never will be."""
    for found in storage.list(folder_of(folder, attempt.root)):
        if owner_of(found.path) == (attempt.batch_id, attempt.number):
            storage.remove(found.path)
    storage.remove_empty(folder_of(folder, attempt.root))
