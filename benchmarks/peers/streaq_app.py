"""streaq's side: the worker with its tasks, and the producer. The harness runs it in streaq's own environment."""

import asyncio
import os
import time
from collections.abc import Sequence

import uvloop
from streaq import Worker

from benchmarks.ledger import recorder
from benchmarks.produce import serve_async
from benchmarks.waits import WAIT_S, at_once, compute

BULK = 1_000

record = recorder()
worker = Worker(
    redis_url=os.environ["BENCHMARK_URL"],
    queue_name="bench",
    concurrency=at_once(16),
    anyio_kwargs={"use_uvloop": True},
)


@worker.task(name="noop", ttl=0, silent=True)
async def noop(n: int) -> None:
    record(n)


@worker.task(name="wait", ttl=0, silent=True)
async def wait(n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


@worker.task(name="spin", ttl=0, silent=True)
async def spin(n: int) -> None:
    compute()
    record(n)


@worker.task(name="stamp", ttl=0, silent=True)
async def stamp(n: int) -> None:
    record(time.time_ns() - n)


TASKS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


async def send(task: str, number: int) -> None:
    await TASKS[task].enqueue(number)


async def send_many(task: str, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), BULK):
        await worker.enqueue_many([TASKS[task].enqueue(number) for number in numbers[start : start + BULK]])


async def produce() -> None:
    async with worker:
        await serve_async(send, send_many)


if __name__ == "__main__":
    uvloop.run(produce())
