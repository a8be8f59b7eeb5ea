"""Finds and kills the processes that a dead worker leaves behind.

They would go on with a job while it runs again elsewhere. After the worker's death they have another parent, so they
are recognised by inherited marks: an environment variable (programs that were executed) or the mapping of the shared
memory of lease_keeper/keeper_link.py (processes that were only forked). The worker sets the variable for the processes
of its slots. A process that runs only a worker sets it for all its children, so processes started by jobs are found as
well. A process that a job detached on purpose, into a session of its own, is left alone.
"""

import os
import secrets
import select
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from jobrunner.clock import monotonic

VARIABLE = "JOBRUNNER_PROCESS"
_KEEPER = b"jobrunner.worker.lease_keeper.keeper_process"
_OVER = "ZX"
_SESSION_FIELD = 3
"""The fields after the name in /proc/PID/stat: state, parent, process group, session."""
_own: dict[int, str] = {}


def name_of_this() -> str:
    """The name of this process, which its children inherit."""
    pid = os.getpid()
    if pid not in _own:
        _own.clear()
        _own[pid] = f"jobrunner-{pid}-{secrets.token_hex(4)}"
    return _own[pid]


def claim_children() -> None:
    """Marks all processes that this process starts from now on as parts of its jobs."""
    os.environ[VARIABLE] = name_of_this()


def claims_children() -> bool:
    """Whether this process called `claim_children`."""
    return os.environ.get(VARIABLE) == name_of_this()


def environment_of_child() -> dict[str, str]:
    """The environment for a process that ends with this one."""
    return {**os.environ, VARIABLE: name_of_this()}


def environment_of_others() -> dict[str, str]:
    """The environment for a process that outlives this one."""
    return {name: word for name, word in os.environ.items() if name != VARIABLE}


def end_all_of(name: str, within_s: float, *, forked: bool) -> bool:
    """Kills the processes that the dead process `name` left in the session of the caller, until there are none; with
    `forked` also processes that were only forked. Returns whether all ended in time. Does nothing on a system without
    /proc."""
    ends = monotonic() + within_s
    while found := _find(name, forked=forked):
        for pid in found:
            _kill(pid, partial(_is_of, pid, name, forked=forked), max(ends - monotonic(), 0.0))
        if monotonic() >= ends:
            return not _find(name, forked=forked)
    return True


def is_suspended(pid: int) -> bool:
    """Whether a process is stopped or dead, and so cannot finish its work."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        state = stat.rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return True
        import subprocess  # a system without /proc

        shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S603, S607
        state = shown.stdout.strip()[:1] or "X"
    return state in "TtZX"


def _find(name: str, *, forked: bool) -> list[int]:
    try:
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    except OSError:
        return []
    return [pid for pid in pids if pid != os.getpid() and _is_of(pid, name, forked=forked)]


def _is_of(pid: int, name: str, *, forked: bool) -> bool:
    folder = Path(f"/proc/{pid}")
    try:
        state, *fields = (folder / "stat").read_text().rpartition(")")[2].split()
        if state in _OVER or int(fields[_SESSION_FIELD - 1]) != os.getsid(0):
            return False
        if f"{VARIABLE}={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
            return True
        is_forked = forked and name.encode() in (folder / "maps").read_bytes()
        return is_forked and _KEEPER not in (folder / "cmdline").read_bytes()
    except (OSError, ValueError, IndexError):
        return False


def _kill(pid: int, is_it: Callable[[], bool], within_s: float) -> None:
    """Kills a process by a descriptor, as its id may belong to another process by now; waits for its end."""
    try:
        process = os.pidfd_open(pid)
    except (AttributeError, OSError):
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        return
    try:
        if is_it():
            with suppress(OSError):
                signal.pidfd_send_signal(process, signal.SIGKILL)
            gone = select.poll()
            gone.register(process, select.POLLIN)
            gone.poll(within_s * 1000)
    finally:
        os.close(process)
