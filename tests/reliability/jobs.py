"""Jobs of the scenarios, beside those of the acceptance tests. They leave no `end`, so no verdict counts them."""

from pathlib import Path
from typing import Any

from jobrunner import Job, Snooze, Unique, job
from jobrunner.etl import Pipeline
from tests.acceptance.jobs_for_tests import AT_ONCE
from tests.acceptance.ledger import record

SAFE: Any = {"max_attempts": 0, "keepalive": 2}


@job(queue="unique", name="Single", unique=Unique(by=[]))
def single() -> None:
    """At most one of it waits."""


@job(queue="t", name="Step", keepalive=2, backoff=AT_ONCE)
class Step(Job):
    """A step of a flow: one more than the step before. It shows its progress."""

    def run(self) -> int:
        """The traced run."""
        record("step", self.task.id, self.task.attempt)
        self.progress(1, 1)
        return sum(self.task.results) + 1


@job(queue="t", name="Rests", keepalive=2, backoff=AT_ONCE)
class Rests(Job):
    """Is put off once."""

    path: str

    def run(self) -> None:
        """Leaves a file when it is."""
        if not Path(self.path).exists():
            Path(self.path).touch()
            raise Snooze(in_=0.05)
        record("rested", self.task.id, self.task.attempt)


parts = Pipeline("parts")


@parts.station("whole", to="halves", fan_out=True, **SAFE)
def halve(item: Any) -> list[str]:
    """Two items out of one."""
    return [f"{item.payload}{half}" for half in "ab"]


@parts.station("halves", to="checked", **SAFE)
def check(item: Any) -> str:
    """Goes on."""
    return f"{item.payload}!"


@parts.sink("checked", **SAFE)
def collect(item: Any) -> None:
    """The end of the line."""
    record("collected", item.id, item.attempt, note=item.payload)
