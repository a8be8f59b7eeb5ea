"""Jobs that run in children of a process slot."""

import asyncio
import os
import subprocess
import time

from jobrunner import job


@job(name="child.pid", max_attempts=1)
def pid() -> int:
    """The process that runs it."""
    return os.getpid()


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
