"""What middleware costs: the same enqueues and the same drain with none, one and two, in turns.

    python -m benchmarks.middleware --tasks 5000 --rounds 15

One process and one server. A round enqueues and drains so many tasks with each number of middleware, another one first
each time; the figures are the CPU time of this process, and the medians of the ratios to "none" of the same round. The
middleware is the smallest that there is: it sets one header at the enqueue and reads it around the run.
"""

import argparse
import logging
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import structlog

from benchmarks.server import PrivateServer
from jobrunner import Client, Job, Worker, job
from jobrunner.client.current import within

_NUMBERS = (0, 1, 2)
_BATCH = 1000


class Smallest:
    """Sets a header at the enqueue, reads it around the run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def on_enqueue(self, task: Any, next: Callable[[Any], Any]) -> Any:  # noqa: A002
        """Sets the header."""
        task.headers[self._name] = "1"
        return next(task)

    def around(self, run: Any, next: Callable[[Any], Any]) -> Any:  # noqa: A002
        """Reads it."""
        run.headers.get(self._name)
        yield next(run)


@job(queue="middleware")
class Noop(Job):
    """Does nothing."""

    n: int

    def run(self) -> None: ...


def _cpu_us(work: Callable[[], object], tasks: int) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1e6 / tasks


def _one_by_one(tasks: int) -> None:
    for number in range(tasks):
        Noop(n=number).enqueue()


def _in_bulk(tasks: int) -> None:
    for first in range(0, tasks, _BATCH):
        Noop.enqueue_many([Noop(n=number) for number in range(first, min(first + _BATCH, tasks))])


def _drain(client: Client) -> None:
    Worker(queues=["middleware"], concurrency=10, client=client).run(burst=True)


def measure(server: PrivateServer, tasks: int, rounds: int) -> dict[str, dict[int, list[float]]]:
    """CPU time of a task in µs by measure and number of middleware, a figure for each round."""
    found: dict[str, dict[int, list[float]]] = {
        name: {number: [] for number in _NUMBERS} for name in ("enqueue", "enqueue_many", "drain")
    }
    for turn in range(-1, rounds):  # the first is not counted
        server.clear()
        for number in sorted(_NUMBERS, key=lambda number: (number + turn) % len(_NUMBERS)):
            stack = [Smallest(f"h{one}") for one in range(number)]
            with Client(server.url, middleware=stack) as client, within(client):
                _one_by_one(1)  # connects
                one_by_one = _cpu_us(lambda: _one_by_one(tasks // 5), tasks // 5)
                in_bulk = _cpu_us(lambda: _in_bulk(tasks), tasks)
                drained = _cpu_us(lambda client=client: _drain(client), tasks + tasks // 5 + 1)  # type: ignore[misc]
            if turn >= 0:
                for name, figure in (("enqueue", one_by_one), ("enqueue_many", in_bulk), ("drain", drained)):
                    found[name][number].append(figure)
    return found


def main() -> None:
    """Prints the table."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.middleware", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--tasks", type=int, default=5000)
    asked.add_argument("--rounds", type=int, default=15)
    given = asked.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with PrivateServer() as server:
        found = measure(server, given.tasks, given.rounds)
    print("| | none, µs | one | two | one, µs more | two, µs more |\n|---|---|---|---|---|---|")
    for name, by_number in found.items():
        none = by_number[0]
        ratios = [median(with_ / without for with_, without in zip(by_number[n], none, strict=True)) for n in (1, 2)]
        more = [median(with_ - without for with_, without in zip(by_number[n], none, strict=True)) for n in (1, 2)]
        shown = " | ".join([*(f"{ratio:.2f}" for ratio in ratios), *(f"{extra:.1f}" for extra in more)])
        print(f"| {name} | {median(none):.1f} | {shown} |")


if __name__ == "__main__":
    main()
