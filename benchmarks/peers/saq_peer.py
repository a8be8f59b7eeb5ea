"""SAQ: acknowledged after the run, on uvloop, tasks deleted when they are done.

Tried: ten, twenty, fifty and a hundred at once, of which twenty were its best, and fifty for the waits; uvloop, which
took a twelfth off its CPU time. It has no bulk call: fifty
calls at once.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

APP = "benchmarks.peers.saq_app"


def saq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "saq")
    return Contender(
        name="saq",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda _task, count: [[str(folder / "saq"), f"{APP}.settings"]] * count,
        left=_left,
        share=0.05,
        imports="from saq import Queue",
        coroutines=True,
        about=version(folder, "saq"),
    )


def _left(server: PrivateServer) -> int:
    return int(server.redis.zcard("saq:bench:incomplete"))
