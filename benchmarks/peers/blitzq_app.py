"""BlitzQ's side: the queue with its tasks, and the producer. The harness runs it in BlitzQ's own environment."""

import asyncio
import os
import time
from collections.abc import Sequence

import uvloop
from blitzq import Queue

from benchmarks.ledger import recorder
from benchmarks.produce import serve_async
from benchmarks.waits import WAIT_S, compute

BULK = 500

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the command `blitzq` takes the loop that is set
record = recorder()
queue = Queue("bench", redis_url=os.environ["BENCHMARK_URL"], store_results=False)


@queue.task(name="noop")
async def noop(n: int) -> None:
    record(n)


@queue.task(name="wait")
async def wait(n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


@queue.task(name="spin")
async def spin(n: int) -> None:
    compute()
    record(n)


@queue.task(name="stamp")
async def stamp(n: int) -> None:
    record(time.time_ns() - n)


TASKS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


async def send(task: str, number: int) -> None:
    await TASKS[task].enqueue(number)


async def send_many(task: str, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), BULK):
        await TASKS[task].enqueue_many([(number,) for number in numbers[start : start + BULK]])


if __name__ == "__main__":
    asyncio.run(serve_async(send, send_many))
