"""Measures what large payloads cost the server, with and without a payload store.

    python -m benchmarks.payload_store --rounds 3

For payloads of 10 B, 100 kB and 1 MB, each with a store (a folder) and without, tasks are enqueued one by one and with
`enqueue_many`, and a worker runs them. Times are processor time of the server per task, all of its threads, also to
read, to reply and to write the append-only file. The rows of a round take turns on one server.

A program that writes or reads 1 MB for each task makes fewer calls a second with fewer tasks in each, which costs the
server more per task, whatever the payload. So each figure has two multiples in brackets, of the same run: that of 10 B
at full speed, and that of 10 B in a program that writes, digests and reads a file of this size for each task (the rows
`by hand`).
"""

import argparse
import itertools
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import NamedTuple

import structlog

from benchmarks.results import Table, write_json
from benchmarks.server import PrivateServer
from jobrunner import Client, Worker, job
from jobrunner.client.current import forget, use
from jobrunner.jobs.build import BoundCall

_SIZES = {"10 B": 10, "100 kB": 100_000, "1 MB": 1_000_000}
_QUEUE = "payloads"
_MEASURES = ("enqueue, µs", "enqueue_many, µs", "run, µs", "enqueue and run, µs", "enqueue_many and run, µs")
_LIMIT = 2_000_000
_MOST_BYTES = 100_000_000
"""Of payloads at a time in the server, which keeps them in memory and in its file."""


class Row(NamedTuple):
    """A size of data and its place: in the server, in the payload store, or in a file that the program writes itself
    (`by hand`)."""

    size: int
    place: str

    @property
    def name(self) -> str:
        """As the table has it."""
        return f"{next(name for name, size in _SIZES.items() if size == self.size)}, {self.place}"


ROWS = tuple(Row(size, place) for place in ("server", "store", "by hand") for size in _SIZES.values())


@job(queue=_QUEUE, result_ttl=0)
def receive(text: str, file: str = "") -> None:  # noqa: ARG001
    """Receives its payload, and reads and digests the file, if one is named."""
    if file:
        sha256(Path(file).read_bytes())


def measure(server: PrivateServer, row: Row, folder: Path, tasks: int) -> dict[str, float]:
    """One turn: all measures of a row."""
    server.clear()
    forget()
    text, raw = "x" * (10 if row.place == "by hand" else row.size), b"x" * row.size
    names = itertools.count()

    def bound() -> BoundCall[None]:
        if row.place != "by hand":
            return receive.bind(text)
        file = folder / f"{next(names)}"
        sha256(raw)
        file.write_bytes(raw)
        return receive.bind(text, file=str(file))

    store = folder.as_uri() if row.place == "store" else None
    with Client(server.url, payload_limit=_LIMIT, payload_store=store) as client:
        use(client)
        receive.enqueue("warm-up")
        one, many, run = _MEASURES[:3]
        found = {
            one: _each(server, tasks, lambda: [bound().enqueue() for _ in range(tasks)]),
            many: _each(server, tasks, lambda: receive.enqueue_many([bound() for _ in range(tasks)])),
            run: _each(server, 2 * tasks, lambda: Worker(client=client, queues=[_QUEUE]).run(burst=True)),
        }
        if (ended := client.stats()[_QUEUE].totals["succeeded"]) != 2 * tasks + 1:
            raise SystemExit(f"VOID: {ended} of {2 * tasks + 1} tasks ended")
    forget()
    found[_MEASURES[3]], found[_MEASURES[4]] = found[one] + found[run], found[many] + found[run]
    return found


def _each(server: PrivateServer, count: int, work: Callable[[], object]) -> float:
    before = server.usage()
    work()
    return (server.usage() - before).cpu_us / count


def main() -> int:
    """Prints the table."""
    asked = argparse.ArgumentParser(
        prog="python -m benchmarks.payload_store", description=(__doc__ or "").splitlines()[0]
    )
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--tasks", type=int, default=1_000)
    asked.add_argument("--json", type=Path)
    given = asked.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    load = os.getloadavg()[0]
    turns: dict[Row, list[dict[str, float]]] = {row: [] for row in ROWS}
    with PrivateServer() as server:
        for number in range(given.rounds):
            for row in ROWS if number % 2 == 0 else reversed(ROWS):
                tasks = min(given.tasks, _MOST_BYTES // row.size) if row.place == "server" else given.tasks
                with tempfile.TemporaryDirectory() as folder:
                    turns[row].append(measure(server, row, Path(folder), tasks))
                print(f"round {number + 1}: {row.name}", file=sys.stderr)
    if given.json:
        write_json(given.json, {row.name: found for row, found in turns.items()})
    found = {row: {one: median(turn[one] for turn in some) for one in _MEASURES} for row, some in turns.items()}

    def cell(row: Row, one: str) -> str:
        mine, least, by_hand = found[row][one], found[ROWS[0]][one], found[Row(row.size, "by hand")][one]
        return f"{mine:,.0f} ({mine / least:.2f}; {mine / by_hand:.2f})"

    print(Table(("payload", *_MEASURES), [(row.name, *(cell(row, one) for one in _MEASURES)) for row in ROWS]).text())
    print(f"medians of {given.rounds} rounds; in brackets: ÷ 10 B, server; ÷ by hand; load before: {load:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
