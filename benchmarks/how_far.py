"""What one server carries: the figures that docs/how-far.md computes with.

    python -m benchmarks.how_far --tasks 200000

One private server and one process: processor time of the server for an enqueue (one by one, in bulk) and for a drain,
memory and append-only file for a scheduled task, and how fast due tasks are promoted. Payloads have some ten bytes.
"""

import argparse
import logging
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import structlog

from benchmarks.server import PrivateServer
from jobrunner import Client, Item, Worker, job
from jobrunner.broker.calls import queues
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.current import within

_BATCH = 1000
_SOON_S = 30.0


@job(queue="far", name="benchmark_far")
def noop(n: int) -> None:
    """Does nothing."""


def _told(what: str, value: float, unit: str, beside: str = "") -> None:
    print(f"{what:42} {value:10,.1f} {unit:10} {beside}", flush=True)


def _server_us(server: PrivateServer, work: Callable[[], object], tasks: int) -> tuple[float, float]:
    """Server's processor time for each task in µs, and tasks a second."""
    before, began = server.usage().cpu_us, time.perf_counter()
    work()
    return (server.usage().cpu_us - before) / tasks, tasks / (time.perf_counter() - began)


def _singly(tasks: int) -> None:
    for number in range(tasks):
        noop.enqueue(number)


def _in_bulk(tasks: int) -> None:
    for first in range(0, tasks, _BATCH):
        noop.enqueue_many([noop.bind(number) for number in range(first, min(first + _BATCH, tasks))])


def measure_rates(server: PrivateServer, client: Client, tasks: int, rounds: int) -> None:
    """Enqueues and drains, in turns; medians."""
    single, bulk, drain = [], [], []
    for _ in range(rounds):
        some = tasks // 10
        single.append(_server_us(server, partial(_singly, some), some))
        bulk.append(_server_us(server, partial(_in_bulk, tasks), tasks))
        worker = Worker(queues=["far"], client=client, concurrency=10)
        drain.append(_server_us(server, partial(worker.run, burst=True), tasks + some))
    for what, found in (("enqueue one by one", single), ("enqueue in bulk", bulk), ("reserve and commit", drain)):
        us = median(one for one, _ in found)
        rate = median(two for _, two in found)
        _told(f"{what}: server", us, "µs/task", f"a busy server: {1e6 / us:,.0f} tasks/s; seen {rate:,.0f}")


def measure_scheduled(server: PrivateServer, client: Client, tasks: int) -> None:
    """Memory and file for a scheduled task, and the promotion of due ones."""
    server.clear()
    queue, broker = client.queue("later"), broker_of(client)
    queue.push(0)
    queue.purge("waiting")
    before, file = server.redis.info("memory")["used_memory"], server.redis.info("persistence")["aof_current_size"]
    due = time.time() + _SOON_S
    pushed = time.time()
    for first in range(0, tasks, _BATCH):
        queue.push_many([Item(number, at=due) for number in range(first, first + _BATCH)])
    held = server.redis.info("memory")["used_memory"] - before
    _told("a scheduled task: memory", held / tasks, "bytes", f"{tasks:,} of them in {time.time() - pushed:.1f} s")
    written = server.redis.info("persistence")["aof_current_size"] - file
    _told("a scheduled task: append-only file", written / tasks, "bytes")
    time.sleep(max(due - time.time(), 0.0) + 0.1)
    call = queues.upkeep(keys_of(client).queue("later"))
    moved, cpu, began = 0, server.usage().cpu_us, time.perf_counter()
    while done := sum(one.moved for one in broker.run_many([call] * 10)):
        moved += done
    spent = time.perf_counter() - began
    _told("promotion of a due task: server", (server.usage().cpu_us - cpu) / max(moved, 1), "µs/task",
          f"{moved / spent:,.0f} tasks/s of {moved:,}")  # fmt: skip


def main() -> None:
    """Runs all measures."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--tasks", type=int, default=200_000)
    asked.add_argument("--rounds", type=int, default=3)
    given = asked.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    with PrivateServer() as server, Client(server.url, "bench") as client, within(client):
        measure_rates(server, client, given.tasks // 4, given.rounds)
        measure_scheduled(server, client, given.tasks)


if __name__ == "__main__":
    main()
