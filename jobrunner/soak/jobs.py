"""The jobs of a soak, which record their starts and ends in the ledger. Workers load this module."""

import os
from datetime import timedelta
from typing import Any

from jobrunner.clock import sleep
from jobrunner.jobs.decorator import job
from jobrunner.jobs.job import Job, PeriodicJob
from jobrunner.jobs.options import Unique
from jobrunner.retry import Backoff
from jobrunner.soak.ledger import KEEP_S, line_of, write

LEDGER = "_JOBRUNNER_SOAK_LEDGER"
"""The variable that names the ledger."""
WORK, DOOMED, LIMITED, SINGLE, TICKS = "work", "doomed", "limited", "single", "ticks"
SERVED = (WORK, DOOMED, LIMITED, SINGLE, TICKS)
HAND = "hand"
IN, OUT = f"{HAND}/in", f"{HAND}/out"
QUEUES = (*SERVED, IN, OUT)
TICK_S = {"SoakTicking": 1, "SoakTocking": 5}
"""Seconds between the ticks of periodic jobs."""
_SOON = Backoff(base=0.2, factor=2, cap=2, jitter=0.1)
_ENDLESS: Any = {"max_attempts": 0, "max_stalled": 0, "result_ttl": KEEP_S, "backoff": _SOON}


def note(event: str, task: str = "-", attempt: int = 0, told: object = "-") -> None:
    """Writes an entry to the ledger that the environment names."""
    write(os.environ[LEDGER], [line_of(event, task, attempt, told)])


class Noted(Job):
    """Sleeps some seconds; the first `fails` attempts fail."""

    seconds: float = 0.0
    fails: int = 0

    def run(self) -> None:
        """Records start, failure and end."""
        task, attempt = self.task.id, self.task.attempt
        note("start", task, attempt)
        if self.seconds:
            sleep(self.seconds)
        if attempt <= self.fails:
            note("fail", task, attempt)
            raise ValueError(f"attempt {attempt} was to fail")
        note("end", task, attempt)


@job(name="SoakShort", queue=WORK, **_ENDLESS)
class Short(Noted):
    """Succeeds in the end."""


@job(name="SoakLimited", queue=LIMITED, **_ENDLESS)
class Limited(Noted):
    """Runs under the limit of its queue."""


@job(name="SoakSingle", queue=SINGLE, unique=Unique(by=[], ttl=3600), **_ENDLESS)
class Single(Noted):
    """A unique job: at most one task exists at a time."""


@job(name="SoakDoomed", queue=DOOMED, max_attempts=2, result_ttl=KEEP_S, backoff=_SOON)
class Doomed(Noted):
    """Fails twice and is dead."""


def _tick(periodic: PeriodicJob) -> None:
    note("tick", periodic.task.id, periodic.task.attempt, f"Soak{type(periodic).__name__}")


@job(name="SoakTicking", queue=TICKS, every=timedelta(seconds=1), catch_up=1000, overlap="allow", **_ENDLESS)
class Ticking(PeriodicJob):
    """Fires every second."""

    def run(self) -> None:
        """Records the tick."""
        _tick(self)


@job(name="SoakTocking", queue=TICKS, every=timedelta(seconds=5), catch_up=1000, overlap="allow", **_ENDLESS)
class Tocking(PeriodicJob):
    """Fires every five seconds."""

    def run(self) -> None:
        """Records the tick."""
        _tick(self)
