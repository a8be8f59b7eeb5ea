"""Who drains, beside the peers: jobrunner, and the prototype loop of yardstick.py."""

import sys

from benchmarks.drain import Contender
from benchmarks.server import PrivateServer
from benchmarks.yardstick import URL, bare_left

WORK = [sys.executable, "-m", "benchmarks.work"]


def jobrunner() -> Contender:
    """One worker process of ten threads. It works on until it is told to stop, like every other contender."""
    return Contender(
        name="jobrunner",
        fill=[sys.executable, "-m", "benchmarks.enqueue", "fill"],
        work=WORK,
        left=lambda server: jobrunner_left(server.url),
        environment=jobrunner_environment,
    )


def prototype() -> Contender:
    """The featureless loop."""
    return Contender(
        name="prototype loop",
        fill=[sys.executable, "-m", "benchmarks.yardstick", "fill"],
        work=[sys.executable, "-m", "benchmarks.yardstick", "work"],
        left=lambda server: bare_left(server.redis),
        environment=lambda server: {URL: server.url},
    )


def jobrunner_environment(server: PrivateServer) -> dict[str, str]:
    """What makes a process of jobrunner use that server."""
    return {"JOBRUNNER_URL": server.url, URL: server.url}


def jobrunner_left(url: str) -> int:
    """Tasks of jobrunner on that server that are waiting, scheduled, pending or dead."""
    from jobrunner import Client  # the harness also runs without it, for peers and yardsticks alone

    with Client(url=url) as client:
        counts = client.queue("bench").counts()
    return sum(counts[state] for state in ("waiting", "scheduled", "pending", "dead"))
