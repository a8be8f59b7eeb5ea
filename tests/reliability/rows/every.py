"""All scenarios, by row."""

from tests.reliability.rows import (
    damage,
    depth,
    hostile,
    leaders,
    limits,
    network,
    payloads,
    points,
    poison,
    races,
    refusals,
    replies,
    server,
    soak,
    supervisors,
    topologies,
    versions,
    workers,
)
from tests.reliability.scenario import Scenario

_MODULES = (
    workers, supervisors, network, server, replies, refusals, leaders, limits, points, poison, payloads, races,
    versions, hostile, soak, damage, depth, topologies,
)  # fmt: skip
SCENARIOS: dict[str, Scenario] = {one.row: one for module in _MODULES for one in module.ROWS}
