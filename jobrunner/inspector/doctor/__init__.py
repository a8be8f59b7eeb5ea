"""The checks of `jobrunner doctor`, by what they look at: `setup`, `server`, `workload`. Each yields `Check`s."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`fail` keeps jobrunner from working or loses tasks; `warn` is worth a look."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""
    queue: str = ""
    """What it is about, so that a page can lead there: a queue, a job of it, a task."""
    job: str = ""
    task: str = ""


def ok(what: str, found: str) -> Check:
    """Nothing to do."""
    return Check(what=what, verdict="ok", found=found)


def warn(what: str, found: str, advice: str, *, queue: str = "", job: str = "", task: str = "") -> Check:
    """Worth a look."""
    return Check(what=what, verdict="warn", found=found, advice=advice, queue=queue, job=job, task=task)


def fail(what: str, found: str, advice: str) -> Check:
    """A failed check."""
    return Check(what=what, verdict="fail", found=found, advice=advice)
