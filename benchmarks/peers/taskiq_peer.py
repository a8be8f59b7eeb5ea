"""taskiq on a Redis stream: acknowledged after the run, one process, on uvloop.

Its best of what was tried: a coroutine as the task (a plain function costs it a thread switch), twenty at
once, a deep prefetch, a thousand entries in each read, no parsing of parameters, quiet logs.
"""

from pathlib import Path
from typing import Any

from redis import ResponseError

from benchmarks.drain import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

REQUIREMENTS = ("taskiq>=0.12", "taskiq-redis>=1.1", "hiredis>=3", "uvloop>=0.20")
APP = "benchmarks.peers.taskiq_app"
OPTIONS = "--workers 1 --max-async-tasks 20 --max-prefetch 1000 --ack-type when_executed --no-parse"


def taskiq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "taskiq", REQUIREMENTS)
    return Contender(
        name="taskiq",
        fill=[str(folder / "python"), "-m", APP],
        work=[str(folder / "taskiq"), "worker", f"{APP}:broker", *OPTIONS.split(), "--log-level", "WARNING"],
        left=_left,
        environment=lambda server: {"BENCHMARK_URL": server.url},
        share=0.1,
        about=version(folder, "taskiq-redis"),
    )


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
