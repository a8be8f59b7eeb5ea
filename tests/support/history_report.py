"""A report on history from figures that no Spark computed."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from jobrunner.spark.history.report import Report, ReportColumn, Table

FIRST = datetime(2026, 11, 20, 8, tzinfo=UTC)
RATES = tuple(
    ReportColumn(name=name, title=name, kind=kind)
    for name, kind in (("tasks", "count"), ("per_s", "rate"), ("dead", "share"), ("retried", "share"))
)
LENGTHS = tuple(
    ReportColumn(name=f"{what}_{rank}", title=f"{what} {rank}", kind="length")
    for what in ("wait", "run")
    for rank in ("p50", "p95", "p99")
)
FIGURES = (1_234_567, 2469.134, 0.0, 0.00001, 0.0, 0.5, 1.0, 0.02, 1.5, 12.5)


def table(name: str, group: str, *rows: tuple[Any, ...]) -> Table:
    """A table by a group with the columns that all of these have."""
    column = ReportColumn(name=group, title=group)
    return Table(name=name, title=f"By {group}", columns=(column, *RATES, *LENGTHS), rows=rows)


def report(*, hours: float = 6.0, **more: Any) -> Report:
    """Two jobs on two queues, of tasks that ended within so many hours."""
    ends = tuple(ReportColumn(name=name, title=name, kind="instant") for name in ("first", "last"))
    counts = tuple(
        ReportColumn(name=name, title=name, kind="count") for name in ("succeeded", "dead", "cancelled", "retried")
    )
    rate = ReportColumn(name="per_s", title="rate", kind="rate")
    over_time = [(FIRST + timedelta(hours=at), 1.0, 3600, at, 0, at, *FIGURES[4:]) for at in range(4)]
    summary = (FIRST, FIRST + timedelta(hours=hours), *FIGURES)
    tables = (
        Table(name="summary", title="All tasks", columns=(*ends, *RATES, *LENGTHS), rows=(summary,)),
        Table(name="throughput", title="Throughput", columns=(replace(ends[0], name="from"), rate, *counts, *LENGTHS),
              rows=tuple(over_time)),
        table("queues", "queue", ("mail", *FIGURES), ("web", *FIGURES)),
        table("jobs", "job", ("Welcome", *FIGURES), ("Fetch<", *FIGURES)),
        table("hours", "hour", ("08", *FIGURES)),
    )  # fmt: skip
    return Report(source="archive", tables=tables, bucket_s=3600, **more)
