"""Attempts on threads: all slots take from one backlog, so a long task keeps nobody waiting behind it."""

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from jobrunner.attempt import Attempt
from jobrunner.clock import perf_counter
from jobrunner.worker.executors.handover import Finished, RunAttempt

_SHORT_S = 0.0005


class ThreadExecutor:
    """`concurrency` threads. A parked thread waits on a lock of its own; whoever adds work wakes as many as it needs.

    Tasks shorter than the cost of waking a thread are left to few threads: more would only take turns on the
    interpreter lock. When the backlog stands still all the same, `nudge` wakes another.
    """

    def __init__(self, concurrency: int, new_run: Callable[[], RunAttempt], finished: Finished) -> None:
        self._backlog: deque[Attempt] = deque()
        self._parked: deque[threading.Lock] = deque()
        self._finished = finished
        self._closed = False
        self._typical_s = 1.0
        for number in range(concurrency):
            name = f"jobrunner-slot-{number}"
            threading.Thread(target=self._work, args=(new_run,), name=name, daemon=True).start()

    @property
    def backlog(self) -> int:
        """Attempts not begun."""
        return len(self._backlog)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts and wakes threads for them."""
        self._backlog.extend(attempts)
        wanted = 1 if self._typical_s < _SHORT_S else len(attempts)
        for _ in range(min(wanted, len(self._parked))):
            self.nudge()

    def nudge(self) -> None:
        """Wakes one parked thread, if there is one."""
        with suppress(IndexError):
            self._parked.popleft().release()

    def take_back(self) -> list[Attempt]:
        """Hands back what was not begun."""
        taken = []
        try:
            while True:
                taken.append(self._backlog.popleft())
        except IndexError:
            return taken

    def close(self) -> None:
        """Lets parked threads end."""
        self._closed = True
        while self._parked:
            self.nudge()

    def _work(self, new_run: Callable[[], RunAttempt]) -> None:
        run = new_run()
        take, add = self._backlog.popleft, self._finished.add
        parking = threading.Lock()
        parking.acquire()
        while not self._closed:
            try:
                attempt = take()
            except IndexError:
                self._park(parking)
                continue
            began = perf_counter()
            outcome = run(attempt)
            add(attempt, outcome)
            self._typical_s += (perf_counter() - began - self._typical_s) * 0.05

    def _park(self, parking: threading.Lock) -> None:
        self._parked.append(parking)
        if self._backlog or self._closed:  # added before we were seen as parked
            try:
                self._parked.remove(parking)
            except ValueError:
                parking.acquire()  # someone is waking us already
            return
        parking.acquire()
