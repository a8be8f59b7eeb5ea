"""CPU time and memory of a contender's processes and all their descendants, read from /proc.

A contender's worker is the leader of a session, and all that descends from it stays in that session, also those
that make a process group of their own. Only Linux has /proc; elsewhere the figures are unknown.
"""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_FIELDS_FROM_STATE = 3


class Stat(NamedTuple):
    """The part of /proc/PID/stat that is used. `reaped_s`: CPU time of children that have ended."""

    session: int
    reaped_s: float


def parse_stat(line: str, ticks_per_s: int) -> Stat:
    """Reads a line of /proc/PID/stat, proc(5). The second field is a name that may hold anything, blanks included."""
    fields = line[line.rindex(")") + 2 :].split()
    reaped = int(fields[16 - _FIELDS_FROM_STATE]) + int(fields[17 - _FIELDS_FROM_STATE])
    return Stat(session=int(fields[6 - _FIELDS_FROM_STATE]), reaped_s=reaped / ticks_per_s)


def members(sessions: Iterable[int]) -> dict[int, Stat]:
    """The processes of these sessions by their ids; empty where there is no /proc."""
    wanted, found = set(sessions), {}
    ticks = os.sysconf("SC_CLK_TCK")
    for path in _PROC.glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            stat = parse_stat(path.read_text(errors="replace"), ticks)
            if stat.session in wanted:
                found[int(path.parent.name)] = stat
    return found


def cpu_seconds(sessions: Iterable[int]) -> float | None:
    """CPU time so far of all processes of these sessions, in user and kernel mode; None: unknown."""
    if sys.platform != "linux":
        return None
    return sum(_own_cpu(pid) + stat.reaped_s for pid, stat in members(sessions).items())


def memory_mb(sessions: Iterable[int]) -> float | None:
    """Proportional memory of all processes of these sessions, in MB of 2^20 bytes: a page that N processes share counts
    as a N-th for each of them."""
    if sys.platform != "linux":
        return None
    return sum(map(_proportional_bytes, members(sessions))) / 2**20


def _own_cpu(pid: int) -> float:
    # The number of another process's clock, made as clock_getcpuclockid(3) makes it; /proc would round to 10 ms.
    with suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def _proportional_bytes(pid: int) -> int:
    with suppress(OSError):
        for line in (_PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
