"""Attempts in processes: for CPU-bound jobs and for timeouts that nothing can resist.

A slot is a thread of the worker with a child process of its own. The child is started once and used for many
attempts; it is killed when an attempt runs out of time, or when it takes too much memory after one, and replaced when
it died. A crash costs the attempt it ran and no other.
"""

import threading
from collections.abc import Callable
from functools import partial

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptCrashed
from jobrunner.jobs.registry import definition_for, timeout_of
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints
from jobrunner.observers import current_traceparent
from jobrunner.outcome import Outcome, Released
from jobrunner.redaction import names_hidden_in_errors
from jobrunner.worker.recycling import MIB
from jobrunner.worker.run.child import read_outcome, write_attempt
from jobrunner.worker.run.child_process import ChildProcess, NotTakenError
from jobrunner.worker.run.error_outcome import out_of_time
from jobrunner.worker.run.executor import CANNOT_START, START_HINT, RunAttempt
from jobrunner.worker.run.runner import Begin, Runner, nothing

_log = SafeLogger("jobrunner.processes")
_START_S = 30.0
_SLOW_HINT = "it is waited for: the machine is overloaded, or the modules of the jobs take long to import"
_BROKEN_HINT = "it tries again; mend what it imports, or restart the worker when its code was changed"
_LATE_S = 1.0
_NO_CHILD_PAUSE_S = 1.0
"""Before a task for which no process could be started goes back, and the slot takes the next."""


class ProcessSlots:
    """The slots of one executor. `greeting` is the first message to each child; one that has more than `max_memory`
    bytes after an attempt is replaced (0: no limit)."""

    def __init__(
        self, greeting: bytes, runner: Runner, is_stopped: Callable[[str], bool], max_memory: int = 0,
        begin: Begin = nothing,
    ) -> None:  # fmt: skip
        self._new_slot = partial(ProcessSlot, greeting, runner, is_stopped, max_memory, begin, ChildStarts())
        self._slots: list[ProcessSlot] = []

    def new_run(self) -> RunAttempt:
        """Runs an attempt in the child of a new slot."""
        slot = self._new_slot()
        self._slots.append(slot)
        return slot.run

    def end(self, run: RunAttempt) -> None:
        """Kills the child of a slot that is not used any more."""
        for slot in [slot for slot in list(self._slots) if slot.run == run]:
            self._slots.remove(slot)
            slot.close()

    def close(self) -> None:
        """Kills the children; attempts they ran are handed back."""
        for slot in list(self._slots):
            slot.close()


class ChildStarts:
    """State of the starts of children, shared by the slots of an executor."""

    def __init__(self) -> None:
        self.complaints = Complaints()
        self.has_worked = False
        """Whether any child has loaded the modules. When a later child cannot, the code of the modules has changed."""


class ProcessSlot:
    """Runs one attempt after the other in a child. Called by one thread, but for `close`."""

    def __init__(
        self, greeting: bytes, runner: Runner, is_stopped: Callable[[str], bool], max_memory: int, begin: Begin,
        starts: ChildStarts,
    ) -> None:  # fmt: skip
        self._greeting = greeting
        self._runner = runner
        self._is_stopped = is_stopped
        self._max_memory = max_memory
        self._begin = begin
        self._starts = starts
        self._child: ChildProcess | None = None
        self._lock = threading.Lock()
        self._running = False
        self._closing = threading.Event()

    def run(self, attempt: Attempt) -> Outcome:
        """The outcome of an attempt, whatever becomes of the child."""
        with self._lock:
            if self._closing.is_set():
                return Released()
            self._running = True
        try:
            outcome = self._run(attempt)
            self._end_large_child()
            return outcome
        finally:
            with self._lock:
                self._running = False
            if self._closing.is_set():
                self._end_child()

    def close(self) -> None:
        """Kills the child. The thread in `run`, if there is one, sees that and cleans up."""
        with self._lock:
            self._closing.set()
            if self._child is not None:
                self._child.kill()
            running = self._running
        if not running:
            self._end_child()

    def _run(self, attempt: Attempt) -> Outcome:
        definition = definition_for(attempt)
        timeout_s = None if definition is None else timeout_of(attempt, definition)
        if timeout_s is not None and definition is not None and definition.is_async:
            timeout_s += _LATE_S  # a coroutine is cancelled in its child, and may clean up
        try:
            return self._answer(attempt, timeout_s)
        except _NoChildError as error:
            if not self._closing.is_set() and self._starts.complaints.may_tell(CANNOT_START):
                _log.error(CANNOT_START, error=str(error), hint=error.hint)
            self._closing.wait(_NO_CHILD_PAUSE_S)
            return Released()
        except TimeoutError:
            self._end_child()
            assert definition is not None
            return self._runner.timed_out(attempt, out_of_time(attempt, definition))
        except EOFError as error:
            how = str(error) or self._end_child()
            if self._closing.is_set():
                return Released()
            return self._runner.timed_out(attempt, AttemptCrashed(f"the process of the attempt {how}"))

    def _answer(self, attempt: Attempt, timeout_s: float | None) -> Outcome:
        try:
            return self._exchange(attempt, timeout_s)
        except NotTakenError:  # the child died before it began the attempt: another one may
            if self._closing.is_set():
                raise
            self._end_child()
            return self._exchange(attempt, timeout_s)

    def _exchange(self, attempt: Attempt, timeout_s: float | None) -> Outcome:
        child = self._ready_child()
        self._begin(attempt)
        hidden = names_hidden_in_errors()
        message = write_attempt(attempt, current_traceparent(), None if child.hidden == hidden else hidden)
        child.hidden = hidden
        read = partial(_read_answer, attempt=attempt)
        outcome: Outcome = child.exchange(message, timeout_s, read, lambda: self._pass_on_stop(child, attempt))
        return outcome

    def _pass_on_stop(self, child: ChildProcess, attempt: Attempt) -> None:
        if self._is_stopped(attempt.token):
            child.stop(attempt.token)

    def _ready_child(self) -> ChildProcess:
        if self._child is not None and self._child.has_ended:
            self._end_child()
        with self._lock:
            if self._closing.is_set():
                raise EOFError
            if self._child is not None and self._child.is_ready:
                return self._child
            try:
                child = self._child = self._child or ChildProcess()
            except OSError as error:  # no descriptor, no process or no memory is free
                raise _NoChildError(f"no process can be started: {error}", START_HINT) from error
        try:
            complaint = child.greet(self._greeting, _START_S)
        except TimeoutError as error:  # it is kept: a new one would have to load all modules anew
            raise _NoChildError(f"a process did not start within {_START_S:g} s", _SLOW_HINT) from error
        except EOFError as error:
            how = self._end_child()
            raise _NoChildError(f"a process {how} as it started", _BROKEN_HINT) from error
        if not complaint:
            self._starts.has_worked = True
            return child
        self._end_child()
        what = f"cannot start: {complaint.decode('utf-8', 'replace')}"
        if self._starts.has_worked:
            raise _NoChildError(f"a process {what}", _BROKEN_HINT)
        raise EOFError(what)  # the worker was set up so, and would hand back its tasks for ever

    def _end_large_child(self) -> None:
        child = self._child
        if not self._max_memory or child is None or (taken := child.resident_bytes) <= self._max_memory:
            return
        _log.info("child is replaced for its memory", memory_mib=round(taken / MIB))
        child.kill()
        self._end_child()

    def _end_child(self) -> str:
        with self._lock:
            child, self._child = self._child, None
        return "was killed" if child is None else child.end()


def _read_answer(raw: bytes, attempt: Attempt) -> Outcome | None:
    outcome = read_outcome(raw, attempt.token)
    if outcome is None:
        _log.warning("the answer of a fork of a job is ignored", task=attempt.id, job=attempt.type)
    return outcome


class _NoChildError(Exception):
    """No process starts now, not in time, or not to its end, as with a module that cannot be imported any more, after
    a deploy into the folder of the worker. The attempt has not begun."""

    def __init__(self, reason: str, hint: str) -> None:
        super().__init__(reason)
        self.hint = hint
