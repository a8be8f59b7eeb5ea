"""Ends attempts on threads that run longer than their job's `timeout`: raises AttemptTimeout inside the job.

CPython delivers it between two bytecodes, so a call that blocks in C ends first; for a hard end run the job in a
process. The guard is armed and disarmed under a lock, so the error can hit nothing but the job it is meant for.
"""

import ctypes
import heapq
import itertools
import threading
from collections.abc import Callable

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import find
from jobrunner.outcome import Outcome
from jobrunner.worker.runner import Runner, out_of_time


class _Guard:
    def __init__(self, thread_id: int) -> None:
        self.thread_id = thread_id
        self.lock = threading.Lock()
        self.armed = True
        self.fired = False


class Deadlines:
    """One thread that watches all attempts with a timeout; it starts with the first of them."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, _Guard]] = []
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def limited(self, runner: Runner) -> Callable[[Attempt], Outcome]:
        """`runner.run` with the timeout of each attempt's job."""

        def run(attempt: Attempt) -> Outcome:
            definition = find(attempt.type)
            if definition is None or definition.options.timeout is None:
                return runner.run(attempt)
            return self._run_guarded(runner, attempt, definition.options.timeout)

        return run

    def _run_guarded(self, runner: Runner, attempt: Attempt, timeout_s: float) -> Outcome:
        guard = _Guard(threading.get_ident())
        self._watch(guard, monotonic() + timeout_s)
        try:
            outcome = runner.run(attempt)
            self._disarm(guard)
        except AttemptTimeout:  # it fell between the job's end and the disarming
            self._disarm(guard)
            definition = find(attempt.type)
            assert definition is not None
            return runner.timed_out(attempt, out_of_time(definition))
        return outcome

    def _disarm(self, guard: _Guard) -> None:
        with guard.lock:
            guard.armed = False
            if guard.fired:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(guard.thread_id), None)

    def _watch(self, guard: _Guard, ends: float) -> None:
        with self._changed:
            heapq.heappush(self._heap, (ends, next(self._order), guard))
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="jobrunner-deadlines", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _serve(self) -> None:
        while True:
            with self._changed:
                while not self._heap or self._heap[0][0] > monotonic():
                    self._changed.wait(self._heap[0][0] - monotonic() if self._heap else None)
                guard = heapq.heappop(self._heap)[2]
            with guard.lock:
                if guard.armed:
                    guard.fired = True
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(guard.thread_id), ctypes.py_object(AttemptTimeout)
                    )
