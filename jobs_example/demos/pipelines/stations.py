"""A pipeline at work as tables for the terminal: its stations, its processes, its Spark batches. They need rich."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jobrunner.etl.progress import PipelineView
from jobs_example.demos.pipelines.log import BatchDone
from jobs_example.demos.pipelines.roles import TITLES, Role, RoleProcesses

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MOST_BATCHES = 5
"""How many of the last batches are drawn."""


def picture_of(
    pipeline: PipelineView,
    roles: Sequence[Role],
    processes: RoleProcesses,
    killed: Sequence[tuple[Role, int]],
    batches: Sequence[BatchDone],
    *,
    at_the_end: str,
    summary: str,
) -> "RenderableType":
    """The three tables, without the last one while there are no batches, and the summary below them."""
    from rich.columns import Columns
    from rich.console import Group

    tables = [processes_table(roles, processes, killed)]
    if batches:
        tables.append(batches_table(batches))
    return Group(stations_table(pipeline, at_the_end=at_the_end), Columns(tables, padding=(0, 3)), summary)


def stations_table(pipeline: PipelineView, *, at_the_end: str) -> "Table":
    """One row each, a chain being one; `at_the_end` says where sinks and chains lead to."""
    from rich.table import Table

    table = Table("station", "on", "leads to", title="items", title_justify="left")
    for heading in ("waiting", "in hand", "dead", "done", "in/s", "out/s"):
        table.add_column(heading, justify="right")
    chained = {to for one in pipeline.stations if one.is_chained for to in one.targets}
    for one in pipeline.stations:
        if one.queue in chained and not one.open:
            continue
        done = one.totals.get("moved_out", 0) + one.totals.get("succeeded", 0)
        counts = (one.waiting + one.scheduled, one.pending, one.dead, done)
        rates = (f"{rate:.0f}" if rate else "" for rate in (one.rate.in_per_s, one.rate.out_per_s))
        engine = "Spark" if one.kind.startswith("spark") else "Python"
        targets = "" if one.is_chained else ", ".join(one.targets)
        table.add_row(one.queue, engine, targets or at_the_end, *map(str, counts), *rates)
    return table


def processes_table(roles: Sequence[Role], processes: RoleProcesses, killed: Sequence[tuple[Role, int]]) -> "Table":
    """One row for each kind of process, with those that were killed."""
    from rich.table import Table

    table = Table("process", "pid", "killed", title="processes", title_justify="left")
    for role in roles:
        absent = "none at work" if role == "executor" else "[yellow]starting[/]"
        pids = ", ".join(map(str, sorted(processes.of(role)))) or absent
        dead = ", ".join(str(pid) for whose, pid in killed if whose == role)
        table.add_row(TITLES[role].partition(" ")[2], pids, f"[bold red]{dead}[/]" if dead else "")
    return table


def batches_table(batches: Sequence[BatchDone]) -> "Table":
    """The last ones, one row each."""
    from rich.table import Table

    table = Table("station", title=f"Spark batches: {len(batches)} done", title_justify="left")
    for heading in ("items", "seconds", "items/s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for batch in batches[-MOST_BATCHES:]:
        again = f"[yellow]handed out {batch.epoch} times[/]" if batch.epoch > 1 else ""
        table.add_row(
            batch.station, str(batch.items), f"{batch.seconds:.1f}", f"{batch.items / batch.seconds:.0f}", again
        )
    return table
