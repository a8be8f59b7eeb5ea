"""Jobs and a station that run in children of a process slot."""

import asyncio
import os
import subprocess
import time

from jobrunner import job
from jobrunner.attempt import Attempt
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, register_station
from jobrunner.jobs.run import Run
from jobrunner.outcome import Dropped, Moved, Outcome, Spread


@job(name="child.pid", max_attempts=1)
def pid() -> int:
    """The process that runs it."""
    return os.getpid()


@job(name="child.echo")
def echo(text: str) -> str:
    """What it was given."""
    return text


@job(name="child.sleep")
def sleep() -> None:
    """Takes long."""
    time.sleep(60)


@job(name="child.terminate")
def terminate() -> int:
    """Starts a process, ends it with SIGTERM, and says how it ended."""
    process = subprocess.Popen(["sleep", "60"])
    process.terminate()
    return process.wait(10)


@job(name="child.fork_and_die", max_attempts=1)
def fork_and_die() -> None:
    """Leaves a process behind that holds every descriptor, and dies."""
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os._exit(3)


@job(name="child.brief", timeout=0.1, max_attempts=1)
async def brief() -> None:
    """Is cancelled."""
    await asyncio.sleep(60)


CHILD_STATION = "child/raw"


class Item:
    """Ends as its payload says."""

    def __init__(self, attempt: Attempt, _: Run) -> None:
        self._payload = attempt.payload

    def run(self) -> Outcome:
        """Moves on, spreads, or is dropped."""
        if self._payload == b"move":
            return Moved(queue="child/next", payload=b"\xff", encoding="", headers=b"{}", delay_s=1.5, waits=False)
        if self._payload == b"spread":
            return Spread(children=(Moved(queue="child/a", payload=b"1"), Moved(queue="child/b", max_hops=3)))
        return Dropped()


register_station(
    CHILD_STATION,
    StationDefinition(
        name=CHILD_STATION, origin="child_jobs:Item", queue=CHILD_STATION, options=JobOptions(), build=Item,
        is_async=False,
    ),
)  # fmt: skip
