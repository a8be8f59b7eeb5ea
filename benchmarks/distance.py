"""How fast one worker is that serves many queues on a far server.

    python -m benchmarks.distance                                   # about five minutes
    python -m benchmarks.distance --rounds 5 --queues 1,64 --rtt 4  # some cells
    python -m benchmarks.distance --python PATH_TO_ANOTHER/python --path CHECKOUT   # another version beside this one

A proxy in a process of its own delays each direction by half a round trip. Ten slots, 3 000 tasks of 5 ms: 2 000 tasks
a second at best. The tasks lie in one of the queues, or in eight of them (`in 8`); of the 63 others half are paused and
hold tasks (`paused`), or are at their limit of running tasks and hold more (`limited`). Ratios are to one queue on the
same way.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.distance_worker import wait
from benchmarks.results import Summary, Table, write_json
from benchmarks.server import PrivateServer
from jobrunner import Client
from jobrunner.client.current import within

_ROOT = Path(__file__).parents[1]
_WORKER = _ROOT / "benchmarks" / "distance_worker.py"
_FULL = 64
_TARGET = 0.8


@dataclass(frozen=True, slots=True)
class Cell:
    """One case: the delay, the number of queues, and their contents."""

    rtt_ms: float
    queues: int
    scene: str = "in 1"


@dataclass(frozen=True, slots=True)
class Load:
    """The work of each cell."""

    tasks: int
    seconds: float
    slots: int


def main() -> int:
    """Exit code: 0, or 1 when a run did not end."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.distance", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--rtt", default="0,1,4", help="milliseconds of a round trip")
    asked.add_argument("--queues", default="1,16,64")
    asked.add_argument("--tasks", type=int, default=3000)
    asked.add_argument("--ms", type=float, default=5.0, help="how long a task takes")
    asked.add_argument("--slots", type=int, default=10)
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--python", default=sys.executable, help="the interpreter of the worker")
    asked.add_argument("--path", type=Path, default=_ROOT, help="the checkout whose worker is measured")
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    load = Load(given.tasks, given.ms / 1000, given.slots)
    cells = [Cell(float(rtt), int(queues)) for rtt in given.rtt.split(",") for queues in given.queues.split(",")]
    for rtt in given.rtt.split(","):
        if str(_FULL) in given.queues.split(","):
            cells += [Cell(float(rtt), _FULL, scene) for scene in ("in 8", "paused", "limited")]
    rates: dict[Cell, list[float]] = {cell: [] for cell in cells}
    with PrivateServer() as server:
        for number in range(given.rounds):
            for cell in cells if number % 2 == 0 else reversed(cells):
                rates[cell].append(rate(server, cell, load, given.python, given.path))
                print(f"round {number + 1}: {cell}: {rates[cell][-1]:.0f}/s", file=sys.stderr)
    print(*table(rates).markdown(), sep="\n")
    if given.json:
        write_json(given.json, [asdict(cell) | {"rates": found} for cell, found in rates.items()])
    return 0 if all(one == one for found in rates.values() for one in found) else 1


def rate(server: PrivateServer, cell: Cell, load: Load, python: str, path: Path) -> float:
    """Tasks a second, from the begin of the first to the end of the last."""
    server.clear()
    names = [f"q{number}" for number in range(cell.queues)]
    with Client(server.url, "far") as client, within(client):
        _fill(client, names, cell.scene, load)
    with delayed(server.address, cell.rtt_ms) as port:
        # Safe: else the working directory comes first, and every version would be the one that lies there.
        words = [python, str(_WORKER), f"redis://127.0.0.1:{port}/0", "far", str(load.slots)]
        environment = os.environ | {"PYTHONPATH": str(path), "PYTHONSAFEPATH": "1"}
        found = subprocess.run([*words, *names], capture_output=True, text=True, check=True, env=environment)
    return load.tasks / float(found.stdout.split()[-1])


def _fill(client: Client, names: Sequence[str], scene: str, load: Load) -> None:
    into = names[:: len(names) // 8] if scene == "in 8" else names[:1]
    share = load.tasks // len(into)
    for name in into:
        wait.using(queue=name).enqueue_many([wait.bind(load.seconds, last=share * len(into)) for _ in range(share)])
    for name in names[1::2] if scene in ("paused", "limited") else ():
        queue = client.queue(name)
        wait.using(queue=name).enqueue_many([wait.bind(load.seconds) for _ in range(5)])
        if scene == "paused":
            queue.pause()
        else:
            queue.configure(max_inflight=1, keepalive=600)
            queue.reserve(1)


@contextmanager
def delayed(server: tuple[str, int], rtt_ms: float) -> Iterator[int]:
    """The port of a proxy before the server, in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.delay_proxy", server[0], str(server[1]), str(rtt_ms)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            yield int(proxy.stdout.readline())
        finally:
            proxy.stdin.close()


def table(rates: dict[Cell, list[float]]) -> Table:
    """Tasks a second of each cell, the ratio to one queue with the same delay, and all rounds."""
    rows = []
    for cell, found in rates.items():
        summary, alone = Summary.of(found), rates.get(Cell(cell.rtt_ms, 1))
        ratio = summary.ratio(Summary.of(alone)) if alone else float("nan")
        reached = f"{ratio:.2f}{' (missed)' if ratio < _TARGET else ''}"
        rounds = " ".join(f"{one:.0f}" for one in found)
        rows.append((f"{cell.rtt_ms:g} ms", str(cell.queues), cell.scene, summary.text(), reached, rounds))
    return Table(("round trip", "queues", "tasks", "tasks/s", "of one queue", "rounds"), rows)


if __name__ == "__main__":
    sys.exit(main())
