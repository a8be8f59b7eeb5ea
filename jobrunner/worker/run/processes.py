"""Attempts in processes: for CPU-bound jobs and for timeouts that nothing can resist.

A slot is a thread of the worker with a child process of its own. The child is started once and used for many
attempts; it is killed when an attempt runs out of time, or when it takes too much memory after one, and replaced when
it died. A crash costs the attempt it ran and no other.
"""

import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptCrashed
from jobrunner.jobs.registry import definition_for, timeout_of
from jobrunner.logs import SafeLogger
from jobrunner.loop import Complaints
from jobrunner.observers import current_traceparent
from jobrunner.outcome import Outcome, Released
from jobrunner.redaction import names_hidden_in_errors
from jobrunner.worker.child_processes import environment_of_child
from jobrunner.worker.recycling import MIB, resident_bytes
from jobrunner.worker.run.child import PIECE, frame, lacks, read_outcome, unframed, write_attempt
from jobrunner.worker.run.error_outcome import out_of_time
from jobrunner.worker.run.executor import CANNOT_START, START_HINT, RunAttempt
from jobrunner.worker.run.runner import Begin, Runner, nothing

_log = SafeLogger("jobrunner.processes")
_START_S = 30.0
_SLOW_HINT = "it is waited for: the machine is overloaded, or the modules of the jobs take long to import"
_BROKEN_HINT = "it tries again; mend what it imports, or restart the worker when its code was changed"
_LOOK_S = 0.25
_LATE_S = 1.0
_LAST_WORDS_S = 0.2
_NO_CHILD_PAUSE_S = 1.0
"""Before a task for which no process could be started goes back, and the slot takes the next."""
_SMALL = 4096
"""Bytes of a message that the socket takes at once, whether the child reads or not."""


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
        except _NotTakenError:  # the child died before it began the attempt: another one may
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

    def _pass_on_stop(self, child: "ChildProcess", attempt: Attempt) -> None:
        if self._is_stopped(attempt.token):
            child.stop(attempt.token)

    def _ready_child(self) -> "ChildProcess":
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


class _NotTakenError(EOFError):
    """The child died before it had read the whole message."""


class ChildProcess:
    """One child, the socket to it, and the pipe that ends it when this process ends."""

    def __init__(self) -> None:
        self.is_ready = False
        """Whether it has answered the greeting."""
        self.hidden: tuple[str, ...] | None = None
        """The names that it was told to hide in errors."""
        self._is_greeted = False
        self._stop_sent = ""
        self._received = bytearray()
        self._timeout_s: float | None = None
        self._socket, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "jobrunner.worker.run.child", str(theirs.fileno()), str(lifeline)]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                command, pass_fds=(theirs.fileno(), lifeline), stdin=subprocess.DEVNULL, env=environment_of_child()
            )
        except BaseException:
            self._socket.close()
            os.close(self._lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)

    def greet(self, greeting: bytes, timeout_s: float) -> bytes:
        """Sends the greeting with the first call, and waits for the answer: why the child cannot work, or b"".

        Raises as `exchange`; after a TimeoutError it may be called again."""
        message, self._is_greeted = None if self._is_greeted else greeting, True
        answer: bytes = self.exchange(message, timeout_s, bytes)
        self.is_ready = True
        return answer

    def exchange(
        self, message: bytes | None, timeout_s: float | None, read: Callable[[bytes], Any],
        look: Callable[[], object] = lambda: None,
    ) -> Any:  # fmt: skip
        """Sends a message, unless it is None, and waits for the answer, calling `look` a few times a second. Answers
        for which `read` returns None are ignored.

        Raises TimeoutError, or EOFError when the child died. A local socket that is closed with unread bytes resets its
        peer (unix(7)), so a reset tells that the child had not read the message; other systems may not tell.
        """
        ends = math.inf if timeout_s is None else monotonic() + timeout_s
        try:
            if message is not None:
                if len(message) > _SMALL:
                    self._limit(timeout_s)
                self._socket.sendall(frame(message))
            while (answer := read(self._receive(ends, look))) is None:
                pass
            return answer
        except ConnectionError as error:
            raise _NotTakenError from error

    def _receive(self, ends: float, look: Callable[[], object]) -> bytes:
        received, has_ended = self._received, False
        while (lacking := lacks(received)) > 0:
            left = ends - monotonic()
            if left <= 0:
                raise TimeoutError
            self._limit(0.0 if has_ended else min(left, _LOOK_S))
            try:
                piece = self._socket.recv(max(lacking, PIECE))
            except (TimeoutError, BlockingIOError):
                if has_ended:  # what it started may hold its end of the socket
                    raise EOFError from None
                has_ended = self.has_ended
                look()
                continue
            if not piece:
                raise EOFError
            received += piece
        return unframed(received)

    def _limit(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:  # each change is a call of the system
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)

    @property
    def has_ended(self) -> bool:
        """Whether the child died, or was killed."""
        return self._process.poll() is not None

    @property
    def resident_bytes(self) -> int:
        """Its resident memory; 0 where the system has no /proc."""
        return resident_bytes(self._process.pid)

    def stop(self, token: str) -> None:
        """Notifies the child, once, that an attempt should stop."""
        if token == self._stop_sent:
            return
        self._stop_sent = token
        with suppress(OSError):
            os.write(self._lifeline, f"{token}\n".encode())

    def kill(self) -> None:
        """SIGKILL; nothing is cleaned up."""
        self._process.kill()

    def end(self) -> str:
        """Kills the child and says how it had ended, when it had. Cleans up."""
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_LAST_WORDS_S)
        self._process.kill()
        self._process.wait()
        self._socket.close()
        os.close(self._lifeline)
        if code is None:
            return "was killed"
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
