"""Docket on a Redis stream: acknowledged after the run, on uvloop, without records of finished tasks.

Tried: 10, 50, 100, 500 and 1 000 at once, a look at its free slots every 1, 10 and 50 ms: no difference that stood out
of the noise, but for 10 at once and 50 ms, which took four times as long: a worker whose slots are all taken sleeps
between two looks, by default for 250 ms. So it is a hundred at once, fifty for the waits, and 10 ms. Its pool needs
more connections than slots: with redis-py's default of 100, tasks that get none raise MaxConnectionsError and stay
pending for five minutes. Its bulk call sends a thousand tasks at a time.
"""

from pathlib import Path
from typing import Any

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.docket_app"


def docket(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "docket")
    app = [str(folder / "python"), "-m", APP]
    return Contender(
        name="docket",
        produce=app,
        work=lambda _task, count: [[*app, "work"]] * count,
        left=_left,
        share=0.03,
        imports="from docket import Docket",
        coroutines=True,
        about=version(folder, "pydocket"),
    )


def _left(server: PrivateServer) -> int:
    # A finished task's entry is deleted from the stream; the sorted set has those that are due later.
    redis: Any = server.redis
    return int(redis.xlen("bench:stream") + redis.zcard("bench:queue"))
