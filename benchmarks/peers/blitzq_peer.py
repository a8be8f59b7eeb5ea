"""BlitzQ in its reliable mode: a Redis stream, acknowledged after the run, on uvloop, without results.

Tried: 100 (its default), 500 and 1 000 at once, with reads of as many, and reads of 50. Five hundred were up to half as
fast again as a hundred, so they are taken; fifty for the waits. Its bulk call gets 500 tasks at a time, as its
documentation advises. Its mode without acknowledgements is not measured.
"""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import concurrency

APP = "benchmarks.peers.blitzq_app"
OPTIONS = "--log-level WARNING"


def blitzq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "blitzq")
    return Contender(
        name="blitzq",
        produce=[str(folder / "python"), "-m", APP],
        work=partial(_work, str(folder / "blitzq")),
        left=_left,
        share=0.3,
        imports="from blitzq import Queue",
        coroutines=True,
        about=version(folder, "blitzq"),
    )


def _work(program: str, task: str, count: int) -> list[list[str]]:
    slots = str(concurrency(task, 500))
    numbers = ["--concurrency", slots, "--batch-size", slots]
    return [[program, "worker", f"{APP}:queue", *numbers, *OPTIONS.split()]] * count


def _left(server: PrivateServer) -> int:
    # A finished task's entry is deleted from the stream; a task that failed for good is in the hash of dead letters.
    redis: Any = server.redis
    return int(redis.xlen("blitzq:s:bench") + redis.zcard("blitzq:sched") + redis.hlen("blitzq:dlq"))
