"""When each kind of process is killed in the demo of the lakehouse."""

from collections.abc import Callable

from jobs_example.demos.lakehouse.glance import Glance
from jobs_example.demos.pipelines.crew import Role
from jobs_example.demos.pipelines.kills import Kills

_REST_S = 2.0
"""Between two kills on Spark: time for the work to begin anew."""
SERVER_AT, DRIVER_AT, JAVA_AT = 0.1, 0.3, 0.55
"""Shares of the orders that are stored by then."""


class LakehouseKills(Kills):
    """Kills a Python worker early, a Python of the executor at the first batch, the driver in the middle, and the Java
    of the driver in its place once that has done a batch."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(say)
        self._batches_before: int | None = None

    def times(self, glance: Glance) -> dict[Role, bool]:
        """As the class says."""
        orders = glance.station("orders")
        on_spark = sum(one.pending for one in glance.pipeline.stations if one.kind.startswith("spark"))
        stored = glance.stored / glance.planned
        if self._batches_before is None and "driver" in self.replaced:
            self._batches_before = len(glance.batches)
        is_back = self._batches_before is not None and len(glance.batches) > self._batches_before
        return {
            "worker": orders.pending > 0 and orders.totals.get("moved_out", 0) > 0.05 * glance.planned,
            "executor": on_spark > 0,
            "driver": on_spark > 0 and stored >= DRIVER_AT and self.since_s("executor") > _REST_S,
            "java": on_spark > 0 and stored >= JAVA_AT and is_back,
        }
