"""ArdiQ's side: the app with its tasks, and the producer. The harness runs it in ArdiQ's own environment."""

import asyncio
import os
from collections.abc import Sequence

import uvloop
from ardiq import Ardiq

from benchmarks.peers.coroutines import COROUTINES
from benchmarks.produce import serve_async
from benchmarks.waits import at_once

BULK = 1_000
AT_ONCE = 500

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the command `ardiq` takes the loop that is set
app = Ardiq(
    redis_url=os.environ["BENCHMARK_URL"],
    queue_name="bench",
    concurrency=at_once(AT_ONCE),
    result_ttl_ms=0,
)
TASKS = {name: app.task(name=name)(task) for name, task in COROUTINES.items()}


async def send(task: str, number: int) -> None:
    await TASKS[task].enqueue(number)


async def send_many(task: str, numbers: Sequence[int]) -> None:
    for start in range(0, len(numbers), BULK):
        await app.enqueue_many([TASKS[task].prepare(number) for number in numbers[start : start + BULK]])


if __name__ == "__main__":
    asyncio.run(serve_async(send, send_many))
