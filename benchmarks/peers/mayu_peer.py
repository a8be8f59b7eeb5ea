"""mayu, whose worker loop is Rust, on a Redis stream: acknowledged after the run, without results.

Tried: processes, which run one task at a time, and 8 and 64 threads of one process; a prefetch of 2 (its default), 100,
500 and 1 000 a process. Two prefetched took five times as long as 500; beyond 100, modes and numbers did not stand out
of the noise. So it is a process with 500, with two for tasks that compute, and fifty threads for the waits. Threads
that run Python in parallel need a Python without its lock, which the other contenders do not have either. It has no
bulk call: one by one.
"""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import AT_ONCE, concurrency

APP = "benchmarks.peers.mayu_app"


def mayu(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "mayu")
    return Contender(
        name="mayu",
        produce=[str(folder / "python"), "-m", APP],
        work=partial(_work, str(folder / "mayu")),
        left=_left,
        share=0.5,
        imports="from mayu import App",
        about=version(folder, "mayu"),
    )


def _work(program: str, task: str, count: int) -> list[list[str]]:
    if task == "wait":
        mode = ["thread", "--threads", str(AT_ONCE), "--prefetch-multiplier", "1"]
    else:
        mode = ["process", "--prefetch-multiplier", str(concurrency(task, 500))]
    return [[program, "worker", f"{APP}:app", "--log-level", "ERROR", "--processes", str(count), "--mode", *mode]]


def _left(server: PrivateServer) -> int:
    # A finished task's entry is deleted from the stream; dead tasks move to a stream of their own.
    redis: Any = server.redis
    key = "mayu:{bench}"
    return int(redis.xlen(f"{key}:stream") + redis.zcard(f"{key}:delayed") + redis.xlen(f"{key}:dead"))
