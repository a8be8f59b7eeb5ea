"""A report as files: one for each of its tables."""

import csv
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobrunner.spark.report.page import page
from jobrunner.spark.report.tables import Report, ReportColumn, Table

_KINDS = {"count": pa.int64(), "instant": pa.timestamp("us", "UTC"), "text": pa.string()}


def write_csv(report: Report, folder: Path) -> list[Path]:
    """Writes `<table>.csv` into a folder, which is made; returns the files. Lengths in seconds, shares of 1."""
    folder.mkdir(parents=True, exist_ok=True)
    return [_write_csv(table, folder / f"{table.name}.csv") for table in report.tables]


def write_parquet(report: Report, folder: Path) -> list[Path]:
    """The same as `<table>.parquet`."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for table in report.tables:
        columns = {column.name: _array(column, table.column(column.name)) for column in table.columns}
        paths.append(folder / f"{table.name}.parquet")
        pq.write_table(pa.table(columns), paths[-1])
    return paths


def write_page(report: Report, file: Path) -> Path:
    """Writes the page with plots."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(report), "utf-8")
    return file


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
