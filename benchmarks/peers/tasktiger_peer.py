"""TaskTiger: one worker process that runs tasks one after another. Acknowledged after the run.

Tried: its default executor, which forks a process for each task, and `sync`, which was six times as fast and is
taken. Its batch queues hand many tasks to one call of a function, which is another thing than running each. It has no
bulk call.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.tasktiger_app"
OPTIONS = "work --queues bench --executor sync"


def tasktiger(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "tasktiger")
    app = [str(folder / "python"), "-m", APP]
    return Contender(
        name="tasktiger",
        produce=app,
        work=lambda _task, count: [[*app, *OPTIONS.split()]] * count,
        left=_left,
        share=0.02,
        imports="from tasktiger import TaskTiger",
        about=version(folder, "tasktiger"),
        cannot={"waits": "a worker runs one task at a time"},
    )


def _left(server: PrivateServer) -> int:
    return sum(int(server.redis.zcard(f"t:{state}:bench")) for state in ("queued", "active", "scheduled", "error"))
