"""Further jobs of the scenarios. They write no `end` to the ledger, so no verdict counts them."""

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any, ClassVar

from jobrunner import Fail, Job, Snooze, Unique, job
from jobrunner.etl import Pipeline
from tests.acceptance.jobs_for_tests import AT_ONCE, Traced
from tests.acceptance.ledger import VARIABLE as LEDGER
from tests.acceptance.ledger import record

SAFE: Any = {"max_attempts": 0, "keepalive": 2}


@job(queue="unique", name="Single", unique=Unique(by=[]))
def single() -> None:
    """At most one of it waits."""


@job(queue="taken/from", name="Taken", result_ttl=0)
def taken_job() -> None:
    """Nothing is left of it when it is finished."""


_BEATING = 'for n in $(seq 200); do echo "beat $1 $2 $$ 0 -" >> "$3"; sleep 0.05; done'


@job(queue="t", name="Beats", keepalive=2, backoff=AT_ONCE)
class Beats(Traced):
    """Leaves an entry every few milliseconds for as long as it runs, and so does a process that it starts."""

    seconds: float

    def act(self) -> None:
        ends = time.monotonic() + self.seconds
        words = [self.task.id, str(self.task.attempt), os.environ[LEDGER]]
        with subprocess.Popen(["sh", "-c", _BEATING, "sh", *words]) as beating:
            while time.monotonic() < ends:
                record("beat", self.task.id, self.task.attempt)
                time.sleep(0.01)
            beating.kill()


@job(queue="t", name="Lamp", **SAFE, backoff=AT_ONCE)
class Lamp(Traced):
    """Runs while the power is cut, and fails once if it `fails`."""

    fails: bool = False

    def act(self) -> None:
        time.sleep(0.002)
        if self.fails and not self.task.retry_count:
            record("fail", self.task.id, self.task.attempt)
            raise ValueError("as the row demands")


@job(queue="t", name="Tenant", partition_by="tenant")
class Tenant(Traced):
    """Has a key."""

    tenant: str


@job(queue="t", name="Pay", keepalive=2, max_attempts=1)
class Pay(Job):
    """Records its parameters and the number of its headers."""

    SIGN: ClassVar = ""
    to: str
    amount: int

    def run(self) -> None:
        record("end", self.task.id, self.task.attempt, f"{self.SIGN}{self.to}:{self.amount}:{len(self.task.headers)}")


@job(queue="t", name="Refund", keepalive=2, max_attempts=1)
class Refund(Pay):
    """Has the parameters of another job."""

    SIGN: ClassVar = "-"


@job(queue="t", name="Step", keepalive=2, backoff=AT_ONCE)
class Step(Job):
    """A step of a flow: one more than the step before. It shows its progress."""

    def run(self) -> int:
        """The traced run."""
        record("step", self.task.id, self.task.attempt)
        self.progress(1, 1)
        return sum(self.task.results) + 1


@job(queue="t", name="Bulky", keepalive=2, backoff=AT_ONCE)
class Bulky(Job):
    """A step whose result is large: three of them are more than is handed on in one piece."""

    def run(self) -> tuple[int, str]:
        """The result of the step before, and 400 KB."""
        return sum(self.task.results), "x" * 400_000


@job(queue="t", name="Adds", keepalive=2, backoff=AT_ONCE)
class Adds(Job):
    """A step after a group of those."""

    def run(self) -> int:
        """The sum of the numbers in their results."""
        return sum(number for number, _ in self.task.results)


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


@job(queue="nasty", name="Probe", keepalive=2, backoff=AT_ONCE)
class Probe(Job):
    """Takes a number."""

    n: int = 0

    def run(self) -> int:
        """Gives it back."""
        return self.n


@job(queue="t", name="Weigh", keepalive=5, result_ttl=0)
class Weigh(Traced):
    """Takes a text of any size and gives back how long it is."""

    load: str

    def act(self) -> int:
        return len(self.load)


class Race(Traced):
    """A unique job of a race: now and then it fails, or is put off, and then goes on."""

    key: int

    def act(self) -> None:
        chance = random.random()
        if chance < 0.1:
            raise ValueError("not this time")
        if chance < 0.2:
            raise Snooze(in_=0.01)


_RACE: Any = {"queue": "t", "max_attempts": 0, "keepalive": 2, "backoff": AT_ONCE, "result_ttl": 0}


@job(name="KeepsFirst", unique=Unique(ttl=60), **_RACE)
class KeepsFirst(Race):
    """The task that is there stays."""


@job(name="Refuses", unique=Unique(ttl=60, on_clash="raise"), **_RACE)
class Refuses(Race):
    """A second one is an error."""


@job(name="Replaces", unique=Unique(ttl=60, on_clash="replace"), **_RACE)
class Replaces(Race):
    """A second one takes the place of the first."""


@job(name="PutsOff", unique=Unique(ttl=60, on_clash="reschedule"), **_RACE)
class PutsOff(Race):
    """A second one puts the first off."""


KINDS_OF_UNIQUE: tuple[type[Race], ...] = (KeepsFirst, Refuses, Replaces, PutsOff)


@job(queue="ends", name="OnlyOne", unique=Unique(ttl=600), max_attempts=2, max_stalled=1, keepalive=1, backoff=AT_ONCE)
class OnlyOne(Job):
    """Ends in the way that its parameter names."""

    way: str
    path: str = ""

    def run(self) -> None:
        """Returns, fails for good, or runs until a file appears."""
        record("only", self.task.id, self.task.attempt)
        if self.way == "death":
            raise Fail("as the row demands", retry=False)
        while self.path and not Path(self.path).exists():
            time.sleep(0.01)


@job(queue="ends", name="Perishes", unique=Unique(ttl=600), expires_in=0.05)
def perishes() -> None:
    """Is not begun in time."""


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
