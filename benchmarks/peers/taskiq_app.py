"""taskiq's side: the tasks and the producer. The harness runs it in taskiq's own environment."""

import asyncio
import os
import time

import uvloop
from taskiq_redis import RedisStreamBroker

from benchmarks.ledger import recorder
from benchmarks.produce import serve_async, so_many_at_once
from benchmarks.waits import WAIT_S, at_once, compute

STREAM = "bench"
AT_ONCE = 50

broker = RedisStreamBroker(os.environ["BENCHMARK_URL"], queue_name=STREAM, consumer_id="0", xread_count=at_once(1_000))
record = recorder()


@broker.task(task_name="noop")
async def noop(n: int) -> None:
    record(n)


@broker.task(task_name="wait")
async def wait(n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


@broker.task(task_name="spin")
async def spin(n: int) -> None:
    compute()
    record(n)


@broker.task(task_name="stamp")
async def stamp(n: int) -> None:
    record(time.time_ns() - n)


TASKS = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}


async def send(task: str, number: int) -> None:
    await TASKS[task].kiq(number)


async def produce() -> None:
    await broker.startup()
    await serve_async(send, so_many_at_once(send, AT_ONCE))
    await broker.shutdown()


if __name__ == "__main__":
    uvloop.run(produce())
