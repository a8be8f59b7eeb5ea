"""Celery on Redis: the solo pool, acknowledged after the run, without results, gossip, mingling and heartbeats.

Tried: solo, threads and prefork; early and late acknowledgement, which made no difference, so it is the late one; a
prefetch of 4 and of 100, no difference either. Prefork took half as much again of CPU time, threads a quarter. The
waits are in fifty threads. Its bulk way is calls on one producer, which is what a group does.
"""

from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.peers.venvs import environment, version
from benchmarks.server import PrivateServer
from benchmarks.waits import AT_ONCE

APP = "benchmarks.peers.celery_app"
OPTIONS = "--without-gossip --without-mingle --without-heartbeat --loglevel WARNING"


def celery(venvs: Path) -> Contender:
    """The contender, installed below `venvs` if it is not there yet."""
    folder = environment(venvs, "celery")
    program = [str(folder / "celery"), "-A", APP, "worker", *OPTIONS.split()]
    return Contender(
        name="celery",
        produce=[str(folder / "python"), "-m", APP],
        work=lambda task, count: [[*program, *_pool(task), "-n", f"bench{n}@%h"] for n in range(count)],
        left=_left,
        share=0.03,
        imports="from celery import Celery; Celery",
        about=version(folder, "celery"),
    )


def _pool(task: str) -> list[str]:
    return ["--pool", "threads", "--concurrency", str(AT_ONCE)] if task == "wait" else ["--pool", "solo"]


def _left(server: PrivateServer) -> int:
    # Messages that wait, and those that were handed out and not acknowledged.
    return int(server.redis.llen("bench") + server.redis.hlen("unacked"))
