"""Finds the processes that another one has started: a Spark driver's Java, and the Pythons of its executor."""

import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A running process; `command` is its command line."""

    pid: int
    parent: int
    command: str


def descendants(pid: int) -> list[Process]:
    """The children of a process, their children, and so on; parents come before their children."""
    children = defaultdict(list)
    for process in running():
        children[process.parent].append(process)
    found: list[Process] = []
    level = children[pid]
    while level:
        found += level
        level = [child for process in level for child in children[process.pid]]
    return found


def running() -> Iterable[Process]:
    """Every process of this machine that can be seen; those that are dead but not yet waited for are left out."""
    return _from_proc() if (_PROC / "self" / "stat").exists() else _from_ps()


def kill_all(processes: Iterable[Process]) -> None:
    """kill -9 of those that still run and are still the same."""
    alive = {process.pid: process.command for process in running()}
    for process in processes:
        if alive.get(process.pid) == process.command:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def _from_proc() -> Iterable[Process]:
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it ended meanwhile
                # "pid (name) state parent ...", where the name may hold anything, brackets too
                state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if state != "Z":
                    yield Process(pid=int(folder.name), parent=int(parent), command=" ".join(words).strip())


def _from_ps() -> Iterable[Process]:
    shown = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,stat=,command="],  # noqa: S607 - where it is differs
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for line in shown.splitlines():
        pid, parent, state, command = (*line.split(maxsplit=3), "")[:4]
        if not state.startswith("Z"):
            yield Process(pid=int(pid), parent=int(parent), command=command)
