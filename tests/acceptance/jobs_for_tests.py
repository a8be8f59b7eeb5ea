"""The jobs that worker processes run in tests. All leave their traces in the ledger."""

import asyncio
import ctypes
import os
import signal
import time
from typing import Any

from jobrunner import Backoff, Job, job
from tests.acceptance.ledger import record

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)


class Traced(Job):
    """A job that notes its start and its end."""

    def run(self) -> Any:
        """The traced run."""
        record("start", self.task.id, self.task.attempt)
        result = self.act()
        record("end", self.task.id, self.task.attempt)
        return result

    def act(self) -> Any:
        """The work between start and end."""


@job(queue="t", name="Work", keepalive=2, backoff=AT_ONCE)
class Work(Traced):
    """Sleeps."""

    n: int = 0
    seconds: float = 0.0

    def act(self) -> int:
        time.sleep(self.seconds)
        return self.n


@job(queue="t", name="Tireless", keepalive=2, backoff=AT_ONCE, max_attempts=10)
class Tireless(Work):
    """Has attempts for more kills than one task meets in a row."""


@job(queue="t", name="Once", keepalive=2, max_attempts=1)
class Once(Work):
    """Is tried once."""


@job(queue="t", name="Hold", keepalive=2, backoff=AT_ONCE)
class Hold(Traced):
    """Runs until a file appears."""

    path: str

    def act(self) -> Any:
        while not os.path.exists(self.path):  # noqa: PTH110
            time.sleep(0.01)


@job(queue="t", name="HoldLong", keepalive=8)
class HoldLong(Hold):
    """The same under a lease long enough for a process to start meanwhile, on a busy machine too."""


@job(queue="t", name="HoldInterpreter", keepalive=1)
class HoldInterpreter(Traced):
    """Keeps the interpreter lock in one C call: no thread of the process runs meanwhile."""

    seconds: float

    def act(self) -> str:
        ctypes.PyDLL(None).usleep(int(self.seconds * 1e6))
        return "held"


@job(queue="t", name="BlockLoop", keepalive=1)
class BlockLoop(Job):
    """Blocks the event loop."""

    seconds: float

    async def run(self) -> str:
        record("start", self.task.id, self.task.attempt)
        time.sleep(self.seconds)
        record("end", self.task.id, self.task.attempt)
        return "blocked"


@job(queue="t", name="HoldFirst", keepalive=1, backoff=AT_ONCE)
class HoldFirst(Hold):
    """The first attempt runs until a file appears, the others end at once; the result says which it was."""

    def act(self) -> int:
        if self.task.attempt == 1:
            super().act()
        return self.task.attempt


@job(queue="t", name="Slow", keepalive=1, backoff=AT_ONCE)
class Slow(Traced):
    """The first attempt takes long, the others do not; the result says which it was."""

    seconds: float

    def act(self) -> int:
        if self.task.attempt == 1:
            time.sleep(self.seconds)
        return self.task.attempt


@job(queue="t", name="Crash", max_attempts=2, keepalive=1, backoff=AT_ONCE)
class Crash(Traced):
    """Ends the process that runs it."""

    how: str

    def act(self) -> None:
        if self.how == "exit":
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSEGV)


@job(queue="t", name="Linger", timeout=0.3, max_attempts=1)
class Linger(Traced):
    """Runs longer than it may, in a way that only the end of its process stops."""

    def act(self) -> None:
        ctypes.PyDLL(None).usleep(60_000_000)


@job(queue="t", name="Early", ack="early", keepalive=1)
class Early(Traced):
    """At most once."""

    seconds: float = 0.0

    def act(self) -> None:
        time.sleep(self.seconds)


@job(queue="t", name="UntilCancelled", keepalive=0.6)
class UntilCancelled(Traced):
    """Runs until it is asked to stop."""

    def act(self) -> str:
        while not self.cancelled:
            time.sleep(0.01)
        return "stopped"


@job(queue="t", name="Twice", backoff=AT_ONCE)
class Twice(Traced):
    """Fails twice, then succeeds; says what it saw."""

    def act(self) -> int:
        record("saw", self.task.id, self.task.attempt, note=self.task.retry_count)
        if self.task.retry_count < 2:
            raise ValueError("not yet")
        return self.task.retry_count


@job(queue="t", name="Always", max_attempts=3, backoff=AT_ONCE)
class Always(Traced):
    """Fails."""

    def act(self) -> None:
        raise ValueError("never")


@job(queue="t", name="Nap", keepalive=5)
async def nap(seconds: float) -> float:
    """Sleeps without blocking."""
    record("nap")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        record("cancelled")
        raise
    return seconds
