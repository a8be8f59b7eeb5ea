"""jobrunner's producer; its worker is work.py.

In BENCHMARK_WAIT, `threads`: the waits are plain functions. In BENCHMARK_CLIENT, `asyncio`: the client of asyncio
sends the tasks.
"""

import os
from collections.abc import Sequence

from benchmarks import noop_jobs
from benchmarks.produce import serve, serve_async
from jobrunner import Job

JOBS: dict[str, type[Job]] = {
    "noop": noop_jobs.Noop,
    "wait": noop_jobs.WaitInThread if os.environ.get("BENCHMARK_WAIT") == "threads" else noop_jobs.Wait,
    "spin": noop_jobs.Spin,
    "stamp": noop_jobs.Stamp,
}


def send(task: str, number: int) -> None:
    JOBS[task](n=number).enqueue()


def send_many(task: str, numbers: Sequence[int]) -> None:
    kind = JOBS[task]
    kind.enqueue_many([kind(n=number) for number in numbers])


async def send_async(task: str, number: int) -> None:
    await JOBS[task](n=number).aenqueue()


async def send_many_async(task: str, numbers: Sequence[int]) -> None:
    kind = JOBS[task]
    await kind.aenqueue_many([kind(n=number) for number in numbers])


if __name__ == "__main__":
    if os.environ.get("BENCHMARK_CLIENT") == "asyncio":
        import uvloop  # as the peers of asyncio have it

        uvloop.run(serve_async(send_async, send_many_async))
    else:
        serve(send, send_many)
