"""All scenarios, by row."""

from tests.reliability.rows import workers
from tests.reliability.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {one.row: one for one in (*workers.ROWS,)}
