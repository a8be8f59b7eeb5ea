"""Jobs and child processes of the tests that prove rows of the model, one by one.

``python -m tests.acceptance.rows_jobs ids FILE EACH`` makes ids in four processes, forked from one.
``python -m tests.acceptance.rows_jobs count URL PREFIX JOB`` adds to a number of a job 1 000 times in eight processes.
``python -m tests.acceptance.rows_jobs churn URL PREFIX`` does random operations in two forked processes until they are
killed, each of which has a successor then; it prints their ids.
"""

import itertools
import os
import random
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from jobrunner import Backoff, Client, Job, job
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.lease import Lease
from jobrunner.errors import LeaseError, TaskGone
from jobrunner.jobs.running_task import Metadata
from jobrunner.task import new_id
from tests.acceptance.ledger import record

AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)


@dataclass
class Point:
    """A nested parameter."""

    x: float
    labels: dict[str, bool]


@job(queue="t", name="RowsTyped", backoff=AT_ONCE)
class Typed(Job):
    """Takes a parameter of every type, some named like fields of the task's hash. Fails once, then shows them."""

    text: str
    number: int
    share: float
    flag: bool
    nothing: None
    raw: bytes
    when: datetime
    price: Decimal
    nested: dict[str, list[Point]]
    id: str
    type: str
    retry_count: int
    payload: str
    place: int
    max_attempts: int

    def run(self) -> list[str]:
        """The parameters as Python shows them, and the counter of the task."""
        if self.task.attempt == 1:
            raise ValueError("once")
        shown = [repr(getattr(self, name)) for name in self.__struct_fields__]
        return [*shown, f"counter {self.task.retry_count}"]


@job(queue="t", name="RowsSumAndFail", max_attempts=1)
class SumAndFail(Job):
    """Adds to a number that all runs share, then fails for good."""

    def run(self) -> None:
        """Fails."""
        self.metadata.increment("sum")
        raise ValueError("after the sum")


@job(queue="t", name="RowsShown", keepalive=0.6)
class Shown(Job):
    """Shows its progress until it is asked to stop."""

    def run(self) -> None:
        """Notes that it began."""
        self.progress(1, 1, note="begun")
        while not self.cancelled:
            time.sleep(0.01)


@job(queue="t", name="RowsFlaky", backoff=AT_ONCE)
class Flaky(Job):
    """Fails `failures` times, then succeeds."""

    failures: int

    def run(self) -> int:
        """Its count of failures."""
        record("run", self.task.id, self.task.attempt, note=self.task.retry_count)
        if self.task.retry_count < self.failures:
            raise ValueError("not yet")
        return self.task.retry_count


@job(queue="t", name="RowsLate", backoff=Backoff(base=0.4, factor=1, jitter=0))
class Late(Flaky):
    """The same with a backoff that can be measured."""


@job(queue="t", name="RowsGrowing", max_attempts=6)
class Growing(Flaky):
    """The same with the default backoff."""


@job(queue="t", name="RowsThrice", max_attempts=3, backoff=AT_ONCE)
class Thrice(Flaky):
    """The same with three attempts."""


@job(queue="t", name="RowsOnce", max_attempts=1, backoff=AT_ONCE)
class Once(Flaky):
    """The same with one attempt."""


@job(queue="t", name="RowsKept", result_ttl=3)
class Kept(Flaky):
    """Stays readable for a while."""


@job(queue="t", name="RowsUnkept", result_ttl=0)
class Unkept(Flaky):
    """Is deleted at once."""


@job(queue="t", name="RowsDefault")
class ByDefault(Flaky):
    """Stays readable for as long as tasks do by default."""


def fork(act: Callable[[], object]) -> int:
    """A child that does this and ends; its process id."""
    child = os.fork()
    if not child:
        try:
            act()
        except BaseException:
            traceback.print_exc()  # nothing else would report it
            os._exit(1)
        os._exit(0)
    return child


def count(url: str, prefix: str, name: str) -> None:
    """Eight processes that add to the same field of a job's hash, 125 times each."""

    def add() -> None:
        with Client(url, prefix) as client:
            metadata = Metadata(broker_of(client), keys_of(client), name)
            for _ in range(125):
                metadata.increment("sum")

    for child in [fork(add) for _ in range(8)]:
        assert os.waitpid(child, 0)[1] == 0


def make_ids(path: str, each: str) -> None:
    """Four processes, three of them forked off the first, which made ids before; each has a file of ids."""
    Path(path + ".0").write_text(new_id("q") + "\n")
    children = [fork(lambda number=number: _write_ids(f"{path}.{number}", int(each))) for number in range(1, 4)]
    _write_ids(path + ".0", int(each))
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def _write_ids(path: str, count: int) -> None:
    with Path(path).open("a") as file:
        file.writelines(f"{new_id('q')}\n" for _ in range(count))


def churn(url: str, prefix: str) -> None:
    """Keeps two processes at work."""
    alive: set[int] = set()
    for seed in itertools.count():
        if len(alive) == 2:
            alive.discard(os.wait()[0])
        child = fork(lambda seed=seed: _churn(url, prefix, seed))
        alive.add(child)
        print(child, flush=True)


def _churn(url: str, prefix: str, seed: int) -> None:
    """Pushes, reserves and reports at random in two queues of a pipeline, for ever."""
    chance = random.Random(seed)
    with Client(url, prefix) as client:
        queue, other = client.queue("p/a"), client.queue("p/b")
        while True:
            queue.push_many([os.urandom(20) for _ in range(chance.randint(1, 4))])
            queue.push(b"later", in_=chance.random() / 20, max_attempts=2)
            for source in (queue, other):
                for lease in source.reserve(chance.randint(1, 5), keepalive=0.2):
                    with suppress(LeaseError):
                        _report(chance, lease)
                source.pop()
            unwanted = client.task(queue.push(b"unwanted"))
            with suppress(TaskGone):  # the other process took it
                unwanted.cancel()


def _report(chance: random.Random, lease: Lease) -> None:
    kind = chance.randrange(7)
    if kind == 0:
        lease.rollback(delay=0.01, error="at random")
    elif kind == 1:
        lease.release()
    elif kind == 2:
        lease.move("b", headers={"moved": "yes"})
    elif kind == 3:
        lease.move("a", delay=0.02)
    elif kind < 6:
        lease.commit()
    # else it is left to its end


if __name__ == "__main__":
    {"ids": make_ids, "churn": churn, "count": count}[sys.argv[1]](*sys.argv[2:])
