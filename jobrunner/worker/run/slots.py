"""The way of attempts from the fetcher to an executor and of outcomes back. Lock-free: deques are atomic.

`DispatchingExecutor` is one executor out of two: jobs whose `run` is a coroutine go to the event loop, the others to
threads.
"""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from jobrunner.attempt import Attempt
from jobrunner.jobs.registry import definition_for
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

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._reports: deque[Report] = deque()
        self.wake = wake
        self._is_told = False
        self.notify_at = 1

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Called by executors."""
        self._reports.append((attempt, outcome))
        if not self._is_told and len(self._reports) >= self.notify_at:
            self._is_told = True
            self.wake()

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


class DispatchingExecutor:
    """Hands each attempt to the executor of its job or station. The event loop starts with the first coroutine job."""

    def __init__(self, plain: Executor, new_coroutines: Callable[[], Executor]) -> None:
        self._plain = plain
        self._new_coroutines = new_coroutines
        self._coroutines: Executor | None = None

    @property
    def backlog(self) -> int:
        """Attempts not begun."""
        return self._plain.backlog + (self._coroutines.backlog if self._coroutines is not None else 0)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, in order within each kind."""
        waiting_for_loop = [attempt for attempt in attempts if _is_async(attempt)]
        if not waiting_for_loop:
            self._plain.submit(attempts)
            return
        if self._coroutines is None:
            self._coroutines = self._new_coroutines()
        self._coroutines.submit(waiting_for_loop)
        if len(waiting_for_loop) < len(attempts):
            self._plain.submit([attempt for attempt in attempts if not _is_async(attempt)])

    def nudge(self) -> None:
        """Puts more slots to work."""
        self._plain.nudge()

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""
        taken = self._plain.take_back()
        return taken if self._coroutines is None else taken + self._coroutines.take_back()

    def close(self) -> None:
        """Begins nothing more."""
        self._plain.close()
        if self._coroutines is not None:
            self._coroutines.close()


def _is_async(attempt: Attempt) -> bool:
    definition = definition_for(attempt)
    return definition is not None and definition.is_async
