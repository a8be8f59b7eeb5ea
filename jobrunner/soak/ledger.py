"""The ledger of a soak, a file that neither a killed worker nor a killed server can lose, and its summary.

Every process opens the file with O_APPEND. One write has one or several short lines, which the kernel does not mix with
those of other processes, so the order in the file is the order of the writes.
"""

import os
from bisect import insort
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jobrunner.clock import monotonic

KEEP_S = 5
"""Seconds that the result of a task is kept."""
_WORDS = 6
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """One event. `at` is the monotonic clock, which all processes of a machine share."""

    event: str
    task: str
    attempt: int
    pid: int
    at: float
    note: str


def line_of(event: str, task: str = "-", attempt: int = 0, note: object = "-") -> str:
    """A line for an event in this process, now."""
    return f"{event} {task} {attempt} {os.getpid()} {monotonic()!r} {note}\n"


def write(path: str | os.PathLike[str], lines: Iterable[str]) -> None:
    """Adds entries in one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, "".join(lines).encode())
    finally:
        os.close(descriptor)


def entry_of(line: str) -> LedgerEntry | None:
    """The entry of a line; None for an incomplete line."""
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
        """Yields the entries added since the last call, in the order in which they were written."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            while added := file.read(_PIECE):
                whole = added[: added.rfind(b"\n") + 1]
                if not whole:
                    return
                self._read += len(whole)
                file.seek(self._read)
                yield from (entry for line in whole.decode().splitlines() if (entry := entry_of(line)))


_FORGOTTEN_S = 300.0
_DOOMED = "SoakDoomed"


@dataclass(slots=True)
class KnownTask:
    """The state of one task according to the ledger."""

    kind: str = ""
    due_at: float = 0.0
    first_at: float = 0.0
    pid: int = 0
    """Of its last start."""
    starts: int = 0
    attempt: int = 0
    """Of its last start."""
    has_failed: bool = False
    """Whether that attempt failed on purpose."""
    excused: int = 0
    """Extra starts that a fault explains; each may also have an end."""
    ends: int = 0
    ended_at: float = 0.0
    acked_at: float = 0.0
    """Time of the acknowledgement; 0 without one."""

    def is_forgotten(self, now: float) -> bool:
        """Whether the enqueue call was open so long after the task's end that the server had forgotten the task: sent
        again under the same id, it is a new task."""
        return self.ends > 0 and (self.acked_at or now) - self.ended_at >= KEEP_S


class Excuses:
    """The times at which faults may have made leases of processes expire."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float, frozenset[int] | None]] = []

    def add(self, pids: Collection[int] | None, since: float, until: float) -> None:
        """Excuses these processes, or all, from `since` to `until`, which may be in the future."""
        insort(self._spans, (since, until, None if pids is None else frozenset(pids)), key=lambda span: span[0])

    def excuse(self, pids: Collection[int], since: float, until: float) -> bool:
        """Whether a fault struck one of the processes between these instants."""
        return any(
            began <= until and ended >= since and (struck is None or not struck.isdisjoint(pids))
            for began, ended, struck in reversed(self._spans)
        )


@dataclass(slots=True)
class Totals:
    """Counts of a run."""

    offered: int = 0
    acked: int = 0
    acked_doomed: int = 0
    finished: int = 0
    retries: int = 0
    extra: int = 0
    extra_unexcused: int = 0
    ended_again_unexcused: int = 0
    unknown: int = 0
    refused: int = 0
    offered_doomed: int = 0
    wrong: list[str] = field(default_factory=list)
    """Descriptions of some events that no fault excuses."""


class LedgerSummary:
    """Sums up entries; `totals`, `open` and `ticks` can be read at any time."""

    def __init__(self, excuses: Excuses) -> None:
        self.totals = Totals()
        self.open: dict[str, KnownTask] = {}
        """Acknowledged, unfinished tasks by id, roughly oldest first; without tasks that should die."""
        self.ticks: dict[str, set[str]] = {}
        """Ids of the ticks that ran, by job name."""
        self.waits: deque[tuple[float, float]] = deque(maxlen=20_000)
        """The first start of each task, and its delay after the due time."""
        self._excuses = excuses
        self._known: dict[str, KnownTask] = {}
        self._settled: deque[tuple[float, str]] = deque()

    def take(self, entries: Iterable[LedgerEntry]) -> None:
        """Adds entries in the order in which they were written."""
        last_at = 0.0
        for entry in entries:
            last_at = entry.at
            match entry.event:
                case "offer":
                    self._offer(entry)
                case "ack":
                    self._ack(entry)
                case "start":
                    self._start(entry)
                case "fail":
                    self._fail(entry)
                case "end":
                    self._end(entry)
                case "tick":
                    self.ticks.setdefault(entry.note, set()).add(entry.task)
                case "refused":
                    self.totals.refused += 1
        self._forget(last_at - _FORGOTTEN_S)

    def oldest_s(self, now: float) -> float:
        """For how long the oldest open task has been due; 0 when no task is open."""
        return max((now - known.due_at for known in self.open.values() if known.due_at < now), default=0.0)

    def _offer(self, entry: LedgerEntry) -> None:
        kind, _, delay_s = entry.note.partition(" ")
        self._known[entry.task] = KnownTask(kind, due_at=entry.at + float(delay_s))
        self.totals.offered += 1
        self.totals.offered_doomed += kind == _DOOMED

    def _ack(self, entry: LedgerEntry) -> None:
        known = self._known.get(entry.task)
        if known is None or known.acked_at:
            return  # a unique task that existed already
        known.acked_at = entry.at
        self.totals.acked += 1
        if known.kind == _DOOMED:
            self.totals.acked_doomed += 1
        elif not known.ends:
            self.open[entry.task] = known

    def _start(self, entry: LedgerEntry) -> None:
        known = self._known.get(entry.task)
        if known is None:
            self.totals.unknown += 1
            self._note_wrong(f"{entry.task} began, and was never offered or had ended long before")
            known = self._known[entry.task] = KnownTask(due_at=entry.at)
        if known.starts and not known.has_failed:
            self.totals.extra += 1
            if known.is_forgotten(entry.at) or self._excuses.excuse((known.pid, entry.pid), known.first_at, entry.at):
                known.excused += 1
            else:
                self.totals.extra_unexcused += 1
                self._note_wrong(f"{entry.task} began again in attempt {entry.attempt} after {known.starts} starts")
        elif known.starts:
            self.totals.retries += 1
        else:
            known.first_at = entry.at
            self.waits.append((entry.at, max(entry.at - known.due_at, 0.0)))
        known.starts += 1
        known.pid, known.attempt, known.has_failed = entry.pid, entry.attempt, False

    def _fail(self, entry: LedgerEntry) -> None:
        known = self._known.get(entry.task)
        if known is not None:
            known.has_failed |= entry.attempt == known.attempt
            if known.kind == _DOOMED:
                self._settled.append((entry.at, entry.task))

    def _end(self, entry: LedgerEntry) -> None:
        known = self._known.get(entry.task)
        if known is None:
            return
        known.ends += 1
        known.ended_at = entry.at
        if known.ends > 1:
            if known.ends > 1 + known.excused:
                self.totals.ended_again_unexcused += 1
                self._note_wrong(f"{entry.task} finished {known.ends} times")
            return
        self.totals.finished += 1
        self.open.pop(entry.task, None)
        self._settled.append((entry.at, entry.task))

    def _note_wrong(self, told: str) -> None:
        if len(self.totals.wrong) < 10:
            self.totals.wrong.append(told)

    def _forget(self, before: float) -> None:
        while self._settled and self._settled[0][0] < before:
            self._known.pop(self._settled.popleft()[1], None)
