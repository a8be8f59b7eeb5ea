"""Runs attempts as coroutines on an event loop, which is replaced when a job stopped or blocks it."""

import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.outcome import Outcome
from jobrunner.worker.run.error_outcome import OnCancel, failed
from jobrunner.worker.run.event_loop import EventLoop
from jobrunner.worker.run.executor import FinishedAttempts, emptied
from jobrunner.worker.run.watchdog import Watchdog

_FAREWELL_S = 1.0


def _failed(_: Attempt, error: BaseException) -> Outcome:
    return failed(error)


class CoroutineExecutor:
    """Runs at most `concurrency` coroutines at a time. `give_up` returns the outcome of an attempt that is abandoned
    because its event loop ended or its time is over."""

    def __init__(
        self,
        concurrency: int,
        run: Callable[[Attempt, OnCancel], Awaitable[Outcome]],
        finished: FinishedAttempts,
        watch: Watchdog | None = None,
        give_up: Callable[[Attempt, BaseException], Outcome] = _failed,
    ) -> None:
        self.run = run
        self.give_up = give_up
        self._backlog: deque[Attempt] = deque()
        self._concurrency = concurrency
        self._occupied = 0
        self._finished = finished
        self._watch = watch or Watchdog()
        self._closed = False
        self._lock = threading.Lock()
        self._context = copy_context()
        self._loops = [EventLoop(self, self._watch)]
        self._loops[0].start()

    @property
    def backlog(self) -> int:
        """The number of attempts not begun."""
        return len(self._backlog)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes all attempts, or none when no event loop can be started; then it raises OSError or RuntimeError."""
        loop = self._live_loop()
        self._backlog.extend(attempts)
        loop.begin_more()

    def nudge(self) -> None:
        """Does nothing: every free slot is taken at once."""

    def problem(self) -> str:
        """Why no coroutine job goes on: one of them blocks the event loop; '' while the loop runs."""
        return self._loops[-1].problem()

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""
        return emptied(self._backlog)

    def close(self) -> None:
        """Begins nothing more, cancels running attempts, and ends the event loop soon."""
        with self._lock:
            self._closed = True
            loops = list(self._loops)
        for loop in loops:
            loop.close()
        ends = monotonic() + _FAREWELL_S
        for loop in loops:
            loop.join(max(ends - monotonic(), 0.0))
        self._watch.close()

    def take(self, loop: EventLoop) -> Attempt | None:
        """The next attempt for the current event loop."""
        with self._lock:
            if self._closed or loop is not self._loops[-1] or self._occupied >= self._concurrency or not self._backlog:
                return None
            try:
                attempt = self._backlog.popleft()
            except IndexError:  # the attempt was taken back
                return None
            self._occupied += 1
            return attempt

    def put_back(self, attempt: Attempt) -> None:
        """Returns an attempt that did not begin to the backlog."""
        self._backlog.appendleft(attempt)
        self.blocks(False)

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Takes the outcome of an attempt, and frees its slot."""
        self.blocks(False)
        self._finished.add(attempt, outcome)

    def blocks(self, is_blocked: bool) -> None:
        """Takes a slot for an abandoned attempt that still blocks a thread, or gives it back."""
        with self._lock:
            self._occupied += 1 if is_blocked else -1

    def begin_more(self) -> None:
        """Has the event loop begin attempts while slots are free."""
        with suppress(OSError, RuntimeError):  # no loop can be started: the next attempts try again
            self._live_loop().begin_more()

    def _live_loop(self) -> EventLoop:
        loop = self._loops[-1]
        if not loop.is_alive:  # no other loop could be started when it ended
            self.replace(loop)
        return self._loops[-1]

    def replace(self, loop: EventLoop) -> None:
        """Starts another event loop instead of this one. Raises OSError or RuntimeError when none can be started."""
        with self._lock:
            if not self._closed and loop is self._loops[-1]:
                another = self._context.copy().run(EventLoop, self, self._watch)
                another.start()
                self._loops = [*(one for one in self._loops if one.is_alive), another]
