"""arq's side: the coroutines, the worker's settings and the producer. The harness runs it in arq's own environment."""

import asyncio
import os
import time
from typing import Any

import uvloop
from arq import create_pool
from arq.connections import RedisSettings

from benchmarks.ledger import recorder
from benchmarks.produce import serve_async, so_many_at_once
from benchmarks.waits import AT_ONCE, WAIT_S, at_once, compute

asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())  # the command `arq` takes the loop that is set
record = recorder()
redis_settings = RedisSettings.from_dsn(os.environ["BENCHMARK_URL"])


async def noop(_context: dict[str, Any], n: int) -> None:
    record(n)


async def wait(_context: dict[str, Any], n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


async def spin(_context: dict[str, Any], n: int) -> None:
    compute()
    record(n)


async def stamp(_context: dict[str, Any], n: int) -> None:
    record(time.time_ns() - n)


class WorkerSettings:
    """The settings of the `arq` worker."""

    functions = (noop, wait, spin, stamp)
    redis_settings = redis_settings
    max_jobs = at_once(AT_ONCE)
    poll_delay = 0.05
    keep_result = 0
    log_results = False


async def produce() -> None:
    pool = await create_pool(redis_settings)

    async def send(task: str, number: int) -> None:
        await pool.enqueue_job(task, number)

    await serve_async(send, so_many_at_once(send, AT_ONCE))
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(produce())
