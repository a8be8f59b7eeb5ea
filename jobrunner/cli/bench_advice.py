"""The verdict of `jobrunner bench`: the bottleneck of this set-up, and suggestions."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from jobrunner.cli.bench_steps import Drained, Percentiles
from jobrunner.inspector.doctor import Check

_BUSY = 0.85
_FAR_MS = 1.0
_UNEVEN = 5.0
_LARGE_BYTES = 16_384
_WORTH_IT = 1.3
_FAST_IN_BULK = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFigures:
    """Measured values. Times in milliseconds, rates in tasks per second."""

    round_trip_ms: Percentiles
    enqueue_per_s: float
    bulk_per_s: float
    drained: Drained
    idle_latency_ms: Percentiles
    payload_bytes: int
    cores: int
    is_local: bool
    """Whether the server is on this machine."""


def verdict(found: BenchFigures) -> str:
    """Names the bottleneck of one worker process."""
    drained = found.drained
    took = f"{drained.worker_us:.0f} µs of this interpreter and {drained.server_us:.0f} µs of the server for a task"
    if drained.worker_share >= _BUSY and drained.worker_share >= drained.server_share:
        return f"the interpreter of the worker is the limit: {took}"
    if drained.server_share >= _BUSY:
        return f"the server is the limit: {took}; of the one core that it works on {drained.server_share:.0%} was taken"
    shares = f"{drained.worker_share:.0%} and {drained.server_share:.0%} of a core"
    return (
        f"neither worker nor server is busy ({shares}): the network, or other load on this machine, is the "
        f"limit; {took}"
    )


def advice(found: BenchFigures, checks: Iterable[Check] = ()) -> Iterator[str]:
    """Suggestions, the most important first. `checks`: results of the doctor."""
    yield from _processes(found)
    trip = found.round_trip_ms
    if trip.p50 > _FAR_MS:
        where = "a server nearer by" if not found.is_local else "the machine at rest"
        yield (
            f"a round trip takes {trip.p50:.1f} ms, so one call after the other enqueues at most "
            f"{1000 / trip.p50:,.0f} tasks/s: enqueue_many needs one for 1,000 tasks, AsyncClient sends concurrently; "
            f"or use {where}"
        )
    elif found.bulk_per_s > _FAST_IN_BULK * found.enqueue_per_s:
        times = found.bulk_per_s / found.enqueue_per_s
        yield f"enqueue many tasks at once with enqueue_many: {times:.0f} times as fast as one by one"
    if trip.p95 > _UNEVEN * trip.p50:
        yield (
            f"round trips vary (95 %: {trip.p95 / trip.p50:.0f} times the median): the machine or the network has "
            "other load; measure again without it"
        )
    if found.payload_bytes > _LARGE_BYTES:
        yield (
            f"a payload of {found.payload_bytes:,} bytes travels twice and stays in the server's memory: store it "
            "elsewhere and enqueue where it is"
        )
    yield from (f"{check.what}: {check.found}; {check.advice}" for check in checks if check.advice)


def _processes(found: BenchFigures) -> Iterator[str]:
    drained = found.drained
    if drained.worker_share < _BUSY or found.cores < 2:
        return
    room = min(_BUSY / max(drained.server_share, 0.01), found.cores)
    if room >= _WORTH_IT:
        yield (
            f"work --processes {max(round(room), 2)} uses more cores: the server has room for about {room:.1f} times "
            f"as many tasks that do nothing; tasks that compute want one process for each of the {found.cores} cores, "
            "tasks that wait want a higher --concurrency"
        )
