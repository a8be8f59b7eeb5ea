"""All scenarios, by row."""

from tests.reliability.rows import (
    attackers,
    crashes,
    damage,
    depth,
    drivers,
    hostile,
    keepers,
    leaders,
    limits,
    network,
    payloads,
    points,
    poison,
    power,
    races,
    refusals,
    replies,
    scale,
    server,
    soak,
    supervisors,
    topologies,
    versions,
    workers,
)
from tests.reliability.scenario import Scenario

_MODULES = (
    workers, crashes, supervisors, network, server, replies, refusals, leaders, limits, points, poison, payloads, races,
    versions, hostile, soak, damage, depth, topologies, drivers, keepers, scale, attackers, power,
)  # fmt: skip
SCENARIOS: dict[str, Scenario] = {one.row: one for module in _MODULES for one in module.ROWS}
