"""The processes behind ``jobrunner pipeline run``: their roles, and how each of them is killed.

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

Role = Literal["worker", "driver", "java", "executor"]
TITLES: dict[Role, str] = {
    "worker": "the Python worker",
    "driver": "the Spark driver",
    "java": "Spark's Java",
    "executor": "a Python of Spark's executor",
}
_DAEMON = "daemon pyspark.worker"
"""The end of its command, be it Spark's own or `jobrunner.spark.preloaded_daemon`. Other daemons serve the driver."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProcesses:
    """The processes that matter, as they are at one moment; `driver` and `worker` are there once when all is well."""

    worker: tuple[int, ...] = ()
    driver: tuple[int, ...] = ()
    java: tuple[int, ...] = ()
    executor: tuple[int, ...] = ()

    def of(self, role: Role) -> tuple[int, ...]:
        """The processes of one role."""
        found: tuple[int, ...] = getattr(self, role)
        return found


def find_processes(supervisor: int, *, python: str, spark: str) -> RoleProcesses:
    """The processes below the supervisor's process. `python` and `spark`: a queue that each of the two workers has."""
    return _sorted_out(supervisor, descendants(supervisor), python, spark)


def kill(role: Role, processes: RoleProcesses) -> int | None:
    """kill -9 of the newest process of that role; its id, None when there was none."""
    for pid in sorted(processes.of(role), reverse=True):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return pid
    return None


def _sorted_out(supervisor: int, processes: Iterable[Process], python: str, spark: str) -> RoleProcesses:
    known = list(processes)
    parents = {process.parent for process in known}
    daemons = {process.pid for process in known if process.command.endswith(_DAEMON)}
    own = [process for process in known if process.parent == supervisor and " work " in process.command]
    drivers = tuple(process.pid for process in own if f"={spark}" in process.command)
    return RoleProcesses(
        worker=tuple(process.pid for process in own if f"={python}" in process.command),
        driver=drivers,
        java=tuple(one.pid for one in known if one.parent in drivers and "SparkSubmit" in one.command),
        executor=tuple(pid for pid in daemons if pid not in parents and _parent(pid, known) in daemons),
    )


def _parent(pid: int, known: list[Process]) -> int:
    return next(process.parent for process in known if process.pid == pid)
