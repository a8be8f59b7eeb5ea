"""Huey on Redis: it takes a task off its list and runs it, so a crash loses what ran. Nothing is acknowledged.

Tried: one, four and eight threads. Four are its best; fifty for the waits. No results, no periodic tasks. It has no
bulk call: its `map` is one call after another too.
"""

from functools import partial
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import concurrency

APP = "benchmarks.peers.huey_app"
OPTIONS = "--worker-type thread --no-periodic --quiet"


def huey(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "huey")
    return Contender(
        name="huey",
        produce=[str(folder / "python"), "-m", APP],
        work=partial(_work, str(folder / "huey_consumer")),
        left=_left,
        share=0.1,
        imports="from huey import RedisHuey",
        about=version(folder, "huey"),
    )


def _work(program: str, task: str, count: int) -> list[list[str]]:
    return [[program, f"{APP}.huey", "--workers", str(concurrency(task, 4)), *OPTIONS.split()]] * count


def _left(server: PrivateServer) -> int:
    return int(server.redis.llen("huey.redis.bench") + server.redis.zcard("huey.schedule.bench"))
