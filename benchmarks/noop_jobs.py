"""jobrunner's jobs for the benchmarks, declared with default options: what a user gets without asking."""

import time

from benchmarks.ledger import recorder
from jobrunner import Job, job

QUEUE = "bench"
record = recorder()


@job(queue=QUEUE)
class Noop(Job):
    """Does nothing but say that it ran."""

    n: int

    def run(self) -> None:
        record(self.n)


@job(queue=QUEUE)
class Stamp(Job):
    """Notes how long it took from the call of enqueue to here."""

    sent_ns: int

    def run(self) -> None:
        record(time.time_ns() - self.sent_ns)
