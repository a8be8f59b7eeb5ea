"""When each kind of process is killed in the demo of the lakehouse."""

from jobs_example.demos.lakehouse.state import DemoState
from jobs_example.demos.pipelines.kills import Kills
from jobs_example.demos.pipelines.roles import Role

_REST_S = 2.0
"""Between two kills on Spark: time for the work to begin anew."""
SERVER_AT, DRIVER_AT = 0.1, 0.3
"""Shares of the orders that are stored by then."""


class LakehouseKills(Kills):
    """Kills a Python worker early, a Python of the executor at the first batch, the driver in the middle, and the Java
    of the driver in its place once that has a batch in work."""

    def times(self, state: DemoState) -> dict[Role, bool]:
        """As the class says."""
        orders = state.station("orders")
        on_spark = sum(one.pending for one in state.pipeline.stations if one.kind.startswith("spark"))
        stored = state.stored / state.planned
        is_back = "driver" in self.replaced and bool(state.processes.executor)  # Spark starts them for work
        return {
            "worker": orders.pending > 0 and orders.totals.get("moved_out", 0) > 0.05 * state.planned,
            "executor": on_spark > 0,
            "driver": on_spark > 0 and stored >= DRIVER_AT and self.since_s("executor") > _REST_S,
            "java": on_spark > 0 and is_back,
        }
