"""ArdiQ, whose worker loop is Rust, on a Redis stream: acknowledged after the run, on uvloop, without results.

Tried: 16 at once (its default), 100, 500 and 1 000, with a prefetch of twice as many (its default) and of 1 000. With
16 it took two thirds longer than with 500; beyond, nothing stood out of the noise. So it is 500, fifty for the waits.
Its bulk call gets a thousand tasks at a time.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.ardiq_app"


def ardiq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "ardiq")
    return Contender(
        name="ardiq",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda _task, count: [[str(folder / "ardiq"), "run", f"{APP}:app", "--quiet"]] * count,
        left=_left,
        share=0.2,
        imports="from ardiq import Ardiq",
        coroutines=True,
        about=version(folder, "ardiq"),
    )


def _left(server: PrivateServer) -> int:
    # A finished task's entry is deleted from the stream.
    return int(server.redis.xlen("ardiq:bench:queues:default"))
