"""A report for people and programs: texts for a terminal; CSV and Parquet, a file for each table; one HTML page.

The page needs nothing else: it sends no request, so it can be mailed or kept. It follows the light or dark theme of the
reader's system; its charts are those of `jobrunner.charts.axes`, with the tables below them.
"""

import csv
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from jobrunner.charts import ChartSeries
from jobrunner.charts.axes import columns, legend, lines, spans, stacked_bars
from jobrunner.formatting import rounded
from jobrunner.spark.history.report import Report, ReportColumn, Table

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


def shown(table: Table) -> tuple[list[str], list[list[str]]]:
    """(headings with their units, cells) of a table for people; all waits in one unit, and all runs."""
    headings, columns = [], []
    for at, column in enumerate(table.columns):
        heading, cells = _shown_column(column, [row[at] for row in table.rows], _longest(table, column))
        headings.append(heading)
        columns.append(cells)
    return headings, [list(row) for row in zip(*columns, strict=True)]


def length_unit(longest_s: float) -> tuple[str, float]:
    """(unit, units in a second) that suits lengths up to this one."""
    for limit_s, unit, factor in ((10, "ms", 1000.0), (600, "s", 1.0), (36_000, "min", 1 / 60)):
        if longest_s < limit_s:
            return unit, factor
    return "h", 1 / 3600


def _longest(table: Table, column: ReportColumn) -> float:
    """The largest value of all columns that measure the same."""
    what = column.name.partition("_")[0]
    alike = [at for at, one in enumerate(table.columns) if one.kind == "length" and one.name.partition("_")[0] == what]
    return max((row[at] for row in table.rows for at in alike if row[at] is not None), default=0.0)


def _shown_column(column: ReportColumn, values: list[Any], longest_s: float) -> tuple[str, list[str]]:
    if column.kind == "length":
        unit, factor = length_unit(longest_s)
        return f"{column.title}, {unit}", [_cell(value, lambda v: rounded(v * factor)) for value in values]
    if column.kind in ("share", "change"):
        sign = "+" if column.kind == "change" else ""
        return f"{column.title}, %", [_cell(value, lambda v: f"{100 * v:{sign}.2f}") for value in values]
    if column.kind == "number":
        return column.title, [_cell(value, rounded) for value in values]
    if column.kind == "rate":
        return f"{column.title}, 1/s", [_cell(value, rounded) for value in values]
    if column.kind == "instant":
        return f"{column.title}, UTC", [_cell(value, instant_text) for value in values]
    return column.title, [_cell(value, str) for value in values]


def instant_text(value: datetime) -> str:
    """An instant to the second, without its zone."""
    return value.strftime("%Y-%m-%d %H:%M:%S")


def _cell(value: Any, say: Any) -> str:
    return "-" if value is None else str(say(value))


_MOST_LABELS = 20
_FEW_ROWS, _FEW_TASKS = 3, 10
_RANKS = (("p50", "s1"), ("p95", "s2"), ("p99", "s3"))
_STYLE = "report.css"


def page(report: Report) -> str:
    """The page, as text in UTF-8."""
    style = (files("jobrunner.spark") / _STYLE).read_text("utf-8")
    parts = [
        _head(report),
        _facts(report.table("summary")),
        _over_time(report),
        *(_group(report.table(name)) for name in ("jobs", "queues")),
        _hours(report.table("hours")),
        *(_section(table) for table in report.tables if table.name in ("errors", "parameters", "change")),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Report on {escape(report.source)}</title><style>{style}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _head(report: Report) -> str:
    (first, last), names = report.table("summary").rows[0][:2], report.selected
    told = f"{instant_text(first)} to {instant_text(last)} UTC"
    chosen = "".join(f", {escape(name)} {escape(value)}" for name, value in names.items())
    return f'<h1>Finished tasks</h1><p class="soft">{escape(report.source)} · {told}{chosen}</p>'


def _facts(summary: Table) -> str:
    headings, (cells,) = shown(summary)
    tiles = zip(headings[2:], cells[2:], strict=True)
    note = f'<p class="note">{escape(summary.note)}</p>' if summary.note else ""
    boxes = (f"<div><b>{escape(cell)}</b><span>{escape(name)}</span></div>" for name, cell in tiles)
    return f'<div class="facts">{"".join(boxes)}</div>{note}'


def _over_time(report: Report) -> str:
    table, bucket_s, split = report.table("throughput"), report.bucket_s, report.split_at
    starts = table.column("from")
    looks = (("succeeded", "ok"), ("cancelled", "off"), ("dead", "bad"))
    ended = [
        ChartSeries(name=name, values=[n / bucket_s for n in table.column(name)], look=look) for name, look in looks
    ]
    parts = ["<h2>Throughput</h2>", legend(ended), stacked_bars(starts, bucket_s, ended, "tasks/s", split)]
    table = _without_scraps(table)
    starts = table.column("from")
    for what, title in (("wait", "Waits: from due to handed out"), ("run", "Runs: from handed out to ended")):
        series, unit = _percentiles(table, what)
        if series:
            parts += [f"<h2>{title}</h2>", legend(series), lines(starts, bucket_s, series, f"{what}, {unit}", split)]
    totals = [sum(row) for row in zip(*(table.column(name) for name, _ in looks), strict=True)]
    shares = [
        ChartSeries(
            name=name, values=[100 * n / of for n, of in zip(table.column(name), totals, strict=True)], look=look
        )
        for name, look in (("dead", "bad"), ("retried", "re"))
    ]
    parts += ["<h2>Failures and retries</h2>", legend(shares), lines(starts, bucket_s, shares, "% of tasks", split)]
    return "".join(parts) + _folded(report.table("throughput"))


def _without_scraps(table: Table) -> Table:
    """Drops a first or last row with few tasks, which was cut short: its percentiles are chance."""
    rows = table.rows
    if len(rows) > _FEW_ROWS:
        sizes = [sum(row[2:5]) for row in rows]
        rows = rows[sizes[0] < _FEW_TASKS : len(rows) - (sizes[-1] < _FEW_TASKS)]
    return replace(table, rows=rows)


def _group(table: Table) -> str:
    parts = [f"<h2>{escape(table.title)}</h2>"]
    labels = [str(row[0]) for row in table.rows[:_MOST_LABELS]]
    for what in ("run", "wait"):
        series, unit = _percentiles(table, what, _MOST_LABELS)
        if series:
            parts += [legend(series), spans(labels, series, f"{what}, {unit}")]
    return "".join(parts) + _table(table)


def _hours(table: Table) -> str:
    looks = (("dead", "bad"), ("retried", "re"))
    shares = [ChartSeries(name=name, values=[100 * v for v in table.column(name)], look=look) for name, look in looks]
    plot = columns(table.column("hour"), shares, "hour of the day, UTC", "% of tasks")
    return f"<h2>{escape(table.title)}</h2>{legend(shares)}{plot}{_folded(table)}"


def _percentiles(table: Table, what: str, most: int | None = None) -> tuple[list[ChartSeries], str]:
    found = {rank: table.column(f"{what}_{rank}")[:most] for rank, _ in _RANKS}
    longest = max((value for values in found.values() for value in values if value is not None), default=None)
    if longest is None:
        return [], ""
    unit, factor = length_unit(longest)
    return [
        ChartSeries(name=rank, values=[None if v is None else v * factor for v in found[rank]], look=look)
        for rank, look in _RANKS
    ], unit


def _section(table: Table) -> str:
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = _table(table) if table.rows else '<p class="soft">none</p>'
    return f"<h2>{escape(table.title)}</h2>{note}{body}"


def _folded(table: Table) -> str:
    return f"<details><summary>{escape(table.title)}, as a table</summary>{_table(table)}</details>"


def _table(table: Table) -> str:
    headings, rows = shown(table)
    looks = ["" if column.kind in ("text", "instant") else ' class="n"' for column in table.columns]
    head = _cells("th", headings, looks)
    body = "".join(f"<tr>{_cells('td', row, looks)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(tag: str, texts: Sequence[str], looks: Sequence[str]) -> str:
    return "".join(f"<{tag}{look}>{escape(text)}</{tag}>" for text, look in zip(texts, looks, strict=True))
