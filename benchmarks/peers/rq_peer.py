"""RQ: one worker process that runs tasks one after another, without results. Acknowledged after the run.

Tried: its default worker, which forks a process for each task, and the one that does not fork, which was eight times
as fast and is taken. Its bulk call gets a thousand tasks at a time.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.rq_app"
OPTIONS = "worker bench --worker-class rq.SimpleWorker --quiet"


def rq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "rq")
    return Contender(
        name="rq",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda _task, count: [[str(folder / "rq"), *OPTIONS.split()]] * count,
        left=_left,
        environment=lambda server: {"BENCHMARK_URL": server.url, "RQ_REDIS_URL": server.url},
        share=0.02,
        imports="from rq import Queue",
        about=version(folder, "rq"),
        cannot={"waits": "a worker runs one task at a time"},
    )


def _left(server: PrivateServer) -> int:
    # Dead tasks are in the failed registry, running ones in the registry of work in progress.
    waiting = server.redis.llen("rq:queue:bench")
    return int(waiting + sum(server.redis.zcard(f"rq:{kind}:bench") for kind in ("wip", "failed")))
