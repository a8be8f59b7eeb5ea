"""The way of attempts from the fetcher to an executor and of outcomes back. Lock-free: deques are atomic."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobrunner.attempt import Attempt
from jobrunner.outcome import Outcome
from jobrunner.worker.report.reports import Report

RunAttempt = Callable[[Attempt], Outcome]


class Slots(Protocol):
    """Makes the functions with which the threads of an executor run attempts."""

    def new_run(self) -> RunAttempt:
        """The function of one more thread."""

    def close(self) -> None:
        """Ends what can be ended; an attempt that was is handed back."""


class FinishedAttempts:
    """Outcomes on their way back. Wakes the fetcher as soon as `notify_at` of them wait, not before: with work in
    stock a turn of the fetcher for each task would cost more than the tasks."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._reports: deque[Report] = deque()
        self._wake = wake
        self._is_told = False
        self.notify_at = 1

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Called by executors."""
        self._reports.append((attempt, outcome))
        if not self._is_told and len(self._reports) >= self.notify_at:
            self._is_told = True
            self._wake()

    def add_all(self, attempts: list[Attempt], outcome: Outcome) -> None:
        """Called by the fetcher: these ended alike."""
        self._reports.extend((attempt, outcome) for attempt in attempts)

    def drain(self) -> list[Report]:
        """All outcomes so far, called by the fetcher."""
        self._is_told = False  # first: what is added from here on may wake the fetcher again
        reports = []
        take = self._reports.popleft
        try:
            while True:
                reports.append(take())
        except IndexError:
            return reports

    def __len__(self) -> int:
        return len(self._reports)


class Executor(Protocol):
    """Runs attempts. `backlog` counts those that were submitted and not begun."""

    @property
    def backlog(self) -> int: ...

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, in order."""

    def nudge(self) -> None:
        """Called when backlog stands still: puts more slots to work."""

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""

    def close(self) -> None:
        """Begins nothing more and ends what runs, where it can be ended: coroutines and processes, not threads."""


def emptied(backlog: deque[Attempt]) -> list[Attempt]:
    """Empties a backlog, oldest attempt first, also while threads take from it."""
    taken = []
    try:
        while True:
            taken.append(backlog.popleft())
    except IndexError:
        return taken
