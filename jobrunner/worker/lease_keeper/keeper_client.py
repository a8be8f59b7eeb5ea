"""Keeps the leases of the tasks that this worker holds, whatever its jobs do to the interpreter.

A job may hold the interpreter lock, or block the event loop, for longer than its lease: no thread of this process
would renew it then. So a small process of its own, the lease keeper (`keeper_process.py`), renews leases. The worker
reports every reservation to it before the first of its tasks starts, and every end; a short task costs no renewal.

Messages stay in a pipe until the keeper reads them, once a second; a byte in the wake pipe makes it read at once. The
worker writes that byte for leases below fifteen seconds, and when the pipe is full.

A keeper that is stopped or hangs no longer updates the shared memory (keeper_link.py): the worker kills it and starts
another within two seconds, and never waits for it longer than one.

Signals that jobs send to their own worker are noted in the shared memory, too. The kernel does not say who sent a
signal: a worker that was killed from outside is no fault of what it ran, one that a job killed is. A hook of the
interpreter sees what Python code sends to its own process, and nothing else.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from jobrunner.clock import monotonic
from jobrunner.jobs.registry import waiting_on_crash
from jobrunner.logs import IDENTITY, SafeLogger
from jobrunner.loop import Complaints, Signal, back_off
from jobrunner.worker.child_processes import claims_children, environment_of_others, is_suspended, name_of_this
from jobrunner.worker.lease_keeper.keeper_link import STOPS, HeldLeases, HeldWork, SharedMemory, serve_line

_POLL_MS = 250
_LONGEST_START_S = 30.0
_LONGEST_WAIT_MS = 1000
"""For space in the pipe. A keeper reads within milliseconds of a byte in the wake pipe."""
_MISSED = 6
"""Polls without a heartbeat after which a keeper counts as hanging; it sends one every 0.2 s."""
_MISSED_STOPPED = 2
"""The same of a keeper that the system reports as stopped."""
_AFTER_ERROR_S = 0.5
_LONGEST_AFTER_ERROR_S = 2.0
_CHUNK = 1 << 16
_CANNOT_START = "the lease keeper cannot be started"
_noted: "weakref.WeakSet[SharedMemory]" = weakref.WeakSet()
_installed: list[bool] = []
_log = SafeLogger("jobrunner.leases")


class KeeperClient:
    """The keeper process as seen by the worker. Its duties:

    1. starts the keeper, and starts another when it died or gives no signs of life;
    2. connects it to the leases of the worker (`leases`) when it is ready, and passes on its answers;
    3. leaves it what it needs to hand everything back when this process is killed (`leave`).
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._first_line = serve_line(url, prefix)
        self._lock = threading.Lock()
        self._closing = False
        self._closed = Signal()
        self._complaints = Complaints()
        self._why = ""
        self._keeper: subprocess.Popen[bytes] | None = None
        self._wake_pipe = WakePipe()
        self.leases = HeldLeases(lambda: self._wake_pipe.ring())
        self._watcher = threading.Thread(target=self._watch, name="jobrunner-leases", daemon=True)

    def start(self) -> None:
        """Starts the keeper."""
        self._watcher.start()

    def leave(self, queues: list[str], *, has_children: bool, worker: str, serves: str) -> None:
        """Leaves the keeper the facts it needs when this process is killed. Call it before anything is reserved."""
        name = name_of_this() if has_children or claims_children() else ""
        self.leases.memory.waits = waiting_on_crash()
        work = HeldWork(
            queues, name, claims_children(), worker, serves, log_format=IDENTITY.log_format,
            log_level=IDENTITY.log_level,
        )  # fmt: skip
        self.leases.memory.write(msgspec.json.encode(work))
        watch_own_kills(self.leases.memory)

    @property
    def is_watched(self) -> bool:
        """Whether the keeper is replaced when it dies."""
        return self._watcher.is_alive()

    @property
    def problem(self) -> str:
        """Why the worker takes no tasks: no keeper could be started for half a minute; '' when that is not so."""
        if (away_s := self.leases.away_s) <= _LONGEST_START_S:
            return ""
        return f"no tasks are taken: the lease keeper could not be started for {away_s:.0f} s: {self._why}"

    def close(self) -> None:
        """Ends the keeper, which hands nothing back; leases end by themselves from now on."""
        with self._lock:
            self._closing = True
            self._closed.set()
            self.leases.disconnect()
            self.leases.memory.end_well()
            keeper = self._keeper
            self._wake_pipe.close()
        if keeper is not None and keeper.stdin is not None:
            with suppress(OSError):
                keeper.stdin.close()
            keeper.kill()  # it has nothing to lose, and one that starts still would take its time
        self._watcher.join(1)
        self.leases.memory.close()

    def _watch(self) -> None:
        failures = 0
        while True:
            with self._lock:
                keeper = None if self._closing else self._open()
            was_ready = keeper is not None and self._listen(keeper)
            if self._closing:
                return
            self.leases.disconnect()
            if was_ready:
                failures = 0
                _log.warning("the lease keeper died; starting another", held=len(self.leases))
                continue
            failures += 1
            if keeper is not None:
                self._why = f"it ended before it was ready, with exit code {keeper.returncode}"
            if self._complaints.may_tell(_CANNOT_START):
                _log.warning(_CANNOT_START, error=self._why, held=len(self.leases), failures=failures)
            self._closed.wait(back_off(failures, _AFTER_ERROR_S, _LONGEST_AFTER_ERROR_S))

    def _open(self) -> subprocess.Popen[bytes] | None:
        try:
            read_end = self._wake_pipe.open()
        except OSError as error:  # jobs have used up the descriptors
            self._why = str(error)
            return None
        own = _own_pidfd()
        inherited = [read_end, self.leases.memory.descriptor]
        module = "jobrunner.worker.lease_keeper.keeper_process"
        words = [sys.executable, "-m", module, *map(str, inherited), str(os.getpid()), str(own)]
        if own >= 0:
            inherited.append(own)
        try:
            with _stops_held_back():
                self._keeper = subprocess.Popen(  # noqa: S603  words of our own
                    words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=inherited,
                    env=environment_of_others(),
                )  # fmt: skip
        except OSError as error:  # of the system's limits, or a deploy has removed the program
            self._why = str(error)
            return None
        finally:
            os.close(read_end)
            if own >= 0:
                os.close(own)
        assert self._keeper.stdin is not None
        os.set_blocking(self._keeper.stdin.fileno(), False)
        with suppress(OSError):
            self._keeper.stdin.write(self._first_line)
        return self._keeper

    def _write_rest(self, keeper: subprocess.Popen[bytes], line: bytes) -> bool:
        """Writes to a keeper whose pipe is full; returns whether it still reads. One that does not is killed, as the
        caller must not block."""
        assert keeper.stdin is not None
        with suppress(OSError):
            while line:
                self._wake_pipe.ring()
                if not _has_space(keeper.stdin.fileno()):
                    _log.warning("the lease keeper does not read; it is killed")
                    keeper.kill()
                    return False
                line = line[keeper.stdin.write(line) or 0 :]
        return True

    def _listen(self, keeper: subprocess.Popen[bytes]) -> bool:
        """Reads from a keeper until its end, or kills one that gives no signs of life. Returns whether it was ever
        ready."""
        assert keeper.stdout is not None
        health, was_ready, begun = KeeperHealth(self.leases.memory, keeper.pid), False, b""
        output = keeper.stdout.fileno()
        written = select.poll()
        written.register(output, select.POLLIN)
        with suppress(OSError):  # a job may have closed what it does not know
            while True:
                self.leases.memory.sign()
                if written.poll(_POLL_MS):
                    if not (piece := os.read(output, _CHUNK)):
                        break
                    *lines, begun = (begun + piece).split(b"\n")
                    was_ready = self._take_lines(keeper, lines) or was_ready
                if health.is_lost(was_ready) and not self._closing:
                    _log.warning("the lease keeper gives no signs of life; it is killed", held=len(self.leases))
                    break
        keeper.kill()
        keeper.wait()
        with suppress(OSError):  # as above
            keeper.stdout.close()  # left to the collector, it is a ResourceWarning in the tests of a user
        return was_ready

    def _take_lines(self, keeper: subprocess.Popen[bytes], lines: list[bytes]) -> bool:
        """Handles lines of the keeper; returns whether one of them reported that it is ready."""
        is_ready = False
        for line in lines:
            word, _, token = line.decode().strip().partition(" ")
            if word == "R":
                with self._lock:
                    if keeper.stdin is not None and not self._closing:
                        self.leases.connect(keeper.stdin, partial(self._write_rest, keeper))
                is_ready = True
                if self._complaints.may_tell_end(_CANNOT_START):
                    _log.info("the lease keeper has started")
            elif self.leases.stop(token) and word == "L":
                _log.warning("a lease was lost while its task ran", token=token)
        return is_ready


class WakePipe:
    """A byte in it makes the keeper read its messages at once. Errors are ignored: a job may have closed the
    descriptor, and a keeper that is not woken reads within a second."""

    def __init__(self) -> None:
        self._descriptor = -1

    def open(self) -> int:
        """Opens a new one; returns the end of the keeper, which the caller closes when it is inherited."""
        self.close()
        read_end, self._descriptor = os.pipe()
        os.set_blocking(self._descriptor, False)
        return read_end

    def close(self) -> None:
        """Closes the end of the worker."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def ring(self) -> None:
        """Wakes the keeper. A pipe that is full has woken it already."""
        with suppress(OSError):
            os.write(self._descriptor, b"!")


class KeeperHealth:
    """Whether a keeper gives signs of life. Polls are counted, not time: after a machine or this process was suspended,
    the keeper had no time to give any, and gets it."""

    def __init__(self, marks: SharedMemory, pid: int) -> None:
        self._marks = marks
        self._pid = pid
        self._beats = marks.beats
        self._missed = 0
        self._looked_at = self._began = monotonic()

    def is_lost(self, is_ready: bool) -> bool:
        """Whether it is stopped or hangs, or does not come to be ready."""
        now = monotonic()
        if now - self._looked_at < _POLL_MS / 1000:
            return False
        self._looked_at = now
        if not is_ready:  # one that starts gives no signs of life yet
            self._missed = self._missed + 1 if is_suspended(self._pid) else 0
            return self._missed >= _MISSED_STOPPED or now - self._began > _LONGEST_START_S
        beats = self._marks.beats
        if beats != self._beats:
            self._beats, self._missed = beats, 0
            return False
        self._missed += 1
        return self._missed >= _MISSED or (self._missed >= _MISSED_STOPPED and is_suspended(self._pid))


def _own_pidfd() -> int:
    """A descriptor by which a process sees the death of this one; -1 where the system or the process has none left."""
    try:
        return os.pidfd_open(os.getpid())
    except (AttributeError, OSError):
        return -1


def _has_space(pipe: int) -> bool:
    """Waits until a pipe takes more, or its reader is dead; returns whether that was so before the time was up."""
    space = select.poll()
    space.register(pipe, select.POLLOUT)
    return bool(space.poll(_LONGEST_WAIT_MS))


def watch_own_kills(marks: SharedMemory) -> None:
    """Notes there from now on what this process sends to itself. A hook, which some fifty kinds of rare events call and
    which cannot be taken away again, so there is one for all workers of a process."""
    _noted.add(marks)
    if not _installed:
        _installed.append(True)
        sys.addaudithook(_note_own_kill)


def _note_own_kill(event: str, args: tuple[Any, ...]) -> None:
    if event not in ("os.kill", "os.killpg"):
        return
    target, number = args
    own = os.getpgrp() if event == "os.killpg" else os.getpid()
    if target in (own, 0, -1):
        for marks in list(_noted):
            marks.sends_itself(number)


@contextmanager
def _stops_held_back() -> Iterator[None]:
    """A process that is started meanwhile gets no signal to stop until it ignores them, as one to the process group
    (Ctrl-C, systemd) may come while it starts."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # of this thread, and of what it starts
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
