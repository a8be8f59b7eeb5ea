"""Compares this checkout with another one, in turns: the cost of an enqueue, a push, a drain and a lone task's start.

    python -m benchmarks.pairs --against CHECKOUT                     # about five minutes
    python -m benchmarks.pairs --against CHECKOUT --only push,start --pairs 20

Two processes that live through all turns, one for each checkout, and one server. A turn is short, so that what the
machine does else falls on both, and who is first changes. The figures are CPU time of client and server, and time by
the clock; of each the median of the ratios of all pairs, this checkout divided by the other one, and how far apart the
quartiles of these ratios are.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.server import PrivateServer

_ROOT = Path(__file__).parents[1]
_SIDE = _ROOT / "benchmarks" / "pairs_side.py"
_COUNTS = {
    "enqueue": 1000,
    "enqueue_many": 10_000,
    "push": 1000,
    "push_keyed": 1000,
    "push_many": 10_000,
    "push_many_keyed": 10_000,
    "keyed_drain": 5000,
    "drain": 20_000,
}
_START = "start"
_PAUSE_S = (0.01, 0.02)
_STARTS = 20
"""Lone tasks of a side in each pair; the figure of the pair is their median."""
_FIGURES = ("client CPU", "server CPU", "clock")


class Side:
    """A process with one of the checkouts."""

    def __init__(self, server: PrivateServer, prefix: str, checkout: Path) -> None:
        self._server = server
        # Safe: else the working directory comes first, and every version would be the one that lies there.
        self._process = subprocess.Popen(
            [sys.executable, str(_SIDE), server.url, prefix],
            env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, line: str) -> str:
        """Its answer. Raises ChildProcessError when it ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self.next_line()

    def next_line(self) -> str:
        """Its next answer, without the log of its worker. Raises ChildProcessError when it ended."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("= "):
                return line.removeprefix("= ")
        raise ChildProcessError(f"{self._process.args!r} ended with {self._process.wait()}")

    def turn(self, measure: str) -> tuple[float, ...]:
        """The figures of one turn, µs of each task or call."""
        self._server.clear()
        self.send(f"{measure} 0")
        count, before = _COUNTS[measure], self._server.usage().cpu_us
        clock, spent = map(float, self.send(f"{measure} {count}").split())
        used = self._server.usage().cpu_us - before
        return 1e6 * spent / count, used / count, 1e6 * clock / count

    def end(self) -> None:
        """Ends it."""
        self._process.send_signal(signal.SIGTERM)
        self._process.communicate()


@contextmanager
def side(server: PrivateServer, prefix: str, checkout: Path) -> Iterator[Side]:
    """Runs while its block does."""
    made = Side(server, prefix, checkout)
    try:
        yield made
    finally:
        made.end()


Pair = tuple[Any, Any]


def turns(sides: Sequence[Side], measure: str, pairs: int) -> Iterator[Pair]:
    """The figures of the two sides, pair by pair."""
    for number in range(-1, pairs):
        found = {one: sides[one].turn(measure) for one in _order(number)}
        if number >= 0:  # the first one is for what is made once
            yield found[0], found[1]


def starts(sides: Sequence[Side], workers: Sequence[Side], pairs: int) -> Iterator[Pair]:
    """The same of lone tasks that an idle worker begins: only the time, from the call of enqueue."""
    chance = random.Random(7)
    for number in range(-1, pairs):
        found: dict[int, list[float]] = {0: [], 1: []}
        for start in range(_STARTS):
            for one in _order(start):
                time.sleep(chance.uniform(*_PAUSE_S))
                sides[one].send("stamp 1")
                found[one].append(float(workers[one].next_line()) / 1000)
        if number >= 0:
            yield (median(found[0]),), (median(found[1]),)


def _order(number: int) -> tuple[int, int]:
    return (0, 1) if number % 2 else (1, 0)


def rows(measure: str, names: Sequence[str], found: Sequence[Pair]) -> Iterator[str]:
    """A line of the table for each figure."""
    for at, name in enumerate(names):
        old, new = ([pair[one][at] for pair in found] for one in (0, 1))
        ratios = [after / before for before, after in zip(old, new, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        spread = f"{low:.3f} to {high:.3f}"
        yield f"| {measure} | {name} | {median(old):.1f} | {median(new):.1f} | {median(ratios):.3f} | {spread} |"


def main() -> int:
    """Exit code: 0."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--against", type=Path, required=True, help="the other checkout")
    asked.add_argument("--path", type=Path, default=_ROOT, help="the checkout that is compared with it: this one")
    asked.add_argument("--only", default=",".join((*_COUNTS, _START)), help="some measures")
    asked.add_argument("--pairs", type=int, default=15)
    given = asked.parse_args()
    checkouts = (given.against.resolve(), given.path.resolve())
    print("| measure | figure, µs | other | this | ratio | quartiles |", "|---" * 6 + "|", sep="\n", flush=True)
    with PrivateServer() as server, ExitStack() as running:
        sides = [
            running.enter_context(side(server, prefix, checkout))
            for prefix, checkout in zip(("other", "this-"), checkouts, strict=True)  # names of one length
        ]
        for measure in given.only.split(","):
            if measure != _START:
                found, names = list(turns(sides, measure, given.pairs)), _FIGURES
            else:
                server.clear()
                with ExitStack() as served:
                    workers = [
                        served.enter_context(side(server, prefix, checkout))
                        for prefix, checkout in zip(("other", "this-"), checkouts, strict=True)
                    ]
                    for worker in workers:
                        worker.send("work 1")
                    found, names = list(starts(sides, workers, given.pairs)), _FIGURES[2:]
            print(*rows(measure, names, found), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
