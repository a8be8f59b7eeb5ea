"""The state of the demo of the pipeline at one moment, as a line and as a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobrunner.etl.progress import PipelineView, StationView
from jobs_example.demos.flights.crew import TITLES, Crew, Role
from jobs_example.demos.flights.log import BatchDone

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """All of it. `pushed` of `planned` items have entered the pipeline."""

    elapsed_s: float
    planned: int
    pushed: int
    pipeline: PipelineView
    crew: Crew
    killed: tuple[tuple[Role, int], ...]
    """Role and id of each process that was killed, in order."""
    batches: tuple[BatchDone, ...]
    """The Spark batches that are done, in order."""

    @property
    def is_over(self) -> bool:
        """Whether every item has entered and none is on its way."""
        ended = self.pipeline.succeeded + self.pipeline.dead
        return self.pushed == self.planned == ended and not self.pipeline.open

    def station(self, queue: str) -> StationView:
        """The station of that queue."""
        return next(station for station in self.pipeline.stations if station.queue == queue)

    def summary(self) -> str:
        """All in one line."""
        cleaned = self.station("raw").totals.get("moved_out", 0)
        enriched = self.station("departed").totals.get("moved_out", 0)
        return (
            f"{self.elapsed_s:5.1f} s  {self.pushed} of {self.planned} pushed, {cleaned} cleaned, {enriched} enriched, "
            f"{self.pipeline.succeeded} stored, {self.pipeline.dead} dead; {len(self.batches)} Spark batches; "
            f"{len(self.killed)} killed"
        )

    def picture(self) -> "RenderableType":
        """Stations, processes, and the last batches of Spark."""
        from rich.columns import Columns
        from rich.console import Group

        tables = [_crew(self), _batches(self.batches)] if self.batches else [_crew(self)]
        beside = Columns(tables, padding=(0, 3))
        return Group(_stations(self.pipeline), beside, self.summary())


MOST_BATCHES = 5
"""How many of the last batches are drawn."""


def _stations(pipeline: PipelineView) -> "Table":
    from rich.table import Table

    table = Table("station", "on", "leads to", title="items", title_justify="left")
    for heading in ("waiting", "in hand", "dead", "done", "in/s", "out/s"):
        table.add_column(heading, justify="right")
    for one in pipeline.stations:
        done = one.totals.get("moved_out", 0) + one.totals.get("succeeded", 0)
        counts = (one.waiting + one.scheduled, one.pending, one.dead, done)
        rates = (f"{rate:.0f}" if rate else "" for rate in (one.rate.in_per_s, one.rate.out_per_s))
        engine = "Spark" if one.kind.startswith("spark") else "Python"
        table.add_row(one.queue, engine, ", ".join(one.targets) or "Parquet", *map(str, counts), *rates)
    return table


def _crew(glance: Glance) -> "Table":
    from rich.table import Table

    table = Table("process", "pid", "killed", title="processes", title_justify="left")
    for role, title in TITLES.items():
        absent = "none at work" if role == "executor" else "[yellow]starting[/]"
        pids = ", ".join(map(str, sorted(glance.crew.of(role)))) or absent
        killed = ", ".join(str(pid) for whose, pid in glance.killed if whose == role)
        table.add_row(title.partition(" ")[2], pids, f"[bold red]{killed}[/]" if killed else "")
    return table


def _batches(batches: tuple[BatchDone, ...]) -> "Table":
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
