"""Hooks of objects for a forked child, where no thread of the parent runs and locks stay as they were at the fork."""

import atexit
import os
from collections.abc import Callable
from weakref import WeakMethod

_methods: "set[WeakMethod[Callable[[], object]]]" = set()


def call_in_forks(method: Callable[[], object]) -> None:
    """Has a method called in each forked child as long as its object lives."""
    _methods.add(WeakMethod(method, _methods.discard))


def _after_fork() -> None:
    for reference in list(_methods):
        if (method := reference()) is not None:
            method()


os.register_at_fork(after_in_child=_after_fork)
# The callback of a WeakMethod fails, with a traceback, while Python takes its modules apart.
atexit.register(_methods.clear)
