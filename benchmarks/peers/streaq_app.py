"""streaq's side: the worker with its tasks, and the producer. The harness runs it in streaq's own environment."""

import os
from collections.abc import Sequence

import uvloop
from streaq import Worker

from benchmarks.peers.coroutines import COROUTINES
from benchmarks.produce import serve_async
from benchmarks.waits import at_once

BULK = 1_000

worker = Worker(
    redis_url=os.environ["BENCHMARK_URL"],
    queue_name="bench",
    concurrency=at_once(16),
    anyio_kwargs={"use_uvloop": True},
)
TASKS = {name: worker.task(name=name, ttl=0, silent=True)(task) for name, task in COROUTINES.items()}


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
