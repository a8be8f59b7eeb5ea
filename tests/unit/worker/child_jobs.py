"""Jobs and a station that run in children of a process slot."""

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from jobrunner import job
from jobrunner.attempt import Attempt
from jobrunner.jobs.options import JobOptions
from jobrunner.jobs.registry import StationDefinition, register_station
from jobrunner.jobs.running_task import JobRun
from jobrunner.outcome import Dropped, FannedOut, Moved, Outcome, Succeeded
from jobrunner.worker.run.child import frame, write_outcome


@job(name="child.pid", max_attempts=1)
def pid() -> int:
    """The process that runs it."""
    return os.getpid()


@job(name="child.echo")
def echo(text: str) -> str:
    """Returns its parameter."""
    return text


@job(name="child.sleep")
def sleep() -> None:
    """Takes long."""
    time.sleep(60)


@job(name="child.begin_and_sleep")
def begin_and_sleep(path: str) -> None:
    """Creates a file, then takes long."""
    Path(path).touch()
    time.sleep(60)


@job(name="child.terminate")
def terminate() -> int:
    """Starts a process, ends it with SIGTERM, and returns its exit code."""
    process = subprocess.Popen(["sleep", "60"])
    process.terminate()
    return process.wait(30)


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


def _forked(how: str) -> int:
    """The copy comes back from the job, in one way or another; returns its exit code to the first."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if how == "exits":
        sys.exit(3)
    if how == "fails":
        raise ValueError("in the copy")
    return -1


@job(name="child.forking", max_attempts=1)
def forking(how: str) -> int:
    """Leaves no process behind."""
    return _forked(how)


@job(name="child.forking_async", max_attempts=1)
async def forking_async(how: str) -> int:
    """The same on an event loop."""
    return _forked(how)


@job(name="child.forking_unseen", max_attempts=1)
def forking_unseen() -> int:
    """Forks where Python does not see it, and the copy comes back."""
    pid = ctypes.CDLL(None).fork()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else -1


@job(name="child.impostor", max_attempts=1)
def impostor() -> str:
    """Writes answers of its own to the worker."""
    for number in range(3, 64):
        try:
            channel = socket.socket(fileno=os.dup(number))
        except OSError:
            continue
        if channel.family == socket.AF_UNIX and channel.type == socket.SOCK_STREAM and not channel.getsockname():
            channel.sendall(frame(write_outcome(Succeeded(b'"forged"'), "1")) + frame(b"\xff"))
        channel.close()
    return "own"


@job(name="child.cancelling", max_attempts=1)
async def cancelling() -> None:
    """Cancels what it runs in."""
    for task in asyncio.all_tasks():
        task.cancel()
    await asyncio.sleep(60)


@job(name="child.stopping", max_attempts=1)
async def stopping() -> None:
    """Stops what it runs on."""
    asyncio.get_running_loop().stop()
    await asyncio.sleep(60)


CHILD_STATION = "child/raw"


class Item:
    """Ends as its payload says."""

    def __init__(self, attempt: Attempt, _: JobRun) -> None:
        self._payload = attempt.payload

    def run(self) -> Outcome:
        """Moves on, spreads, or is dropped."""
        if self._payload == b"move":
            return Moved(queue="child/next", payload=b"\xff", encoding="", headers=b"{}", delay_s=1.5, waits=False)
        if self._payload == b"spread":
            return FannedOut(children=(Moved(queue="child/a", payload=b"1"), Moved(queue="child/b", max_hops=3)))
        return Dropped()


register_station(
    CHILD_STATION,
    StationDefinition(
        name=CHILD_STATION, origin="child_jobs:Item", queue=CHILD_STATION, options=JobOptions(), build=Item,
        is_async=False,
    ),
)  # fmt: skip
