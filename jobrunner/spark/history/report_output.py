"""Output of a report: its tables as text for people, and a CSV or Parquet file for each table."""

import csv
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobrunner.formatting import rounded
from jobrunner.spark.history.report import Report, ReportColumn, Table

_DAY = timedelta(days=1)
_KINDS = {"count": pa.int64(), "instant": pa.timestamp("us", "UTC"), "text": pa.string()}


def write_csv(report: Report, folder: Path) -> list[Path]:
    """Writes `<table>.csv` for each table into a folder, created if missing; returns the files. Lengths in seconds,
    shares of 1."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_csv(table, folder / f"{table.name}.csv") for table in report.tables]


def write_parquet(report: Report, folder: Path) -> list[Path]:
    """Writes `<table>.parquet` for each table, as `write_csv` does."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in report.tables:
        columns = {column.name: _array(column, table.column(column.name)) for column in table.columns}
        paths.append(folder / f"{table.name}.parquet")
        pq.write_table(pa.table(columns), paths[-1])
    return paths


def _write_csv(table: Table, path: Path) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(column.name for column in table.columns)
        writer.writerows([_plain(value) for value in row] for row in table.rows)
    return path


def _array(column: ReportColumn, values: list[Any]) -> pa.Array:
    return pa.array(values, _KINDS.get(column.kind, pa.float64()))


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def presented(report: Report) -> list[Table]:
    """The tables for people, without tables that repeat another: the table of jobs shows the queues where each job has
    its own, and the throughput shows the hours of less than a day."""
    queue_of = report.queue_of_job
    (first, last), tables = report.table("summary").rows[0][:2], []
    for table in report.tables:
        if table.name == "jobs" and queue_of:
            tables.append(_with_queues(table, queue_of))
        elif not (table.name == "queues" and queue_of) and not (table.name == "hours" and last - first < _DAY):
            tables.append(table)
    return tables


def _with_queues(jobs: Table, queue_of: dict[str, str]) -> Table:
    column, *others = jobs.columns
    return replace(
        jobs,
        title="By job and queue",
        columns=(column, ReportColumn(name="queue", title="queue"), *others),
        rows=tuple((row[0], queue_of[row[0]], *row[1:]) for row in jobs.rows),
        note="each job has a queue of its own, so figures by job are those by queue",
    )


def shown(table: Table) -> tuple[list[str], list[list[str]]]:
    """(headings with their units, cells) of a table for people; all waits in one unit, and all runs."""
    headings, columns = [], []
    for at, column in enumerate(table.columns):
        heading, cells = _shown_column(column, [row[at] for row in table.rows], _longest(table, column))
        headings.append(heading)
        columns.append(cells)
    return headings, [list(row) for row in zip(*columns, strict=True)]


def length_unit(longest_s: float) -> tuple[str, float]:
    """(unit, units in a second) that suits lengths up to `longest_s`."""
    for limit_s, unit, factor in ((10, "ms", 1000.0), (600, "s", 1.0), (36_000, "min", 1 / 60)):
        if longest_s < limit_s:
            return unit, factor
    return "h", 1 / 3600


def _longest(table: Table, column: ReportColumn) -> float:
    """The largest value of all columns that share the unit of this column."""
    what = column.name.partition("_")[0]
    alike = [at for at, one in enumerate(table.columns) if one.kind == "length" and one.name.partition("_")[0] == what]
    return max((row[at] for row in table.rows for at in alike if row[at] is not None), default=0.0)


def _shown_column(column: ReportColumn, values: list[Any], longest_s: float) -> tuple[str, list[str]]:
    if column.kind == "length":
        unit, factor = length_unit(longest_s)
        return f"{column.title}, {unit}", [_cell(value, lambda v: rounded(v * factor)) for value in values]
    if column.kind in ("share", "change"):
        sign = "+" if column.kind == "change" else ""
        return f"{column.title}, %", [_cell(value, lambda v: _percent(v, sign)) for value in values]
    if column.kind == "number":
        return column.title, [_cell(value, rounded) for value in values]
    if column.kind == "count":
        return column.title, [_cell(value, lambda v: f"{v:,}") for value in values]
    if column.kind == "rate":
        return f"{column.title}, 1/s", [_cell(value, rounded) for value in values]
    if column.kind == "instant":
        return f"{column.title}, UTC", [_cell(value, instant_text) for value in values]
    return column.title, [_cell(value, str) for value in values]


def instant_text(value: datetime) -> str:
    """An instant to the second, without its zone."""
    return value.strftime("%Y-%m-%d %H:%M:%S")


def _percent(share: float, sign: str) -> str:
    """A share in percent with two digits; a value other than zero never reads as zero."""
    if share == 0:
        return "0"
    text = f"{100 * share:{sign},.2f}"
    return text if text.strip("+-0.") else ">-0.01" if share < 0 else "<0.01"


def _cell(value: Any, say: Any) -> str:
    return "-" if value is None else str(say(value))
