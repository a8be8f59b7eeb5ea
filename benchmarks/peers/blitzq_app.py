"""BlitzQ's side: the queue with its tasks, and the producer. The harness runs it in BlitzQ's own environment."""

import asyncio
import os
from collections.abc import Sequence

import uvloop
from blitzq import Queue

from benchmarks.peers.coroutines import COROUTINES
from benchmarks.produce import serve_async

BULK = 500

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the command `blitzq` takes the loop that is set
queue = Queue("bench", redis_url=os.environ["BENCHMARK_URL"], store_results=False)
TASKS = {name: queue.task(name=name)(task) for name, task in COROUTINES.items()}


async def send(task: str, number: int) -> None:
    await TASKS[task].enqueue(number)


async def send_many(task: str, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), BULK):
        await TASKS[task].enqueue_many([(number,) for number in numbers[start : start + BULK]])


if __name__ == "__main__":
    asyncio.run(serve_async(send, send_many))
