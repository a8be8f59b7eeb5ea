"""What happened, written where neither a killed worker nor a killed server can lose it.

One file, opened with O_APPEND by every process. An entry is one write of one short line, or of several: the kernel
mixes none with others', so their order in the file is the order in which they were written.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jobrunner.clock import monotonic

_WORDS = 6
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One thing that happened. `at` is the monotonic clock, which all processes of a machine share."""

    event: str
    task: str
    attempt: int
    pid: int
    at: float
    note: str


def line_of(event: str, task: str = "-", attempt: int = 0, note: object = "-") -> str:
    """An entry of this process, now."""
    return f"{event} {task} {attempt} {os.getpid()} {monotonic()!r} {note}\n"


def write(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Adds entries in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, "".join(lines).encode())
    finally:
        os.close(descriptor)


def entry_of(line: str) -> LedgerEntry | None:
    """The entry of a line; None for what is no whole one."""
    words = line.split(" ", _WORDS - 1)
    if len(words) < _WORDS:
        return None
    event, task, attempt, pid, at, note = words
    return LedgerEntry(event, task, int(attempt), int(pid), float(at), note)


class LedgerTail:
    """Reads a ledger while it grows: each entry once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        path.touch()

    def new(self) -> Iterator[LedgerEntry]:
        """What was added since the last time, in the order in which it was written."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            while added := file.read(_PIECE):
                whole = added[: added.rfind(b"\n") + 1]
                if not whole:
                    return
                self._read += len(whole)
                file.seek(self._read)
                yield from (entry for line in whole.decode().splitlines() if (entry := entry_of(line)))
