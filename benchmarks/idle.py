"""An idle worker: its cost, and the delay until it starts a task."""

import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import quantiles

from benchmarks.child import ChildFailed, run_to_end
from benchmarks.contender import Contender
from benchmarks.server import PrivateServer
from benchmarks.worker_processes import Workers, running_workers

WARM_UP = 20
SETTLE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Of all processes of an idle worker. None: unknown on this system."""

    commands_per_s: float
    cpu_percent: float | None
    memory_mb: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Percentiles, in ms."""

    p50: float
    p95: float
    p99: float


def idle(server: PrivateServer, contender: Contender, seconds: float) -> Idle:
    """The cost of an idle worker after it has run a few tasks. Raises ChildFailed."""
    with warm_worker(server, contender) as worker:
        time.sleep(SETTLE_S)
        before = worker.cpu_seconds()
        commands = _count_commands(server, seconds)
        after = worker.cpu_seconds()
        memory = worker.memory_mb()
    cpu = None if before is None or after is None else 100 * (after - before) / seconds
    return Idle(commands_per_s=commands / seconds, cpu_percent=cpu, memory_mb=memory)


def latency(server: PrivateServer, contender: Contender, tasks: int) -> Delays:
    """From the call of enqueue to the first line of the job, of tasks that come one by one to an idle worker.

    Raises ChildFailed when not every task started once."""
    with warm_worker(server, contender) as worker:
        warm = Counter(worker.ledger.numbers())
        run_to_end([*contender.produce, "paced", "stamp", str(tasks)], contender.environment(server))
        worker.must_run(WARM_UP + tasks)
        return percentiles(check_starts(worker, warm, tasks))


def check_starts(worker: Workers, warm: Counter[int], tasks: int) -> list[float]:
    """The delays (ms) of `tasks` tasks in the ledger, without the `warm` ones. Raises ChildFailed."""
    time.sleep(0.2)  # a second start of a task would come a little later
    delays = list((Counter(worker.ledger.numbers()) - warm).elements())
    if len(delays) != tasks:
        raise ChildFailed(f"{len(delays)} starts of {tasks} tasks")
    return [delay / 1e6 for delay in delays]


def percentiles(delays: Sequence[float]) -> Delays:
    """Of at least two delays, none beyond the longest."""
    cuts = quantiles(delays, n=100, method="inclusive")
    return Delays(p50=cuts[49], p95=cuts[94], p99=cuts[98])


@contextmanager
def warm_worker(server: PrivateServer, contender: Contender, capacity: int = 10_000) -> Iterator[Workers]:
    """An idle worker that ran a few tasks, with `capacity` entries in its ledger. Raises ChildFailed."""
    server.clear()
    environment = contender.environment(server)
    with running_workers(contender, environment, capacity=capacity, task="stamp") as worker:
        run_to_end([*contender.produce, "paced", "stamp", str(WARM_UP)], environment)
        worker.must_run(WARM_UP)
        yield worker


def _count_commands(server: PrivateServer, seconds: float) -> int:
    """Commands that clients send in so many seconds."""
    seen = bytearray()
    deadline = time.monotonic() + seconds
    with socket.create_connection(server.address) as wire:
        wire.sendall(b"MONITOR\r\n")
        while (remaining := deadline - time.monotonic()) > 0:
            wire.settimeout(remaining)
            try:
                seen += wire.recv(65536)
            except TimeoutError:
                break
    return sent_commands(bytes(seen))


def sent_commands(monitored: bytes) -> int:
    """How many lines of MONITOR's are commands that clients sent: it marks those that scripts call."""
    return sum(1 for line in monitored.split(b"\r\n") if b"] " in line and b" lua] " not in line)
