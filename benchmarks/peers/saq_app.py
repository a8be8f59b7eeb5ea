"""SAQ's side: the coroutines, the worker's settings and the producer. The harness runs it in SAQ's own environment."""

import asyncio
import os
import time
from typing import Any

import uvloop
from saq import Queue

from benchmarks.ledger import recorder
from benchmarks.produce import serve_async, so_many_at_once
from benchmarks.waits import WAIT_S, at_once, compute

AT_ONCE = 50

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the command `saq` takes the loop that is set
record = recorder()
queue = Queue.from_url(os.environ["BENCHMARK_URL"], name="bench")


async def noop(_context: dict[str, Any], *, n: int) -> None:
    record(n)


async def wait(_context: dict[str, Any], *, n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


async def spin(_context: dict[str, Any], *, n: int) -> None:
    compute()
    record(n)


async def stamp(_context: dict[str, Any], *, n: int) -> None:
    record(time.time_ns() - n)


settings = {
    "queue": queue,
    "functions": [noop, wait, spin, stamp],
    "concurrency": at_once(20),
}


async def send(task: str, number: int) -> None:
    await queue.enqueue(task, n=number, ttl=-1)


async def produce() -> None:
    await queue.connect()
    await serve_async(send, so_many_at_once(send, AT_ONCE))
    await queue.disconnect()


if __name__ == "__main__":
    asyncio.run(produce())
