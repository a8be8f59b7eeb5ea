"""The contenders other than the peers: jobrunner, the prototype loop of yardstick.py, the bare pop and spin."""

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks.contender import Contender
from benchmarks.measures import OUR_ASYNCIO, OUR_THREADS, OURS
from benchmarks.server import PrivateServer
from benchmarks.waits import concurrency
from benchmarks.yardstick import URL, bare_left

QUEUE = "bench"
"""Where jobrunner's tasks are."""


def jobrunner(python: str = sys.executable) -> Contender:
    """A worker process of ten threads and a loop for coroutines, which is what the waits are. `python` is the
    interpreter of its processes.

    What computes is in one worker with `executor="processes"`, of as many slots as there may be processes. Tried: that;
    as many workers of one thread, and of two threads; as many workers of one slot each. All others took more
    CPU time for a task: 2 to 16 % with 500 to 2 000 tasks, the less the more there were, as two workers start twice.
    """
    return Contender(
        name=OURS,
        produce=_app(python),
        work=partial(_work, python),
        left=_left,
        environment=jobrunner_environment,
        imports="from jobrunner import Client, Job, job",
    )


def jobrunner_threads(python: str = sys.executable) -> Contender:
    """The waits in threads."""
    return Contender(
        name=OUR_THREADS,
        produce=_app(python),
        work=partial(_work, python),
        left=_left,
        environment=lambda server: {**jobrunner_environment(server), "BENCHMARK_WAIT": "threads"},
        only=("waits",),
    )


def jobrunner_asyncio() -> Contender:
    """Its client of asyncio, which enqueues alone; the worker is the same."""
    return Contender(
        name=OUR_ASYNCIO,
        produce=_app(sys.executable),
        work=partial(_work, sys.executable),
        left=_left,
        environment=lambda server: {**jobrunner_environment(server), "BENCHMARK_CLIENT": "asyncio"},
        only=("enqueue", "wide"),
        coroutines=True,
    )


def prototype() -> Contender:
    """The featureless loop."""
    return Contender(
        name="prototype loop",
        produce=[sys.executable, "-m", "benchmarks.yardstick"],
        work=lambda _task, count: [[sys.executable, "-m", "benchmarks.yardstick", "work"]] * count,
        left=lambda server: bare_left(server.redis),
        environment=lambda server: {URL: server.url},
        only=("drain", "drain2"),
    )


def bare_pop() -> Contender:
    """A blocking pop."""
    app = [sys.executable, "-m", "benchmarks.bare_pop"]
    return Contender(
        name="bare blocking pop",
        produce=app,
        work=lambda _task, _count: [[*app, "pop"]],
        left=lambda server: int(server.redis.llen("bare:list")),
        only=("latency", "open1", "open5"),
    )


def bare_spin() -> Contender:
    """Processes that compute."""
    app = [sys.executable, "-m", "benchmarks.bare_spin"]
    return Contender(
        name="bare processes",
        produce=app,
        work=lambda _task, count: [[*app, "work", str(count)]],
        left=lambda server: int(server.redis.get("bare:spins") or 0),
        only=("cpu",),
    )


def jobrunner_environment(server: PrivateServer) -> dict[str, str]:
    """The environment that makes a process of jobrunner use that server."""
    return {"JOBRUNNER_URL": server.url, URL: server.url}


def jobrunner_left(url: str) -> int:
    """Tasks of jobrunner on that server that are waiting, scheduled, pending or dead."""
    from jobrunner import Client  # the harness also runs without it, for peers and yardsticks alone

    with Client(url=url) as client:
        counts = client.queue(QUEUE).counts()
    return sum(counts[state] for state in ("waiting", "scheduled", "pending", "dead"))


def _left(server: PrivateServer) -> int:
    return jobrunner_left(server.url)


def _app(python: str) -> list[str]:
    return [python, "-m", "benchmarks.jobrunner_app"]


def _work(python: str, task: str, count: int) -> Sequence[Sequence[str]]:
    program = [python, "-m", "benchmarks.work"]
    if task == "spin":
        return [[*program, str(count), "processes"]]
    return [[*program, str(concurrency(task, 10)), "threads"]] * count
