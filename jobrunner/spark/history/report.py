"""The report on an archive, computed on Spark: throughput, waits, run times, failures, and the effect of a change.

A report has tables, whose columns have names, units and kinds. Values are kept as measured (seconds, shares of 1, aware
datetimes); only texts for people are rounded.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, Row

from jobrunner.errors import UsageError
from jobrunner.spark.history import report_aggregates as aggregates

TableRow = Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportColumn:
    """One column. `kind`: text, count, number, share (of 1), change (signed share), length (seconds), rate, instant."""

    name: str
    title: str
    kind: str = "text"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table of a report. `name` is also the name of its file."""

    name: str
    title: str
    columns: tuple[ReportColumn, ...]
    rows: tuple[TableRow, ...]
    note: str = ""

    def column(self, name: str) -> list[Any]:
        """The values of one column."""
        at = [column.name for column in self.columns].index(name)
        return [row[at] for row in self.rows]

    def records(self) -> list[dict[str, Any]]:
        """Each row as a dict by column name."""
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
    queue_of_job: dict[str, str] = field(default_factory=dict)
    """The queue of each job where every job has a queue of its own and no queue has two; else empty."""

    def table(self, name: str) -> Table:
        """The table of that name."""
        return next(table for table in self.tables if table.name == name)

    def as_json(self) -> dict[str, Any]:
        """Each table as a list of its rows; lengths in seconds, shares of 1."""
        options = {"source": self.source, "selected": self.selected, "bucket_s": self.bucket_s}
        return options | {table.name: table.records() for table in self.tables}


_MOST_ROWS = 30
_FEWEST_OF_A_VALUE = 5
_CLEAR = 2.58
"""Standard errors that a clear difference exceeds: 99 % (normal), as a report compares many differences."""
_RATES = (
    ReportColumn(name="tasks", title="tasks", kind="count"),
    ReportColumn(name="per_s", title="rate", kind="rate"),
    ReportColumn(name="dead", title="dead", kind="share"),
    ReportColumn(name="retried", title="retried", kind="share"),
)
_LENGTHS = tuple(
    ReportColumn(name=f"{what}_{rank}", title=f"{what} {rank}", kind="length")
    for what in ("wait", "run")
    for rank in ("p50", "p95", "p99")
)


def build_report(
    history: DataFrame, *, source: str, split_at: datetime | None = None, selected: Mapping[str, str] | None = None
) -> Report:
    """The report on a DataFrame of finished tasks with the columns of an archive; `split_at` compares before and after.

    Raises UsageError when there are no tasks, or none on one side of `split_at`.
    """
    runs = aggregates.measured(history)
    found = aggregates.extent(runs)
    if found is None:
        raise UsageError(f"{source} has no finished tasks that the filters select; widen these, or archive some tasks")
    if split_at is not None and not found.first < split_at <= found.last:
        span = f"from {found.first.isoformat()} to {found.last.isoformat()}"
        raise UsageError(f"split at {split_at.isoformat()}: tasks ended {span}; name an instant in between")
    groups = aggregates.by_group(runs, found.bucket_s)
    tables = [
        _summary(found, groups["all"][0]),
        _throughput(groups["bucket"], found.bucket_s),
        _rates("queues", "By queue", "queue", groups["queue"], found.length_s),
        _rates("jobs", "By job", "job", groups["job"], found.length_s),
        _rates("hours", "By hour of the day (UTC)", "hour", groups["hour"], found.length_s),
        _errors(aggregates.errors(runs, _MOST_ROWS)),
        _parameters(aggregates.parameters(runs, _MOST_ROWS, _FEWEST_OF_A_VALUE)),
    ]
    if split_at is not None:
        tables.append(_change(aggregates.change(runs, split_at), found, split_at))
    return Report(
        source=source,
        tables=tuple(tables),
        bucket_s=found.bucket_s,
        split_at=split_at,
        selected=dict(selected or {}),
        queue_of_job=aggregates.queues_of_jobs(groups["job"], groups["queue"]),
    )


def _summary(found: aggregates.Extent, row: Row) -> Table:
    columns = (
        ReportColumn(name="first", title="first ended", kind="instant"),
        ReportColumn(name="last", title="last ended", kind="instant"),
        *_RATES,
        *_LENGTHS,
    )
    return Table(
        name="summary",
        title="All tasks",
        columns=columns,
        rows=((found.first, found.last, *_rates_of(row, found.length_s), *_lengths_of(row)),),
        note="" if row.run is not None else "no starts are recorded: these queues kept no history when the tasks ran",
    )


def _throughput(rows: list[Row], bucket_s: int) -> Table:
    counted = ("succeeded", "dead", "cancelled", "retried")
    counts = tuple(ReportColumn(name=name, title=name, kind="count") for name in counted)
    columns = (
        ReportColumn(name="from", title="from", kind="instant"),
        ReportColumn(name="per_s", title="rate", kind="rate"),
        *counts,
        *_LENGTHS,
    )
    return Table(
        name="throughput",
        title="Throughput over time",
        columns=columns,
        rows=tuple(
            (
                datetime.fromtimestamp(int(row.by), UTC),
                row.n / bucket_s,
                *(row[column.name] for column in counts),
                *_lengths_of(row),
            )
            for row in rows
        ),
    )


def _rates(name: str, title: str, group: str, rows: list[Row], length_s: float) -> Table:
    if group != "hour":
        rows = sorted(rows, key=lambda row: (-row.n, row.by))
    return Table(
        name=name,
        title=title,
        columns=(ReportColumn(name=group, title=group), *_RATES, *_LENGTHS),
        rows=tuple((row.by, *_rates_of(row, length_s), *_lengths_of(row)) for row in rows),
    )


def _errors(rows: list[Row]) -> Table:
    return Table(
        name="errors",
        title="Errors",
        columns=(
            ReportColumn(name="error", title="error"),
            ReportColumn(name="tasks", title="tasks", kind="count"),
            ReportColumn(name="dead", title="of them dead", kind="count"),
            ReportColumn(name="jobs", title="jobs"),
            ReportColumn(name="first", title="first", kind="instant"),
            ReportColumn(name="last", title="last", kind="instant"),
        ),
        rows=tuple((row.line, row.n, row.dead, row.jobs, *map(_instant, (row.first, row.last))) for row in rows),
        note="the last error of each task that died or was retried, by its first line without its numbers",
    )


def _parameters(rows: list[Row]) -> Table:
    return Table(
        name="parameters",
        title="Slowest parameters",
        columns=(
            ReportColumn(name="job", title="job"),
            ReportColumn(name="parameter", title="parameter"),
            ReportColumn(name="value", title="value"),
            ReportColumn(name="tasks", title="tasks", kind="count"),
            ReportColumn(name="factor", title="mean × job's", kind="number"),
            ReportColumn(name="run_mean", title="run mean", kind="length"),
            *(ReportColumn(name=f"run_{rank}", title=f"run {rank}", kind="length") for rank in ("p50", "p95", "p99")),
            ReportColumn(name="dead", title="dead", kind="share"),
        ),
        rows=tuple(
            (row.job, row.parameter, row.value, row.n, row.factor, row.mean, *row.run, row.dead) for row in rows
        ),
        note=f"values met {_FEWEST_OF_A_VALUE} times or more; "
        f"mean more than {aggregates.SLOWER} times that of their job",
    )


def _change(pairs: dict[str, tuple[Row | None, Row | None]], found: aggregates.Extent, split_at: datetime) -> Table:
    before_s = max((split_at - found.first).total_seconds(), 1e-3)
    after_s = max((found.last - split_at).total_seconds(), 1e-3)
    rows: list[tuple[Any, ...]] = []
    for job, (before, after) in pairs.items():
        if before is not None and after is not None:
            rows += ((job or "all jobs", *figure) for figure in _compared(before, after, before_s, after_s))
        else:
            missing = "only after" if before is None else "only before"
            sizes = (None if row is None else row.n for row in (before, after))
            rows.append((job, "tasks", "", *sizes, None, missing))
    return Table(
        name="change",
        title=f"Before and after {split_at.astimezone(UTC).strftime('%Y-%m-%d %H:%M:%S')} UTC",
        columns=(
            ReportColumn(name="job", title="job"),
            ReportColumn(name="figure", title="figure"),
            ReportColumn(name="unit", title="unit"),
            ReportColumn(name="before", title="before", kind="number"),
            ReportColumn(name="after", title="after", kind="number"),
            ReportColumn(name="change", title="change", kind="change"),
            ReportColumn(name="verdict", title="verdict"),
        ),
        rows=tuple(rows),
        note="clear: the difference is more than 2.58 standard errors (99 %), if tasks are independent of each other",
    )


def _compared(before: Row, after: Row, before_s: float, after_s: float) -> list[tuple[Any, ...]]:
    rows = [_figure("tasks", "1/s", before.n / before_s, after.n / after_s, "")]
    for what in ("dead", "retried"):
        shares = before[what] / before.n, after[what] / after.n
        pooled = (before[what] + after[what]) / (before.n + after.n)
        error = math.sqrt(pooled * (1 - pooled) * (1 / before.n + 1 / after.n))
        rows.append(_figure(what, "%", 100 * shares[0], 100 * shares[1], _verdict(shares[1] - shares[0], error)))
    for what in ("wait", "run"):
        means = before[f"{what}_mean"], after[f"{what}_mean"]
        if None in means:
            continue
        spread = _error_of_means(before, after, what)
        rows.append(
            _figure(f"{what} mean", "ms", means[0] * 1e3, means[1] * 1e3, _verdict(means[1] - means[0], spread))
        )
        for rank, at in (("p50", 0), ("p95", 1)):
            rows.append(_figure(f"{what} {rank}", "ms", before[what][at] * 1e3, after[what][at] * 1e3, ""))
    return rows


def _figure(name: str, unit: str, before: float, after: float, verdict: str) -> tuple[Any, ...]:
    return name, unit, before, after, after / before - 1 if before else None, verdict


def _error_of_means(before: Row, after: Row, what: str) -> float | None:
    """The standard error of a difference of two means (Welch); None when a side has one value only."""
    if before[f"{what}_spread"] is None or after[f"{what}_spread"] is None:
        return None
    return math.sqrt(sum(side[f"{what}_spread"] ** 2 / side[f"{what}_count"] for side in (before, after)))


def _verdict(difference: float, error: float | None) -> str:
    if error is None or abs(difference) <= _CLEAR * error or difference == 0:
        return "no clear change"
    return "clearly more" if difference > 0 else "clearly less"


def _rates_of(row: Row, length_s: float) -> tuple[Any, ...]:
    return row.n, row.n / length_s, row.dead / row.n, row.retried / row.n


def _lengths_of(row: Row) -> tuple[Any, ...]:
    return tuple((row[what] or (None,) * 3)[at] for what in ("wait", "run") for at in range(3))


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
