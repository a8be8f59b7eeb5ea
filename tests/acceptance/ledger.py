"""A ledger of what jobs did, written where neither a killed worker nor a killed server can lose it.

One file, opened with O_APPEND; an entry is one write of one short line, which the kernel does not mix with others.
It takes nothing of the package, so that older versions of that can run the jobs of the tests.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "JOBRUNNER_TEST_LEDGER"
_WORDS = 6
_opened: dict[str, int] = {}
"""Descriptors by path. To open the file lets other threads run, so an entry would come that much later."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened. `at` is the monotonic clock, which all processes of a machine share."""

    event: str
    task: str
    attempt: int
    pid: int
    at: float
    note: str


def record(event: str, task: str = "-", attempt: int = 0, note: object = "-") -> None:
    """Writes an entry. Called by jobs, in whatever process they run."""
    line = f"{event} {task} {attempt} {os.getpid()} {time.monotonic()!r} {note}\n".encode()
    try:
        os.write(_opened[os.environ[VARIABLE]], line)
    except (KeyError, OSError):  # not open yet, or closed by a job
        path = os.environ[VARIABLE]
        _opened[path] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(_opened[path], line)


class Ledger:
    """The file as the test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._counts = Counter[tuple[str, int | None]]()
        path.touch()

    @property
    def end(self) -> int:
        """Its length so far, in bytes."""
        return self.path.stat().st_size

    def entries(self, event: str | None = None, since: int = 0) -> list[Entry]:
        """All entries, or those written since the ledger had that `end`, oldest first. An entry that a killed process
        wrote in part does not count."""
        with self.path.open("rb") as file:
            file.seek(since)
            text = file.read().decode()
        found = []
        for line in text.splitlines():
            words = line.split(" ", 5)
            if len(words) < _WORDS:
                continue
            word, task, attempt, pid, at, note = words
            if event in (None, word):
                found.append(Entry(word, task, int(attempt), int(pid), float(at), note))
        return found

    def count(self, event: str, pid: int | None = None) -> int:
        """How often that happened, in one process or in all. Cheap: it reads what was added since the last time."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            added = file.read()
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.decode().splitlines():
            word, _, _, by, _ = line.split(" ", 4)
            self._counts.update([(word, None), (word, int(by))])
        return self._counts[event, pid]

    def times(self, event: str) -> Counter[str]:
        """How often that happened to each task."""
        return Counter(entry.task for entry in self.entries(event))
