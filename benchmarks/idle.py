"""A worker with nothing to do: what it costs, and how soon it starts what comes.

`python -m benchmarks.idle N` enqueues N stamps with pauses in which the worker falls idle again.
"""

import random
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory

from benchmarks.child import Child, ChildFailed, run_to_end
from benchmarks.contenders import WORK, jobrunner_environment
from benchmarks.ledger import Ledger
from benchmarks.server import PrivateServer

WARM_UP = 20
SETTLE_S = 3.0
_PAUSE_S = (0.02, 0.04)


def idle(server: PrivateServer, seconds: float) -> tuple[float, float | None]:
    """(commands per second that an idle worker sends, per cent of a core it uses or None: unknown)."""
    with _warm_worker(server) as (worker, _):
        time.sleep(SETTLE_S)
        before = _cpu_seconds(worker.pid)
        commands = _count_commands(server, seconds)
        after = _cpu_seconds(worker.pid)
    return commands / seconds, None if before is None or after is None else 100 * (after - before) / seconds


def latency(server: PrivateServer, tasks: int) -> tuple[float, float]:
    """(median, 99th percentile) of the ms from the call of enqueue to the first line of the job.

    Raises ChildFailed when not every task started once."""
    with _warm_worker(server) as (worker, ledger):
        run_to_end([sys.executable, "-m", "benchmarks.idle", str(tasks)], jobrunner_environment(server))
        _wait(worker, lambda: len(ledger) >= WARM_UP + tasks)
        time.sleep(0.2)  # a task that runs twice shows itself a little later
        delays = [number / 1e6 for number in ledger.numbers()[WARM_UP:]]
    if len(delays) != tasks:
        raise ChildFailed(f"{len(delays)} starts of {tasks} tasks")
    return median(delays), quantiles(delays, n=100)[98]


@contextmanager
def _warm_worker(server: PrivateServer) -> Iterator[tuple[Child, Ledger]]:
    server.clear()
    environment = jobrunner_environment(server)
    with TemporaryDirectory(prefix="benchmark-") as folder:
        ledger = Ledger(Path(folder) / "ledger", room=10_000)
        with Child(WORK, {**environment, **ledger.environment}, Path(folder) / "log") as worker:
            run_to_end([sys.executable, "-m", "benchmarks.idle", str(WARM_UP)], environment)
            _wait(worker, lambda: len(ledger) >= WARM_UP)
            yield worker, ledger


def _wait(worker: Child, fact: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not fact():
        worker.check_alive()
        if time.monotonic() > deadline:
            raise ChildFailed(f"the worker did not run its tasks within 20 s: {worker.words()}")
        time.sleep(0.01)


def _count_commands(server: PrivateServer, seconds: float) -> int:
    """Commands that clients sent, by MONITOR, which marks those that scripts call."""
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
    return sum(1 for line in bytes(seen).split(b"\r\n") if b"] " in line and b" lua] " not in line)


def _cpu_seconds(pid: int) -> float | None:
    """CPU time so far of a process with all its threads, where the system is Linux.

    The number of another process's clock is made as clock_getcpuclockid(3) makes it; /proc would round to 10 ms.
    """
    return time.clock_gettime(~pid << 3 | 2) if sys.platform == "linux" else None


def pace(tasks: int) -> None:
    """Enqueues stamps one after another, with a random pause after each."""
    from benchmarks.noop_jobs import Stamp

    pauses = random.Random(7)
    for _ in range(tasks):
        Stamp(sent_ns=time.time_ns()).enqueue()
        time.sleep(pauses.uniform(*_PAUSE_S))


if __name__ == "__main__":
    pace(int(sys.argv[1]))
