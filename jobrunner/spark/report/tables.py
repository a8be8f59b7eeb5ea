"""The tables of a report, each with the names, units and kinds of its columns.

A value is kept as it was measured (seconds, shares of 1, aware datetimes); only texts for people are rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from jobrunner.formatting import rounded

Row = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """One column. `kind`: text, count, number, share (of 1), change (signed share), length (seconds), rate, instant."""

    name: str
    title: str
    kind: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows below columns. `name` is that of its file."""

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[Row, ...]
    note: str = ""

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        at = [column.name for column in self.columns].index(name)
        return [row[at] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """Each row by the names of the columns."""
        names = [column.name for column in self.columns]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All tables by name: summary, throughput, queues, jobs, hours, errors, parameters, and change if asked for."""

    source: str
    tables: tuple[Table, ...]
    bucket_s: int
    """Length of one row of the table `throughput`."""
    split_at: datetime | None = None
    selected: dict[str, str] = field(default_factory=dict)
    """The filters, for people."""

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(table for table in self.tables if table.name == name)

    def as_json(self) -> dict[str, Any]:
        """Each table as a list of its rows; lengths in seconds, shares of 1."""
        told = {"source": self.source, "selected": self.selected, "bucket_s": self.bucket_s}
        return told | {table.name: table.records() for table in self.tables}


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
