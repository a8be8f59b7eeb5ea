"""The tasks of peers whose tasks are plain functions, found by their names. They take no part in the waits."""

import time

from benchmarks.ledger import recorder
from benchmarks.waits import compute

record = recorder()


def noop(n: int) -> None:
    record(n)


def spin(n: int) -> None:
    compute()
    record(n)


def stamp(n: int) -> None:
    record(time.time_ns() - n)
