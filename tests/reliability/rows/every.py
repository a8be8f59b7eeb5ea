"""All scenarios, by row."""

from tests.reliability.rows import damage, depth, leaders, limits, network, points, refusals, replies, server, workers
from tests.reliability.scenario import Scenario

_MODULES = (workers, network, server, replies, refusals, leaders, limits, points, damage, depth)
SCENARIOS: dict[str, Scenario] = {one.row: one for module in _MODULES for one in module.ROWS}
