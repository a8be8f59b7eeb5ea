"""The state of the demo of the pipeline at one moment, as a line and as a table."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobrunner.etl.progress import PipelineView, StationView
from jobs_example.demos.pipelines.log import BatchDone
from jobs_example.demos.pipelines.roles import Role, RoleProcesses
from jobs_example.demos.pipelines.stations import picture_of

if TYPE_CHECKING:
    from rich.console import RenderableType

ROLES: tuple[Role, ...] = ("worker", "driver", "executor")
"""The kinds of processes that are killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """All of it. `pushed` of `planned` items have entered the pipeline."""

    elapsed_s: float
    planned: int
    pushed: int
    pipeline: PipelineView
    processes: RoleProcesses
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
        return picture_of(
            self.pipeline, ROLES, self.processes, self.killed, self.batches,
            at_the_end="Parquet", summary=self.summary(),
        )  # fmt: skip
