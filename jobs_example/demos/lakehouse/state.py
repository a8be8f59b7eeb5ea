"""The state of the demo at one moment, as a line and as tables."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jobrunner.etl.progress import PipelineView, StationView
from jobs_example.demos.pipelines.log import BatchDone
from jobs_example.demos.pipelines.roles import Role, RoleProcesses
from jobs_example.demos.pipelines.stations import picture_of

if TYPE_CHECKING:
    from rich.console import RenderableType

ROLES: tuple[Role, ...] = ("worker", "driver", "java", "executor")
"""The kinds of processes that are killed; the server is killed, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """All of it. `pushed` of `planned` orders are confirmed by the server."""

    elapsed_s: float
    planned: int
    pushed: int
    pipeline: PipelineView
    processes: RoleProcesses
    killed: tuple[tuple[Role, int], ...]
    """Role and id of each process that was killed, in order."""
    lost_bytes: int | None
    """What the server lost when it was killed; None before."""
    batches: tuple[BatchDone, ...]
    """The Spark batches that are done, in order."""

    @property
    def is_over(self) -> bool:
        """Whether all orders have entered, and none is on its way."""
        return self.pushed == self.planned and not self.pipeline.open

    @property
    def stored(self) -> int:
        """Orders that are in both tables, as the server counts them; it forgets some when it is killed."""
        return self.station("checked").totals.get("succeeded", 0)

    def station(self, queue: str) -> StationView:
        """The station of that queue."""
        return next(station for station in self.pipeline.stations if station.queue == queue)

    def summary(self) -> str:
        """All in one line."""
        checked = self.station("orders").totals.get("moved_out", 0)
        lost = "" if self.lost_bytes is None else f", the server's last {self.lost_bytes:,} bytes lost"
        return (
            f"{self.elapsed_s:5.1f} s  {self.pushed:,} of {self.planned:,} pushed, {checked:,} checked, "
            f"{self.stored:,} stored, {self.pipeline.dead} dead; {len(self.batches)} Spark batches; "
            f"{len(self.killed)} killed{lost}"
        )

    def picture(self) -> "RenderableType":
        """Stations, processes, and the last batches of Spark."""
        return picture_of(
            self.pipeline, ROLES, self.processes, self.killed, self.batches,
            at_the_end="Delta, Iceberg", summary=self.summary(),
        )  # fmt: skip
