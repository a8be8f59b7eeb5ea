"""Jobs of the scenarios, beside those of the acceptance tests. They leave no `end`, so no verdict counts them."""

from jobrunner import Job, Unique, job
from tests.acceptance.jobs_for_tests import AT_ONCE
from tests.acceptance.ledger import record


@job(queue="unique", name="Single", unique=Unique(by=[]))
def single() -> None:
    """At most one of it waits."""


@job(queue="t", name="Step", keepalive=2, backoff=AT_ONCE)
class Step(Job):
    """A step of a flow: one more than the step before."""

    def run(self) -> int:
        """The traced run."""
        record("step", self.task.id, self.task.attempt)
        return sum(self.task.results) + 1
