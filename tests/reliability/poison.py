"""A job that takes its process down, in every way that one task can."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable

from jobrunner import Job, job
from tests.acceptance.jobs_for_tests import AT_ONCE
from tests.acceptance.ledger import record

_PIECE = 64 * 1024 * 1024
_WORDS_OF_C = 10**9


def _recurse(_: object = None) -> object:
    return max([0], key=_recurse)  # through C: each turn takes from the stack of the thread


def _overflow() -> None:
    sys.setrecursionlimit(_WORDS_OF_C)
    _recurse()


def _eat() -> None:
    pieces = []
    while True:
        pieces.append(bytearray(_PIECE))


WAYS: dict[str, Callable[[], object]] = {
    "segfault": lambda: ctypes.string_at(0),  # a signal that another process sends may arrive after the task
    "exit": lambda: os._exit(3),
    "recursion": _overflow,
    "memory": _eat,  # up to the limit of its process
    "out of memory": lambda: os.kill(os.getpid(), signal.SIGKILL),  # as the kernel ends a process that takes too much
}


@job(queue="t", name="Poison", max_attempts=3, keepalive=2, backoff=AT_ONCE)
class Poison(Job):
    """Ends badly."""

    way: str

    def run(self) -> None:
        """Does not come back."""
        record("poisoned", self.task.id, self.task.attempt, note=self.way)
        WAYS[self.way]()
