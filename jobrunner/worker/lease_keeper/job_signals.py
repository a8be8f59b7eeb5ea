"""Signals that jobs send to their own worker.

The kernel does not say who sent a signal. A worker that was killed from outside is no fault of what it ran, one that a
job killed is. So what Python code sends to its own process is noted; nothing else sees it, a debugger's hook excepted.
"""

import os
import sys
import weakref
from typing import Any

from jobrunner.worker.lease_keeper.shared_memory import SharedMemory

_noted: weakref.WeakSet[SharedMemory] = weakref.WeakSet()
_installed: list[bool] = []


def watch_own_kills(marks: SharedMemory) -> None:
    """Notes there from now on what this process sends to itself. A hook, which some fifty kinds of rare events call and
    which cannot be taken away again, so there is one for all workers of a process."""
    _noted.add(marks)
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_hear)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("os.kill", "os.killpg"):
        return
    target, number = args
    own = os.getpgrp() if event == "os.killpg" else os.getpid()
    if target in (own, 0, -1):
        for marks in list(_noted):
            marks.sends_itself(number)
