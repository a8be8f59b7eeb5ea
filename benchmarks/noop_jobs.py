"""jobrunner's jobs for the benchmarks, declared with default options."""

import asyncio
import time

from benchmarks.ledger import recorder
from benchmarks.waits import WAIT_S, compute
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
class Wait(Job):
    """Waits for something, as for an answer from elsewhere, in a coroutine."""

    n: int

    async def run(self) -> None:
        await asyncio.sleep(WAIT_S)
        record(self.n)


@job(queue=QUEUE)
class WaitInThread(Job):
    """The same in a thread."""

    n: int

    def run(self) -> None:
        time.sleep(WAIT_S)
        record(self.n)


@job(queue=QUEUE)
class Spin(Job):
    """Computes."""

    n: int

    def run(self) -> None:
        compute()
        record(self.n)


@job(queue=QUEUE)
class Stamp(Job):
    """Notes how long it took from the call of enqueue to here."""

    n: int

    def run(self) -> None:
        record(time.time_ns() - self.n)


@job(queue=QUEUE, result_ttl=0)
class Unkept(Job):
    """Noop, and nothing stays of it."""

    n: int

    def run(self) -> None:
        record(self.n)


@job(queue=QUEUE)
class Hooked(Job):
    """Noop, with a hook before and one after it, as middleware would be."""

    n: int

    def before(self) -> None:
        pass

    def run(self) -> None:
        record(self.n)

    def after(self) -> None:
        pass


WITH: dict[str, type[Job]] = {"hooks": Hooked, "nothing kept": Unkept}
"""The jobs for what prices.py asks of a job itself."""
