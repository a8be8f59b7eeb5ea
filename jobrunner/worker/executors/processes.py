"""Attempts in processes: for CPU-bound jobs and for timeouts that nothing can resist.

A slot is a thread of the worker with a child process of its own. The child is started once and used for many
attempts; it is killed when an attempt runs out of time, and replaced when it died. A crash costs the attempt it ran
and no other.
"""

import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptCrashed
from jobrunner.jobs.registry import find
from jobrunner.outcome import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded
from jobrunner.worker.runner import Runner, out_of_time

_HEAD = struct.Struct("!I")
_START_S = 30.0
_attempts = msgspec.msgpack.Encoder()
_outcomes = msgspec.msgpack.Decoder(dict[str, Any])


class ChildProcess:
    """One child and the socket to it."""

    def __init__(self, command: Sequence[str]) -> None:
        ours, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        os.set_inheritable(lifeline, True)
        self._socket = ours
        self._process = subprocess.Popen(  # noqa: S603
            [*command, str(theirs.fileno()), str(lifeline)],
            pass_fds=(theirs.fileno(), lifeline),
            stdin=subprocess.DEVNULL,
        )
        theirs.close()
        os.close(lifeline)

    def exchange(self, message: bytes, timeout_s: float | None) -> bytes:
        """Sends a message and waits for the answer. Raises TimeoutError, or EOFError when the child died."""
        ends = None if timeout_s is None else monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(_HEAD.pack(len(message)) + message)
            return self._receive(_HEAD.unpack(self._receive(_HEAD.size, ends))[0], ends)
        except (ConnectionError, BrokenPipeError) as error:
            raise EOFError(str(error)) from error

    def _receive(self, size: int, ends: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            if ends is not None:
                left = ends - monotonic()
                if left <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
            part = self._socket.recv(size - len(parts))
            if not part:
                raise EOFError("the process closed its socket")
            parts += part
        return bytes(parts)

    def end(self) -> str:
        """Kills the child and says how it had ended, when it had."""
        code = self._process.poll()
        if code is None:
            try:
                code = self._process.wait(0.2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._socket.close()
        os.close(self._lifeline)
        if code is None:
            return "was killed"
        return f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"


class ProcessSlot:
    """Runs one attempt after the other in a child. Called by one thread."""

    def __init__(self, command: Sequence[str], runner: Runner) -> None:
        self._command = command
        self._runner = runner
        self._child: ChildProcess | None = None
        self._lock = threading.Lock()

    def run(self, attempt: Attempt) -> Outcome:
        """The outcome of an attempt, whatever becomes of the child."""
        definition = find(attempt.type)
        timeout_s = None if definition is None else definition.options.timeout
        try:
            child = self._ready_child()
            return read_outcome(child.exchange(_attempts.encode(attempt), timeout_s))
        except TimeoutError:
            self._end_child()
            assert definition is not None
            return self._runner.timed_out(attempt, out_of_time(definition))
        except EOFError:
            how = self._end_child()
            return self._runner.timed_out(attempt, AttemptCrashed(f"the process of the attempt {how}"))

    def close(self) -> None:
        """Kills the child."""
        self._end_child()

    def _ready_child(self) -> ChildProcess:
        with self._lock:
            if self._child is not None:
                return self._child
            child = self._child = ChildProcess(self._command)
        try:
            child.exchange(b"", _START_S)
        except TimeoutError as error:
            raise EOFError(f"no answer within {_START_S:g} s of its start") from error
        return child

    def _end_child(self) -> str:
        with self._lock:
            child, self._child = self._child, None
        return "was killed" if child is None else child.end()


def read_outcome(raw: bytes) -> Outcome:
    """The outcome in a child's answer."""
    fields = _outcomes.decode(raw)
    return _KINDS[fields.pop("kind")](**fields)


def write_outcome(outcome: Outcome) -> bytes:
    """A child's answer."""
    fields = {name: getattr(outcome, name) for name in outcome.__slots__}
    return msgspec.msgpack.encode({"kind": type(outcome).__name__, **fields})


_KINDS: dict[str, Callable[..., Outcome]] = {
    kind.__name__: kind for kind in (Succeeded, Failed, Snoozed, Cancelled, Released)
}
