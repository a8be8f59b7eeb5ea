"""One measured size of `benchmarks.growth`: the queues that fill the server, and the measured costs."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # results.py imports this also where jobrunner is not installed: --only peers
    from jobrunner import Client, Queue

BATCH, LARGE_PAYLOAD_BATCH = 64, 8
"""Tasks of a turn, and of a turn with large payloads."""


@dataclass(kw_only=True)
class GrowthPoint:
    """The queues of one size in a series, and the cost of a task there, in microseconds, for each round."""

    series: str
    size: int
    queues: "list[Queue]"
    payload: bytes = b"x" * 100
    batch: int = BATCH
    clients: "list[Client]" = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)


def as_json(point: GrowthPoint) -> dict[str, Any]:
    """The measurements, without the queues."""
    return {"series": point.series, "size": point.size, "server_us": point.server_us, "wall_us": point.wall_us}


def from_json(found: dict[str, Any]) -> GrowthPoint:
    """A point with its measurements and no queues."""
    return GrowthPoint(**found, queues=[])
