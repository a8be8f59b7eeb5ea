"""Child processes for the rows of the queue's semantics: plain users of the queue API, and jobs for real workers.

A child is forked from a clean server process, so that dozens of them cost little. Its function gets a connection to
the test as its first argument and reports over it; reports from before a SIGKILL arrive.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from jobrunner import Backoff, Client, Item, Job, Queue, job
from jobrunner.client.lease import Lease
from jobrunner.errors import JobrunnerError, LeaseError
from tests.acceptance.forks import forks
from tests.acceptance.ledger import record

JOBS = __name__
AT_ONCE = Backoff(base=0.01, factor=1, jitter=0)


class Child:
    """A process that runs a function of this module."""

    def __init__(self, act: Callable[..., None], *args: Any) -> None:
        self._near, far = forks().Pipe()
        self.process = forks().Process(target=act, args=(far, *args), daemon=True)
        self.process.start()
        far.close()

    def say(self, word: object) -> None:
        """Tells the child something."""
        self._near.send(word)

    def hear(self) -> Any:
        """The next message of the child; None when it ended."""
        with suppress(EOFError, ConnectionError):
            return self._near.recv()

    def hear_all(self) -> list[Any]:
        """All messages of the child until it ends."""
        return list(iter(self.hear, None))

    def signal(self, number: int) -> None:
        """A signal to the child."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.process.kill()
        self.process.join()


def push_numbers(told: Connection, url: str, prefix: str, queue: str, name: str, count: int) -> None:
    """Pushes [name, 0], [name, 1], ..., one by one."""
    with Client(url, prefix) as client:
        for number in range(count):
            client.queue(queue).push([name, number])


def push_priorities(told: Connection, url: str, prefix: str, queue: str, seed: int, count: int) -> None:
    """Pushes [seed, 0, priority], [seed, 1, priority], ..., one by one."""
    chance = random.Random(seed)
    with Client(url, prefix) as client:
        for number in range(count):
            priority = chance.randrange(3)
            client.queue(queue).push([seed, number, priority], priority=priority)


def take_until_empty(told: Connection, url: str, prefix: str, queue: str, n: int) -> None:
    """Connects, says so, and at a word reserves once; at another, until nothing is there. Tells the ids of both."""
    with Client(url, prefix) as client:
        source = client.queue(queue)
        source.counts()
        told.send("ready")
        told.recv()
        told.send([lease.id for lease in source.reserve(n)])
        told.recv()
        told.send([lease.id for batch in _batches(source, n) for lease in batch])


def take_and_commit(told: Connection, url: str, prefix: str, queue: str) -> None:
    """Sends (id, attempts) of each lease, then commits it, until it receives any message."""
    with Client(url, prefix) as client:
        source = client.queue(queue)
        while not told.poll():
            for lease in source.reserve(3, wait=0.1):
                told.send((lease.id, lease.attempts))
                with suppress(LeaseError):
                    lease.commit()


def sleep_over_lease(told: Connection, url: str, prefix: str, queue: str) -> None:
    """Reserves, sends the id, and stops itself; when it is continued, sends the answer to its report."""
    with Client(url, prefix) as client:
        (lease,) = client.queue(queue).reserve()
        told.send(lease.id)
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            told.send(f"commit: {lease.commit()}")
        except LeaseError as error:
            told.send(type(error).__name__)


def reserve_and_leave(told: Connection, url: str, prefix: str, queue: str) -> None:
    """Takes a task by hand and ends without a report."""
    with Client(url, prefix) as client:
        client.queue(queue).reserve()


def act_at_random(told: Connection, url: str, prefix: str, names: tuple[str, str], seed: int) -> None:
    """Runs random operations on two queues of one pipeline, for ever, and reports each of them."""
    rng = random.Random(seed)
    with Client(url, prefix) as client:
        queues = [client.queue(name) for name in names]
        held: list[Lease] = []
        while True:
            with suppress(JobrunnerError):
                _act(rng, rng.choice(queues), names, held)
            told.send(1)


def _act(rng: random.Random, queue: Queue, names: tuple[str, str], held: list[Lease]) -> None:
    if held and rng.random() < 0.4:
        _report(rng, held.pop(rng.randrange(len(held))), rng.choice(names))
        return
    acts: list[Callable[[], object]] = [
        lambda: queue.push_many(Item(n, in_=rng.choice([None, 0.01]), max_attempts=2) for n in range(5)),
        lambda: queue.push("own", id=f"own-{rng.randrange(20)}"),
        lambda: held.extend(queue.reserve(rng.randint(1, 4), keepalive=rng.choice([0.02, 5]))),
        lambda: held.extend(queue.reserve(rng.randint(1, 4))),
        lambda: queue.pop(),
        lambda: queue.requeue_dead(),
        lambda: queue.delete(f"own-{rng.randrange(20)}"),
        lambda: queue.purge("scheduled") if rng.random() < 0.1 else queue.counts(),
    ]
    rng.choice(acts)()


def _report(rng: random.Random, lease: Lease, other: str) -> None:
    reports: list[Callable[[], object]] = [
        lease.commit,
        lease.release,
        lease.extend,
        lambda: lease.rollback(delay=rng.choice([0, 0.01])),
        lambda: lease.move(other, payload="moved"),
    ]
    rng.choice(reports)()


def _batches(queue: Queue, n: int) -> Iterator[list[Lease]]:
    while batch := queue.reserve(n):
        yield batch


@job(queue="rows", name="RowStep", keepalive=1, backoff=AT_ONCE, max_attempts=0)
class Step(Job):
    """Notes its start and its end, and takes its time in between."""

    seconds: float = 0.0

    def run(self) -> None:
        """Sleeps."""
        record("start", self.task.id, self.task.attempt)
        time.sleep(self.seconds)
        record("end", self.task.id, self.task.attempt)


@job(queue="rows", name="RowLongOnce", keepalive=1, backoff=AT_ONCE)
class LongOnce(Job):
    """Its first attempt lasts for ever, the next no time."""

    def run(self) -> None:
        """Sleeps, or not."""
        record("start", self.task.id, self.task.attempt)
        time.sleep(60 if self.task.attempt == 1 else 0)


@job(queue="rows", name="RowQuit", keepalive=1)
class Quit(Job):
    """Ends in a way that is no success."""

    how: str

    def run(self) -> Any:
        """Raises, exits, vanishes, hangs, or returns what cannot be a result."""
        record("start", self.task.id, self.task.attempt, note=self.how)
        if self.how == "raise":
            raise ValueError("no")
        if self.how == "exit":
            sys.exit(0)
        if self.how == "vanish":
            os._exit(0)
        if self.how == "hang":
            time.sleep(60)
        return (number for number in range(3))
