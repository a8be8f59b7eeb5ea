"""Dramatiq on Redis: processes of eight threads, fifty for the waits. Acknowledged after the run.

A deep prefetch gave it up to three quarters more than its default of twice the threads. Other numbers of
threads and leaving out its default middleware gave nothing that stood out of the noise. It has no bulk call.
"""

from functools import partial
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import concurrency

APP = "benchmarks.peers.dramatiq_app"


def dramatiq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "dramatiq")
    return Contender(
        name="dramatiq",
        produce=[str(folder / "python"), "-m", APP],
        work=partial(_work, str(folder / "dramatiq")),
        left=_left,
        share=0.1,
        imports="import dramatiq, dramatiq.brokers.redis",
        about=version(folder, "dramatiq"),
    )


def _work(program: str, task: str, count: int) -> list[list[str]]:
    prefetch = f"dramatiq_queue_prefetch={concurrency(task, 1_000)}"
    return [["env", prefetch, program, APP, "--processes", str(count), "--threads", str(concurrency(task, 8))]]


def _left(server: PrivateServer) -> int:
    # The record of a message is deleted when it is acknowledged; a dead message moves to the XQ hash.
    return sum(int(server.redis.hlen(f"dramatiq:bench{part}.msgs")) for part in ("", ".DQ", ".XQ"))
