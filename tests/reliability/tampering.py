"""Makes a process of jobrunner die at a named point, or makes it a build with a known fault.

Both are asked for by environment variables and installed from outside (site/sitecustomize.py), so that the package has
no such switch. A crash point is ``<role>:<before|after>:<script>:<n>``: the process in that role ends with exit code
137 right before it sends, or right after it got the reply to, its n-th call of that script. It dies there once: a file
says that it did, so that a keeper which is started again lives.

The scripts that processes send can be traced, to know that there is a point for each.

Clocks are made wrong in the same way: the machine's wall clock by seconds, the server's by the seconds in a file,
which may change at any time.
"""

import hashlib
import itertools
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from msgspec.structs import replace

TAMPER = "JOBRUNNER_TEST_TAMPER_"
"""The prefix of the environment variables, in `site` too."""
EXIT_CODE = 137
_ROLES = {"keeper": "jobrunner.worker.lease_keeper.keeper_process", "child": "jobrunner.worker.run.child"}

FAULTS = {
    # The text of a script, and what this build has in its place. That calls no function of a library: a script that
    # loads a library only when it needs it does not have the name, and a build that fails at once loses nothing.
    "loses": (  # the tasks that a killed worker held, and counts them as deleted by a user
        "add_waiting(waiting, {number(task[4]) or now, id}, config.is_partitioned)",
        "redis.call('UNLINK', key) redis.call('HINCRBY', counters, 'purged', 1)",
    ),
    # leases end while tasks run
    "doubles": ("lease_length(more[3]) or keepalive)", "1)"),
    "leaks": (  # a place under the cap, for every finished task
        "call_sliced('ZREM', pending, ended)",
        "for _, id in ipairs(ended) do redis.call('ZADD', pending, 9e15, id) end",
    ),
    "hoards": ("if redis.call('PEXPIRE', key, keep_ms) == 0", "if redis.call('EXISTS', key) == 0"),  # finished tasks
}

CARELESS = ("spends", "spares")
"""Faults of a lease keeper after the death of its worker: it reports every task as begun, or lets
processes that jobs started run on."""


def install() -> None:
    """Does what the environment asks of this process."""
    if point := os.environ.get(f"{TAMPER}CRASH"):
        role, when, script, nth = point.split(":")
        if role == _role():
            _die_at(when, script, int(nth))
    if file := os.environ.get(f"{TAMPER}TRACE"):
        _trace(Path(file))
    if seconds := os.environ.get(f"{TAMPER}WALL_CLOCK"):
        _shift_wall_clock(float(seconds))
    if file := os.environ.get(f"{TAMPER}SERVER_CLOCK"):
        _shift_server_clock(Path(file))
    if fault := os.environ.get(f"{TAMPER}FAULT"):
        if fault in FAULTS:
            _break(*FAULTS[fault])
        elif _role() == "keeper":
            _make_careless(fault)
    if size := os.environ.get(f"{TAMPER}LEAK"):
        _leak(int(size))


def _role() -> str:
    words = " ".join(sys.orig_argv)
    return next((role for role, module in _ROLES.items() if module in words), "worker")


def _die_at(when: str, script: str, nth: int) -> None:
    from jobrunner.broker.broker import Broker

    exchange, count, mark = Broker._exchange, itertools.count(1), Path(os.environ[f"{TAMPER}CRASHED"])

    def dying(self: Broker, connection: Any, calls: Sequence[Any], *rest: Any) -> list[Any]:
        is_it = any(call.script and call.script.name == script for call in calls) and next(count) == nth
        if not is_it or mark.exists():
            return exchange(self, connection, calls, *rest)
        mark.touch()
        if when == "after":
            exchange(self, connection, calls, *rest)
        os._exit(EXIT_CODE)

    Broker._exchange = dying  # type: ignore[method-assign]


def _trace(file: Path) -> None:
    from jobrunner.broker.broker import Broker

    exchange, known = Broker._exchange, set[str]()

    def traced(self: Broker, connection: Any, calls: Sequence[Any], *rest: Any) -> list[Any]:
        new = {call.script.name for call in calls if call.script} - known
        if new:
            known.update(new)
            with file.open("a") as lines:
                lines.write("".join(f"{_role()} {name}\n" for name in new))
        return exchange(self, connection, calls, *rest)

    Broker._exchange = traced  # type: ignore[method-assign]


def _leak(size: int) -> None:
    """So many bytes and a descriptor at each round trip of a worker."""
    if "jobrunner work" not in " ".join(sys.orig_argv):
        return
    from jobrunner.broker.broker import Broker

    exchange, leaked = Broker._exchange, []

    def leaking(self: Broker, connection: Any, calls: Sequence[Any], *rest: Any) -> list[Any]:
        leaked.append((bytes([1]) * size, os.dup(2) if len(leaked) % 5 == 0 else -1))
        return exchange(self, connection, calls, *rest)

    Broker._exchange = leaking  # type: ignore[method-assign]


def _shift_wall_clock(seconds: float) -> None:
    from jobrunner import clock

    unix_ms, utc_now = clock.unix_ms, clock.utc_now
    clock.unix_ms = lambda: unix_ms() + round(seconds * 1000)
    clock.utc_now = lambda: utc_now() + timedelta(seconds=seconds)


def _shift_server_clock(file: Path) -> None:
    from jobrunner.broker.broker import Broker

    init = Broker.__init__

    def shifted(self: Broker, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.now_ms = lambda: stepped(file)

    Broker.__init__ = shifted  # type: ignore[method-assign]


def stepped(file: Path) -> bytes:
    """The time of a server whose clock is wrong by the seconds in the file."""
    return repr((time.time() + float(file.read_text() or 0)) * 1000).encode()


def _break(right: str, wrong: str) -> None:
    from jobrunner.broker import scripts

    load: Callable[[str], scripts.Script] = scripts.load

    def load_broken(asked: str) -> scripts.Script:
        script = load(asked)
        # A function that a script makes only when it needs it is called through the group it is in.
        source = re.sub(rb"(rarely_\d+\(\)\.)?" + re.escape(right.encode()), lambda _: wrong.encode(), script.source)
        return replace(script, source=source, sha=_sha(source))

    scripts.load = load_broken


def _make_careless(fault: str) -> None:
    from jobrunner.broker.calls import leases
    from jobrunner.worker.lease_keeper import crash_recovery

    if fault == "spares":
        crash_recovery.end_all_of = lambda *_, **__: True
    else:
        leases.release = lambda keys, reports: leases.crash(keys, ((*one[:2], False) for one in reports), reason=fault)


def _sha(source: bytes) -> bytes:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest().encode()
