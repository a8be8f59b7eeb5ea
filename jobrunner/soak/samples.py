"""Samples of a soak: work, waits, faults, memory and descriptors of processes, the server's memory, keys."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jobrunner.broker.calls.server import facts
from jobrunner.client.client import Client
from jobrunner.client.internals import broker_of, keys_of
from jobrunner.inspector.snapshot import counted_queues
from jobrunner.soak.audit import all_keys
from jobrunner.soak.jobs import LIMITED, QUEUES, SINGLE

_WINDOW_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSample:
    """The measurements of one moment. Times in seconds, sizes in bytes; None where measuring failed."""

    at_s: float
    acked: int = 0
    finished: int = 0
    open: int = 0
    in_flight: int | None = None
    retries: int = 0
    dead: int | None = None
    extra: int = 0
    oldest_s: float = 0.0
    per_s: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None
    faults: Mapping[str, int] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes by the name of the worker."""
    descriptors: Mapping[str, int] = field(default_factory=dict)
    server_memory: int | None = None
    keys: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSample:
    """The contents of the queues at one poll."""

    in_flight: int
    dead: int
    limited: int
    """In hand of the limited queue."""
    singles: int
    """Unique tasks that were there."""
    left: int
    """Waiting, scheduled or in hand."""


def server_side(client: Client) -> QueueSample:
    """Polls the queues in one round trip. Raises ServerError."""
    seen = counted_queues(client, QUEUES)
    left = {name: queue.open for name, queue in seen.items()}
    return QueueSample(
        in_flight=sum(queue.pending for queue in seen.values()),
        dead=sum(queue.totals.get("dead", 0) for queue in seen.values()),
        limited=seen[LIMITED].pending,
        singles=left[SINGLE],
        left=sum(left.values()),
    )


def key_count(client: Client) -> int:
    """How many keys are below the prefix, without the statistics of minutes and hours, which are kept for a fixed time.
    """
    figures = keys_of(client).stats_total.removesuffix(b"total")
    return sum(not key.startswith(figures) for key in all_keys(client))


def used_memory(client: Client) -> int:
    """Bytes that the whole server uses."""
    return broker_of(client).run(facts()).used_memory


def resident_bytes(pid: int) -> int | None:
    """Resident memory of a process; None when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:
        return None if Path("/proc").is_dir() else _resident_by_ps(pid)
    except (OSError, IndexError):
        return None


def descriptors(pid: int) -> int | None:
    """How many descriptors a process has open; None where that cannot be read."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None


def share(ordered: list[float], part: float) -> float | None:
    """The quantile `part` of ordered values; None when there are none."""
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else None


def waits_since(waits: list[tuple[float, float]], since: float) -> list[float]:
    """The waits of tasks that began since then, ordered, in milliseconds."""
    return sorted(wait * 1000 for at, wait in waits if at >= since)


def _resident_by_ps(pid: int) -> int | None:
    told = subprocess.run(  # noqa: S603 - the only argument is a number
        ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(told) * 1024 if told.isdigit() else None
