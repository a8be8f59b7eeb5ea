"""taskiq's side: the task and the producer. The harness runs it in taskiq's own environment."""

import asyncio
import os
import sys

from taskiq_redis import RedisStreamBroker

from benchmarks.ledger import recorder

STREAM = "bench"
AT_ONCE = 50

broker = RedisStreamBroker(os.environ["BENCHMARK_URL"], queue_name=STREAM, consumer_id="0", xread_count=1_000)
record = recorder()


@broker.task(task_name="noop")
async def noop(n: int) -> None:
    record(n)


async def fill(tasks: int) -> None:
    await broker.startup()
    for start in range(0, tasks, AT_ONCE):
        await asyncio.gather(*(noop.kiq(n) for n in range(start, min(start + AT_ONCE, tasks))))
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(fill(int(sys.argv[1])))
