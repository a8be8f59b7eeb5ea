"""Docket's side: the worker with its tasks, and the producer. The harness runs it in Docket's own environment."""

import os
import sys
from collections.abc import Sequence
from datetime import timedelta

import uvloop
from docket import Docket, Worker

from benchmarks.peers.coroutines import COROUTINES
from benchmarks.produce import serve_async
from benchmarks.waits import at_once

AT_ONCE = 100
CHECK = timedelta(milliseconds=10)


def docket() -> Docket:
    """Without records of finished tasks, as its documentation advises for the highest throughput."""
    url = f"{os.environ['BENCHMARK_URL']}?max_connections={2 * AT_ONCE}"
    made = Docket(name="bench", url=url, execution_ttl=timedelta(0))
    for task in COROUTINES.values():
        made.register(task)
    return made


async def work() -> None:
    async with docket() as server, Worker(server, concurrency=at_once(AT_ONCE), minimum_check_interval=CHECK) as worker:
        await worker.run_forever()


async def produce() -> None:
    async with docket() as server:

        async def send(task: str, number: int) -> None:
            await server.add(COROUTINES[task])(number)

        async def send_many(task: str, numbers: Sequence[int]) -> None:
            await server.add_many(server.call(COROUTINES[task])(number) for number in numbers)

        await serve_async(send, send_many)


if __name__ == "__main__":
    uvloop.run(work() if sys.argv[1:] == ["work"] else produce())
