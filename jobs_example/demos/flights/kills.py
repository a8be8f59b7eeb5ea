"""When each kind of process is killed in the demo of the flights."""

from collections.abc import Callable

from jobs_example.demos.flights.state import DemoState
from jobs_example.demos.pipelines.kills import Kills
from jobs_example.demos.pipelines.roles import Role

_REST_S = 2.0
"""After the executor's Python, before the driver: time for the Spark task to begin anew."""


class FlightKills(Kills):
    """Kills a Python worker early, a Python of the executor as soon as Spark has a batch in hand, then the driver.

    The driver is killed once `driver_at` (0 to 1) of the items have come past the station on Spark.
    """

    def __init__(self, say: Callable[[str], None], driver_at: float) -> None:
        super().__init__(say)
        self._driver_at = driver_at

    def times(self, state: DemoState) -> dict[Role, bool]:
        """As the class says."""
        raw, departed = state.station("raw"), state.station("departed")
        cleaned = raw.totals.get("moved_out", 0)
        enriched = departed.totals.get("moved_out", 0)
        on_spark = sum(one.pending for one in state.pipeline.stations if one.kind.startswith("spark"))
        rested = self.since_s("executor") > _REST_S
        return {
            "worker": raw.pending > 0 and cleaned > 0.1 * state.planned,
            "executor": departed.pending > 0,
            "driver": rested and on_spark > 0 and enriched >= self._driver_at * state.planned,
        }
