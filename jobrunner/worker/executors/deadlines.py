"""Ends attempts on threads that run longer than their job's `timeout`: raises AttemptTimeout inside the job.

CPython delivers it between two bytecodes, so a call that blocks in C ends first; for a hard end run the job in a
process. Arming, firing and disarming take one lock, so the error can hit nothing but the job it is meant for.
"""

import ctypes
import math
import threading

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition, definition_for
from jobrunner.loop import Signal
from jobrunner.outcome import Outcome
from jobrunner.worker.executors.handover import RunAttempt
from jobrunner.worker.runner import Runner
from jobrunner.worker.verdict import out_of_time


class _Guard:
    def __init__(self, timeout_s: float) -> None:
        self.thread_id = ctypes.c_ulong(threading.get_ident())
        self.ends = monotonic() + timeout_s
        self.fired = False


class Deadlines:
    """Runs attempts on threads. One more thread watches those with a timeout; it starts with the first of them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._guards: set[_Guard] = set()
        self._soonest = math.inf
        # Not a Condition: its enter is Python code, and the error could fall into it and leave it locked.
        self._lock = threading.Lock()
        self._changed = Signal()
        self._thread: threading.Thread | None = None
        self._closed = False

    def new_run(self) -> RunAttempt:
        """Runs an attempt in the calling thread, within the timeout of its job."""
        return self._run

    def close(self) -> None:
        """Lets the watching thread end; jobs on threads cannot be ended."""
        self._closed = True
        self._changed.set()

    def _run(self, attempt: Attempt) -> Outcome:
        definition = definition_for(attempt)
        if definition is None or definition.options.timeout is None:
            return self._runner.run(attempt, definition)
        return self._run_guarded(attempt, definition, definition.options.timeout)

    def _run_guarded(self, attempt: Attempt, definition: Definition, timeout_s: float) -> Outcome:
        guard = _Guard(timeout_s)
        self._arm(guard)
        try:
            outcome = self._runner.run(attempt, definition)
            self._disarm(guard)
        except AttemptTimeout:  # it fell between the job's end and the disarming
            self._disarm(guard)
            return self._runner.timed_out(attempt, out_of_time(definition))
        return outcome

    def _arm(self, guard: _Guard) -> None:
        with self._lock:
            self._guards.add(guard)
            sooner = guard.ends < self._soonest
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="jobrunner-deadlines", daemon=True)
                self._thread.start()
        if sooner:
            self._changed.set()

    def _disarm(self, guard: _Guard) -> None:
        with self._lock:
            self._guards.discard(guard)
            if guard.fired:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(guard.thread_id, None)

    def _watch(self) -> None:
        while not self._closed:
            self._changed.wait(self._fire_due())

    def _fire_due(self) -> float:
        """Ends what is out of time; returns the seconds until something can be."""
        with self._lock:
            now = monotonic()
            for guard in [guard for guard in self._guards if guard.ends <= now]:
                guard.fired = True
                self._guards.discard(guard)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(guard.thread_id, ctypes.py_object(AttemptTimeout))
            self._soonest = min((guard.ends for guard in self._guards), default=math.inf)
            return self._soonest - now
