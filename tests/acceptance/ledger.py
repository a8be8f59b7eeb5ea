"""What jobs did, written where neither a killed worker nor a killed server can lose it.

One file, opened with O_APPEND; an entry is one write of one short line, which the kernel does not mix with others.
"""

import os
from collections import Counter
from pathlib import Path

from jobrunner.soak.ledger import Entry, entry_of, line_of, write

VARIABLE = "JOBRUNNER_TEST_LEDGER"


def record(event: str, task: str = "-", attempt: int = 0, note: object = "-") -> None:
    """Writes an entry. Called by jobs, in whatever process they run."""
    write(os.environ[VARIABLE], [line_of(event, task, attempt, note)])


class Ledger:
    """The file as the test reads it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        self._counts = Counter[tuple[str, int | None]]()
        path.touch()

    def entries(self, event: str | None = None) -> list[Entry]:
        """What happened, oldest first. A process that was killed in the middle of a word has not said it."""
        every = filter(None, map(entry_of, self.path.read_text().splitlines()))
        return [entry for entry in every if event in (None, entry.event)]

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
