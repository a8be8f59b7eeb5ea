"""The cost of a task while queues, payloads, clients or history grow: flat, logarithmic, or worse.

    python -m benchmarks.growth                                  # up to a million waiting; some minutes
    python -m benchmarks.growth --most 10000000 --json growth.json --plot growth.svg

A turn pushes a batch, reserves it and commits it, so the queue keeps its size. The cost of a task is the time of the
server's scripts, by its own count, divided by the tasks of the turns. All sizes of a series share one server and take
turns in rounds, so that other load of the machine affects all of them alike. The table also has the client's time.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import pictures
from benchmarks.growth_points import LARGE_PAYLOAD_BATCH, GrowthPoint, as_json
from benchmarks.results import growth_table, write_json
from benchmarks.server import PrivateServer
from jobrunner import Client
from jobrunner.client.client import keys_of
from jobrunner.client.item import Item
from jobrunner.client.queue import Queue

_TURNS = 16
_FILLED_AT_ONCE = 2_000
_DAY_S = 86_400
_PAYLOAD_LIMIT = 4 * 2**20
"""Bytes of a payload here, at most; the default limit is 1 MiB with its encoding."""
_LEAST_S = 0.2


def points(client: Client, most: int) -> Iterator[GrowthPoint]:
    """All sizes of all series, filled one after the other. `most`: the largest number of waiting tasks."""
    for size in _powers(1_000, most):
        yield GrowthPoint(series="waiting", size=size, queues=[_filled(client, f"waiting-{size}", size)])
    for size in _powers(1_000, min(most, 1_000_000)):
        queue = _filled(client, f"scheduled-{size}", size, in_=_DAY_S)
        yield GrowthPoint(series="scheduled", size=size, queues=[queue])
    for size in _powers(1, 1_000):
        many = [_filled(client, f"many-{size}-{n}", 100) for n in range(size)]
        yield GrowthPoint(series="queues", size=size, queues=many)
    for size in (10, 100, 1_000, 10_000, 100_000, 1_000_000):
        queue = _filled(client, f"payload-{size}", LARGE_PAYLOAD_BATCH)
        yield GrowthPoint(series="bytes of payload", size=size, queues=[queue], payload=b"x" * size,
                          batch=LARGE_PAYLOAD_BATCH)  # fmt: skip
    for size in (1, 2, 4, 8, 16, 32, 64):
        others = [Client(client.settings.url, keys_of(client).prefix) for _ in range(size)]
        yield GrowthPoint(series="clients at a time", size=size, queues=[_filled(client, f"clients-{size}", 10_000)],
                          clients=others)  # fmt: skip
    for size in (0, 1_000, 10_000, 100_000):
        queue = client.queue(f"history-{size}")
        if size:
            queue.configure(history=_DAY_S, history_max=size)
            for _ in range(size // 1_000):
                queue.push_many([b"x" * 100] * 1_000)
                queue.commit_many(queue.reserve(1_000))
        yield GrowthPoint(series="history kept (0: off)", size=size, queues=[queue])


def _powers(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 10


def _filled(client: Client, name: str, count: int, **options: int) -> Queue:
    queue = client.queue(name)
    for done in range(0, count, _FILLED_AT_ONCE):
        some = min(_FILLED_AT_ONCE, count - done)
        queue.push_many([Item(b"x" * 100, **options)] * some if options else [b"x" * 100] * some)
        if count >= 1_000_000 and done % 100_000 == 0:
            _progress(f"{name}: {done:,} of {count:,}")
    return queue


def measure(server: PrivateServer, point: GrowthPoint) -> None:
    """Takes turns at one size and adds the cost of a task."""
    before, began, tasks = server.usage(), time.perf_counter(), 0
    while time.perf_counter() - began < _LEAST_S:
        tasks += _turns_of_all_clients(point) if point.clients else _turns(point.queues, point, _TURNS)
    used = server.usage() - before
    point.server_us.append(used.script_us / tasks)
    point.wall_us.append((time.perf_counter() - began) / tasks * 1e6)


def _turns(queues: Sequence[Queue], point: GrowthPoint, turns: int) -> int:
    """Returns how many tasks were pushed and committed."""
    gone = 0
    for turn in range(turns):
        queue = queues[turn * 7919 % len(queues)]
        queue.push_many([point.payload] * point.batch)
        gone += sum(queue.commit_many(queue.reserve(point.batch)))
    return gone


def _turns_of_all_clients(point: GrowthPoint) -> int:
    """The same by all clients at a time."""
    gone: list[int] = []
    name = point.queues[0].name
    turns = max(_TURNS // len(point.clients), 1)

    def work(client: Client) -> None:
        gone.append(_turns([client.queue(name)], point, turns))

    threads = [threading.Thread(target=work, args=(client,)) for client in point.clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(gone)


def _progress(line: str) -> None:
    ending = "\r" if sys.stderr.isatty() else "\n"
    print(f"{line:<70}", end=ending, file=sys.stderr, flush=True)


def main() -> int:
    """Prints the table."""
    asked = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=(__doc__ or "").splitlines()[0])
    asked.add_argument("--most", type=int, default=1_000_000, help="tasks that wait (default 1000000)")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--json", type=Path, metavar="FILE")
    asked.add_argument("--plot", type=Path, metavar="FILE", help="a picture of the curves, SVG")
    given = asked.parse_args()
    load = os.getloadavg()[0]
    options = {"retry_timeout": 60, "payload_limit": _PAYLOAD_LIMIT}
    with PrivateServer() as server, Client(server.url, "growth", **options) as client:
        server.redis.config_set("hash-max-listpack-value", 512)  # as the embedded server has it
        made = list(points(client, given.most))
        for turn in range(-1, given.rounds):
            _progress(f"round {turn + 1} of {given.rounds}")
            for point in made[:: 1 if turn % 2 else -1]:
                measure(server, point)
                if turn < 0:  # a round to warm up
                    point.server_us.clear()
                    point.wall_us.clear()
        for point in made:
            _close(point.clients)
    print(growth_table(made, clock=True).text(), f"load before: {load:.1f}", sep="\n")
    if given.json:
        write_json(given.json, [as_json(point) for point in made])
    if given.plot:
        pictures.growth(made, given.plot)
    return 0


def _close(clients: Sequence[Client]) -> None:
    for client in clients:
        client.close()


if __name__ == "__main__":
    sys.exit(main())
