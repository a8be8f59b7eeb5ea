"""What was measured at each size by `benchmarks.growth`, as tables and pictures take it."""

from dataclasses import dataclass, field
from typing import Any

from jobrunner import Client
from jobrunner.client.queue import Queue

BATCH, FEW = 64, 8
"""Tasks of a turn, and of a turn with large payloads."""


@dataclass(kw_only=True)
class Bed:
    """A place of one size, and the costs of a task that were found there: microseconds."""

    series: str
    size: int
    queues: list[Queue]
    payload: bytes = b"x" * 100
    batch: int = BATCH
    clients: list[Client] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    wall_us: list[float] = field(default_factory=list)


def as_json(bed: Bed) -> dict[str, Any]:
    return {"series": bed.series, "size": bed.size, "server_us": bed.server_us, "wall_us": bed.wall_us}


def from_json(found: dict[str, Any]) -> Bed:
    """A bed with its figures, without its queues."""
    return Bed(**found, queues=[])
