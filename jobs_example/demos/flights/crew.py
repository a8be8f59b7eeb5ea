"""The processes behind ``jobrunner pipeline run flights``: their roles, and how each of them is killed.

::

    supervisor ─┬─ worker of the stations in Python
                └─ Spark driver ── Java ── daemon ── the Pythons of the executor, one for each Spark task at a time
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from jobs_example.demos.processes import Process, descendants

Role = Literal["worker", "driver", "executor"]
TITLES: dict[Role, str] = {
    "worker": "the Python worker",
    "driver": "the Spark driver",
    "executor": "a Python of Spark's executor",
}
_DAEMON = "pyspark.daemon pyspark.worker"
"""Other daemons of Spark serve the driver: they look up data sources, say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The processes that matter, as they are at one moment; `driver` and `worker` are there once when all is well."""

    worker: tuple[int, ...] = ()
    driver: tuple[int, ...] = ()
    executor: tuple[int, ...] = ()

    def of(self, role: Role) -> tuple[int, ...]:
        """The processes of one role."""
        found: tuple[int, ...] = getattr(self, role)
        return found


def muster(supervisor: int) -> Crew:
    """The processes below the supervisor's process."""
    return _sorted_out(supervisor, descendants(supervisor))


def kill(role: Role, crew: Crew) -> int | None:
    """kill -9 of the newest process of that role; its id, None when there was none."""
    for pid in sorted(crew.of(role), reverse=True):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return pid
    return None


def _sorted_out(supervisor: int, processes: Iterable[Process]) -> Crew:
    known = list(processes)
    parents = {process.parent for process in known}
    daemons = {process.pid for process in known if process.command.endswith(_DAEMON)}
    own = [process for process in known if process.parent == supervisor and " work " in process.command]
    return Crew(
        worker=tuple(process.pid for process in own if "=flights/raw" in process.command),
        driver=tuple(process.pid for process in own if "=flights/departed" in process.command),
        executor=tuple(pid for pid in daemons if pid not in parents and _parent(pid, known) in daemons),
    )


def _parent(pid: int, known: list[Process]) -> int:
    return next(process.parent for process in known if process.pid == pid)
