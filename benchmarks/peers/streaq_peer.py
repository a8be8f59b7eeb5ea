"""streaq on a Redis stream: acknowledged after the run, on uvloop, without results.

Tried: 16, 50 and 100 at once, with and without a prefetch of 1 000: no difference, so it is the default of 16, and
fifty for the waits. Its bulk call gets a thousand tasks at a time.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.streaq_app"


def streaq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "streaq")
    return Contender(
        name="streaq",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda _task, count: [[str(folder / "streaq"), "run", f"{APP}:worker"]] * count,
        left=_left,
        share=0.03,
        imports="from streaq import Worker",
        coroutines=True,
        about=version(folder, "streaq"),
    )


def _left(server: PrivateServer) -> int:
    # A finished task's entry is deleted from the stream.
    queues = "streaq:bench:queues"
    return int(server.redis.xlen(f"{queues}:normal") + server.redis.zcard(f"{queues}:delayed:normal"))
