"""arq, on uvloop: a task stays in the queue until it has run; no results, no lines in the log for each task.

Tried: 10, 50 and 200 at once, looks at the queue every 0.5 s (its default) and every 0.01 s. Neither mattered to the
drain beyond 10, so it is fifty. Between two looks a task waits: a look every 0.05 s starts it ten times as soon as the
default does, at twenty commands a second. uvloop took a twelfth off its CPU time. It has no bulk call: fifty calls at
once.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.arq_app"


def arq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "arq")
    return Contender(
        name="arq",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda _task, count: [[str(folder / "arq"), f"{APP}.WorkerSettings"]] * count,
        left=_left,
        share=0.03,
        imports="from arq import create_pool",
        coroutines=True,
        about=version(folder, "arq"),
    )


def _left(server: PrivateServer) -> int:
    # A task stays in the queue until it has run.
    return int(server.redis.zcard("arq:queue"))
