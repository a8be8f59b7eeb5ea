"""Reads the tables of the pipeline with Arrow, so that the reader is another program than the writer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from jobs_example.punctuality import Delays, Tally, by_carrier

TABLES = ("on_time", "late", "cancelled")
_ALWAYS = ["id", "carrier", "dep_delay", "arr_delay"]
_JOINED = ["airline", "seats", "visib"]
"""One column of each table that was joined, which is never empty in that table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """All that was written."""

    ids: tuple[str, ...]
    """The ids of all rows of all tables; a flight that was written twice is listed twice."""
    rows: Mapping[str, int]
    """By table."""
    batches: int
    """Partitions that have rows."""
    tallies: Mapping[str, Tally]
    with_airline: int
    with_plane: int
    with_weather: int


def read_tables(folder: Path) -> Stored:
    """Reads the three tables below a folder; a missing table has no rows."""
    tables = {name: _read(folder / name, _ALWAYS + ([] if name == "cancelled" else _JOINED)) for name in TABLES}
    departed = [table for name, table in tables.items() if name != "cancelled"]
    return Stored(
        ids=tuple(task_id for table in tables.values() for task_id in table["id"].to_pylist()),
        rows={name: table.num_rows for name, table in tables.items()},
        batches=sum(len(table["batch"].unique()) for table in tables.values()),
        tallies=by_carrier(Delays(*cells) for table in tables.values() for cells in _cells(table, Delays._fields)),
        with_airline=_known(departed, "airline"),
        with_plane=_known(departed, "seats"),
        with_weather=_known(departed, "visib"),
    )


def _read(folder: Path, columns: list[str]) -> pa.Table:
    """Leaves out what begins with _ or a dot, as every reader does: it is not, or not yet, part of the table."""
    if not folder.is_dir():
        return pa.table({name: [] for name in [*columns, "batch"]})
    schema = pa.schema([("batch", pa.string())])
    found = ds.dataset(str(folder), format="parquet", partitioning=ds.partitioning(schema, flavor="hive"))
    return found.to_table(columns=[*columns, "batch"])


def _cells(table: pa.Table, columns: tuple[str, ...]) -> "zip[tuple[Any, ...]]":
    return zip(*(table[name].to_pylist() for name in columns), strict=True)


def _known(tables: list[pa.Table], column: str) -> int:
    return sum(table.num_rows - table[column].null_count for table in tables)
