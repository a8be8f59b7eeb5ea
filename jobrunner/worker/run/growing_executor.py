"""An executor whose threads follow the load, between `min_concurrency` and `concurrency`.

`ThreadExecutor` starts all its threads at once and keeps them; so does a worker without `min_concurrency`.
"""

import threading

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.worker.run.executor import SHORT_S, FinishedAttempts, RunAttempt, Slots, ThreadExecutor

_IDLE_S = 60.0
"""How long a thread may be idle before it ends, and its child process with it."""
_SLOWLY_S = 0.05
"""The least interval between starts of threads for short tasks: these only take turns on the interpreter lock."""


class GrowingExecutor(ThreadExecutor):
    """Runs `least` threads, and up to `most` while attempts wait for a thread.

    The thread that parked last is woken first, so threads that are not needed stay parked until they end. Invariant: no
    thread ends while an attempt waits, and at least `least` threads stay.
    """

    def __init__(self, least: int, most: int, slots: Slots, finished: FinishedAttempts) -> None:
        self._least = least
        self._most = most
        self._grew_at = 0.0
        self._counting = threading.Lock()
        self.threads = 0
        """The present number of threads."""
        super().__init__(least, slots, finished)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, wakes threads for them and starts missing threads."""
        missing = len(attempts) - len(self._parked)
        super().submit(attempts)
        if self._typical_s >= SHORT_S:
            for _ in range(missing):
                if not self._grow():
                    return

    def nudge(self) -> None:
        """Wakes the thread that parked last, or starts one more thread."""
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
            except RuntimeError:  # the system allows no more threads: the present threads do the work
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
                    if self._backlog:  # added before this thread counted as gone
                        return True
                    self.threads -= 1
        if not ends:
            parking.acquire()  # without a limit: it is one of the `least` threads
            return True
        self._slots.end(run)
        return False
