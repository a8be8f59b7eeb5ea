"""All scenarios, by row."""

from tests.reliability.rows import network, server, workers
from tests.reliability.scenario import Scenario

SCENARIOS: dict[str, Scenario] = {one.row: one for one in (*workers.ROWS, *network.ROWS, *server.ROWS)}
