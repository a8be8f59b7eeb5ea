"""All scenarios, by row."""

from tests.reliability.rows import leaders, limits, network, points, refusals, replies, server, soak, workers
from tests.reliability.scenario import Scenario

_MODULES = (workers, network, server, replies, refusals, leaders, limits, points, soak)
SCENARIOS: dict[str, Scenario] = {one.row: one for module in _MODULES for one in module.ROWS}
