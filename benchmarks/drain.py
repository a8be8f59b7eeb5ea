"""The drain: a queue filled beforehand, one worker process, and the time until every task is acknowledged.

The clock runs from the first task that ran to the moment the server holds neither a waiting nor an
unacknowledged task. Both are seen from outside, and the server is asked nothing before the last task ran:
neither the start of an interpreter nor the harness's own questions are in anybody's figure.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.child import Child, ChildFailed, run_to_end
from benchmarks.ledger import Ledger
from benchmarks.server import PrivateServer, Usage

_GLANCE_S = 0.005
_STALLED_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Somebody who can drain a queue. `fill` gets the number of tasks as its last argument."""

    name: str
    fill: Sequence[str]
    work: Sequence[str]
    left: Callable[[PrivateServer], int]
    """Tasks on the server that are waiting, unacknowledged or given up."""
    environment: Callable[[PrivateServer], Mapping[str, str]]
    share: float = 1.0
    """The part of --tasks it gets: a slow contender shows its rate on fewer."""
    about: str = ""
    """Name and version, of one that is installed for the occasion."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """One drain. `void` says why the figures count for nothing; None when every task ran exactly once."""

    tasks: int
    seconds: float = 0.0
    used: Usage = field(default_factory=Usage)
    void: str | None = None


def drain(server: PrivateServer, contender: Contender, tasks: int) -> Drain:
    """Fills the queue with the tasks 0 to `tasks` - 1, drains it and checks the delivery."""
    server.clear()
    environment = contender.environment(server)
    try:
        run_to_end([*contender.fill, str(tasks)], environment)
        filled = contender.left(server)
        if filled != tasks:
            return Drain(tasks=tasks, void=f"filling put {filled} of {tasks} tasks on the server")
        with TemporaryDirectory(prefix="benchmark-") as folder:
            return _watch(server, contender, tasks, Path(folder), environment)
    except ChildFailed as failed:
        return Drain(tasks=tasks, void=str(failed))


def _watch(
    server: PrivateServer, contender: Contender, tasks: int, folder: Path, environment: Mapping[str, str]
) -> Drain:
    ledger = Ledger(folder / "ledger", room=2 * tasks)
    before = server.usage()
    with Child(contender.work, {**environment, **ledger.environment}, folder / "log") as worker:
        _wait_for_entries(ledger, 1, worker)
        started = time.perf_counter()
        _wait_for_entries(ledger, tasks, worker)
        _wait_until_acknowledged(lambda: contender.left(server))
        seconds = time.perf_counter() - started
        used = server.usage() - before
    complaint = ledger.complaint(tasks)
    left = contender.left(server)
    if left:
        complaint = f"{complaint or 'all ran'}; {left} were still on the server"
    return Drain(tasks=tasks, seconds=seconds, used=used, void=complaint)


def _wait_for_entries(ledger: Ledger, wanted: int, worker: Child) -> None:
    """Returns when the ledger has them, or when nothing came for too long: the check will then tell."""
    seen, since = 0, time.monotonic()
    while (entries := len(ledger)) < wanted:
        worker.check_alive()
        if entries > seen:
            seen, since = entries, time.monotonic()
        if time.monotonic() - since > _STALLED_S:
            return
        time.sleep(_GLANCE_S)


def _wait_until_acknowledged(left: Callable[[], int]) -> None:
    deadline = time.monotonic() + _STALLED_S
    while left() and time.monotonic() < deadline:
        time.sleep(_GLANCE_S)
