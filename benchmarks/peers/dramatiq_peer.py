"""Dramatiq on Redis: one process of eight threads.

A deep prefetch gave it up to three quarters more than its default of twice the threads. Other numbers of
threads and leaving out its default middleware gave nothing that stood out of the noise.
"""

from pathlib import Path

from benchmarks.drain import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer

REQUIREMENTS = ("dramatiq[redis]>=2.0,<3", "hiredis>=3")
APP = "benchmarks.peers.dramatiq_app"


def dramatiq(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "dramatiq", REQUIREMENTS)
    return Contender(
        name="dramatiq",
        fill=[str(folder / "python"), "-m", APP],
        work=[str(folder / "dramatiq"), APP, "--processes", "1", "--threads", "8"],
        left=_left,
        environment=lambda server: {"BENCHMARK_URL": server.url, "dramatiq_queue_prefetch": "1000"},
        share=0.1,
        about=version(folder, "dramatiq"),
    )


def _left(server: PrivateServer) -> int:
    # A message's record goes when it is acknowledged; one that is given up moves to the XQ hash.
    return sum(int(server.redis.hlen(f"dramatiq:bench{part}.msgs")) for part in ("", ".DQ", ".XQ"))
