"""taskiq on a Redis stream: acknowledged after the run, on uvloop.

Its best of what was tried: a coroutine as the task (a plain function costs it a thread switch), twenty at
once, fifty for the waits, a deep prefetch, a thousand entries in each read, no parsing of parameters, quiet logs.
It has no bulk call: fifty calls at once.
"""

from functools import partial
from pathlib import Path
from typing import Any

from redis import ResponseError

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import concurrency

APP = "benchmarks.peers.taskiq_app"
OPTIONS = "--ack-type when_executed --no-parse --log-level WARNING"


def taskiq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "taskiq")
    return Contender(
        name="taskiq",
        produce=[str(folder / "python"), "-m", APP],
        work=partial(_work, str(folder / "taskiq")),
        left=_left,
        share=0.1,
        imports="from taskiq_redis import RedisStreamBroker",
        coroutines=True,
        about=version(folder, "taskiq-redis"),
    )


def _work(program: str, task: str, count: int) -> list[list[str]]:
    numbers = ["--workers", str(count), "--max-async-tasks", str(concurrency(task, 20))]
    numbers += ["--max-prefetch", str(concurrency(task, 1_000))]
    return [[program, "worker", f"{APP}:broker", *numbers, *OPTIONS.split()]]


def _left(server: PrivateServer) -> int:
    # The stream keeps acknowledged entries; its group knows how many were not delivered and not acknowledged.
    redis: Any = server.redis
    try:
        groups = redis.xinfo_groups("bench")
    except ResponseError:
        return 0
    if not groups:
        return int(redis.xlen("bench"))
    return int((groups[0]["lag"] or 0) + groups[0]["pending"])
