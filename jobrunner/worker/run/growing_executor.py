"""An executor whose threads follow the load, between `min_concurrency` and `concurrency`.

`ThreadExecutor` starts all its threads at once and keeps them; so does a worker without `min_concurrency`.
"""

import threading

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.worker.run.executor import SHORT_S, FinishedAttempts, RunAttempt, Slots, ThreadExecutor

_IDLE_S = 60.0
"""A thread that had nothing to do for so long ends, and its child process with it."""
_SLOWLY_S = 0.05
"""Behind short tasks one thread more starts in this time: they only take turns on the interpreter lock."""


class GrowingExecutor(ThreadExecutor):
    """`least` threads, and up to `most` while attempts wait for one.

    The thread that parked last is woken first, so those that are not needed stay parked until they end. Invariant: no
    thread ends while an attempt waits, and at least `least` of them stay.
    """

    def __init__(self, least: int, most: int, slots: Slots, finished: FinishedAttempts) -> None:
        self._least = least
        self._most = most
        self._grew_at = 0.0
        self._counting = threading.Lock()
        self.threads = 0
        """How many there are now."""
        super().__init__(least, slots, finished)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, wakes threads for them and starts those that are missing."""
        missing = len(attempts) - len(self._parked)
        super().submit(attempts)
        if self._typical_s >= SHORT_S:
            for _ in range(missing):
                if not self._grow():
                    return

    def nudge(self) -> None:
        """Wakes the thread that parked last, or starts one more."""
        try:
            self._parked.pop().release()
        except IndexError:
            if self._backlog and (self._typical_s >= SHORT_S or monotonic() - self._grew_at >= _SLOWLY_S):
                self._grow()

    def _start_thread(self) -> None:
        self.threads += 1
        super()._start_thread()

    def _grow(self) -> bool:
        with self._counting:
            if self._closed or self.threads >= self._most:
                return False
            self._grew_at = monotonic()
            try:
                self._start_thread()
            except RuntimeError:  # a limit of the system on threads: those that there are do the work
                self.threads -= 1
                return False
            return True

    def _waits_on(self, parking: threading.Lock, run: RunAttempt) -> bool:
        if parking.acquire(timeout=_IDLE_S):
            return True
        with self._counting:
            ends = self.threads > self._least and not self._backlog
            if ends:
                try:
                    self._parked.remove(parking)
                except ValueError:  # another thread is waking this one
                    ends = False
                else:
                    if self._backlog:  # added before this one was seen as gone
                        return True
                    self.threads -= 1
        if not ends:
            parking.acquire()  # as long as it takes: it is one of those that stay
            return True
        self._slots.end(run)
        return False
