"""Makes a process of jobrunner die at a named point, or makes it a build with a known fault.

Both are asked for by environment variables and installed from outside (site/sitecustomize.py), so that the package has
no such switch. A crash point is ``<role>:<before|after>:<script>:<n>``: the process in that role ends with exit code
137 right before it sends, or right after it got the reply to, its n-th call of that script.
"""

import hashlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

CRASH = "JOBRUNNER_TEST_TAMPER_CRASH"
FAULT = "JOBRUNNER_TEST_TAMPER_FAULT"
EXIT_CODE = 137
_ROLES = {"keeper": "jobrunner.worker.keeper", "child": "jobrunner.worker.executors.child"}

FAULTS = {
    # What stands in a script, and what this build has in its place.
    "loses": (  # what a killed worker held, and books it as deleted by a person
        "redis.call('ZADD', waiting, number(task[4]) or now, id)",
        "redis.call('UNLINK', key) redis.call('HINCRBY', counters, 'purged', 1)",
    ),
    "doubles": ("now + (number(more[3]) or keepalive)", "now + 1"),  # leases end while tasks run
    "leaks": (  # a place under the cap, for every finished task
        "call_sliced('ZREM', pending, over)",
        "for _, id in ipairs(over) do redis.call('ZADD', pending, 9e15, id) end",
    ),
}


def install() -> None:
    """Does what the environment asks of this process."""
    if point := os.environ.get(CRASH):
        role, when, script, nth = point.split(":")
        if role == _role():
            _die_at(when, script, int(nth))
    if fault := os.environ.get(FAULT):
        _break(*FAULTS[fault])


def _role() -> str:
    words = " ".join(sys.orig_argv)
    return next((role for role, module in _ROLES.items() if module in words), "worker")


def _die_at(when: str, script: str, nth: int) -> None:
    from jobrunner.broker.broker import Broker

    exchange, count = Broker._exchange, itertools.count(1)

    def dying(self: Broker, connection: Any, calls: Sequence[Any]) -> list[Any]:
        is_it = any(call.script and call.script.name == script for call in calls) and next(count) == nth
        if is_it and when == "before":
            os._exit(EXIT_CODE)
        replies = exchange(self, connection, calls)
        if is_it:
            os._exit(EXIT_CODE)
        return replies

    Broker._exchange = dying  # type: ignore[method-assign]


def _break(right: str, wrong: str) -> None:
    from jobrunner.broker import scripts

    load: Callable[[str], scripts.Script] = scripts.load

    def load_broken(asked: str) -> scripts.Script:
        script = load(asked)
        source = script.source.replace(right.encode(), wrong.encode())
        return replace(script, source=source, sha=_sha(source))

    scripts.load = load_broken


def _sha(source: bytes) -> bytes:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
