"""The checks of `jobrunner doctor`, by subject: `setup`, `server`, `workload`. Each yields `Check`s."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """The result of a check. `fail`: jobrunner does not work or loses tasks; `warn`: an operator should look at it."""

    what: str
    verdict: Verdict
    found: str
    advice: str = ""
    queue: str = ""
    """The subject, to which a page can link: a queue, a job of it, a task."""
    job: str = ""
    task: str = ""


def ok(what: str, found: str) -> Check:
    """A passed check."""
    return Check(what=what, verdict="ok", found=found)


def warn(what: str, found: str, advice: str, *, queue: str = "", job: str = "", task: str = "") -> Check:
    """A warning."""
    return Check(what=what, verdict="warn", found=found, advice=advice, queue=queue, job=job, task=task)


def fail(what: str, found: str, advice: str) -> Check:
    """A failed check."""
    return Check(what=what, verdict="fail", found=found, advice=advice)
