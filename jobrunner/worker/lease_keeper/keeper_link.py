"""The link between a worker and its lease keeper: shared memory, the lines of the pipe, the wake pipe, signs of life.

To write a word of the shared memory takes some 50 ns and neither a call of the system nor a lock, and what is written
stays when the process that wrote it is killed. Layout, in words of 8 bytes: a few of the keeper's and the worker's own,
then one for each attempt that has begun and is not yet reported: the number of its lease; 0 where a word is free.

Invariant: an attempt that has begun is marked, or `lacks_marks` is true. So the keeper of a dead worker knows which
tasks cannot have had any effect.

Signals that jobs send to their own worker are noted there, too. The kernel does not say who sent a signal: a worker
that was killed from outside is no fault of what it ran, one that a job killed is. A hook of the interpreter sees what
Python code sends to its own process, and nothing else.
"""

import mmap
import os
import select
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from jobrunner.attempt import ALONE, Attempt
from jobrunner.clock import monotonic
from jobrunner.worker.child_processes import is_suspended, name_of_this

_BEATS, _LACKS, _LOWEST, _HIGHEST, _ENDED, _TEXT, _SIGNAL = range(7)
_WAITS, _ALONE = 1 << 63, 1 << 62
_NUMBER = (1 << 53) - 1
_FIRST = 16
_WORDS = 1 << 16
_SIZE = _WORDS * 8
POLL_MS = 250
_LONGEST_START_S = 30.0
_LONGEST_WAIT_MS = 1000
"""For space in the pipe. A keeper reads within milliseconds of a byte in the wake pipe."""
_MISSED = 6
"""Polls without a heartbeat after which a keeper counts as hanging; it sends one every 0.2 s."""
_MISSED_STOPPED = 2
"""The same of a keeper that the system reports as stopped."""
_noted: "weakref.WeakSet[SharedMemory]" = weakref.WeakSet()
_installed: list[bool] = []


class HeldWork(msgspec.Struct, frozen=True):
    """The facts that the keeper needs to clean up after a dead worker."""

    queues: list[str]
    """Those it reserves from."""
    process: str
    """The name of its process, which others inherited; '' when it started none."""
    claims_children: bool
    """Whether all that its process started belongs to its jobs; else only the processes of its slots."""


@dataclass(frozen=True, slots=True)
class BegunAttempt:
    """An attempt by the number of its lease: whether it keeps that when its worker dies, and whether it was in
    quarantine."""

    number: int
    waits: bool = False
    is_alone: bool = False


class SharedMemory:
    """The words, as the process sees them that made them or was given their descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _new_file() if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, _SIZE)
        self._words = memoryview(self._map).cast("Q")
        self.waits: Callable[[Attempt], bool] | None = None
        """Whether an attempt stays with its lease when its worker dies; None: no job here says so."""
        self._free: list[int] = []
        """Words that were used before; `_unused` has the others: a list of all would cost each start milliseconds."""
        self._unused = iter(range(_FIRST, _WORDS))

    @property
    def beats(self) -> int:
        """Signs of life of the keeper so far."""
        return self._words[_BEATS]

    def beat(self) -> None:
        """Writes a heartbeat. Called by the keeper."""
        self._words[_BEATS] += 1

    @property
    def lacks_marks(self) -> bool:
        """Whether something begun might be without a mark: more was in hand at once than there are words."""
        return self._words[_LACKS] != 0

    def took(self, lowest: int, highest: int) -> None:
        """Notes the range of lease numbers that the worker takes."""
        self._words[_LOWEST], self._words[_HIGHEST] = lowest, highest

    @property
    def taken(self) -> tuple[int, int]:
        """The range of the numbers of all leases of the worker."""
        return self._words[_LOWEST], self._words[_HIGHEST]

    def begin(self, attempt: Attempt) -> None:
        """This attempt begins. Called by the thread that runs it, before anything of the job is run; again by a second
        try of the same attempt."""
        if attempt.mark:
            return
        try:
            number = int(attempt.token)
            try:
                mark = self._free.pop()
            except IndexError:
                mark = next(self._unused)
        except (StopIteration, ValueError):
            self._words[_LACKS] = 1
            return
        if self.waits is not None and self.waits(attempt):
            number |= _WAITS
        if attempt.suspect and attempt.suspect == ALONE:
            number |= _ALONE
        attempt.mark = mark
        self._words[mark] = number

    def clear(self, attempt: Attempt) -> None:
        """It is not alone any more."""
        if attempt.mark:
            self._words[attempt.mark] &= ~_ALONE

    def end(self, attempts: Iterable[Attempt]) -> None:
        """These are over: reported, or handed back."""
        words, free = self._words, self._free.append
        for attempt in attempts:
            if mark := attempt.mark:
                attempt.mark = words[mark] = 0
                free(mark)

    def begun(self) -> list[BegunAttempt]:
        """The attempts that have begun and are not yet known to be reported."""
        words = [word for word in self._words[_FIRST:] if word]
        return [BegunAttempt(word & _NUMBER, waits=bool(word & _WAITS), is_alone=bool(word & _ALONE)) for word in words]

    @property
    def own_signal(self) -> int:
        """The last signal that code of the worker sent to its own process; 0: none was seen."""
        return self._words[_SIGNAL]

    def sends_itself(self, number: int) -> None:
        """Code of the worker sends its own process a signal."""
        self._words[_SIGNAL] = number

    def write(self, text: bytes) -> None:
        """Stores a text for the keeper of a dead worker, behind the words."""
        os.pwrite(self.descriptor, text, _SIZE)
        self._words[_TEXT] = len(text)

    def read(self) -> bytes:
        """The stored text; empty when the worker died before it wrote one."""
        return os.pread(self.descriptor, self._words[_TEXT], _SIZE)

    def end_well(self) -> None:
        """The worker ends, or its part in this process does, with nothing left to clean up."""
        self._words[_ENDED] = 1

    @property
    def ended_well(self) -> bool:
        """Whether `end_well` was called."""
        return self._words[_ENDED] != 0

    def close(self) -> None:
        """No other process is given the memory from now on; threads that still run may write to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create(name_of_this())
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor


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
        if now - self._looked_at < POLL_MS / 1000:
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


def has_space(pipe: int) -> bool:
    """Waits until a pipe takes more, or its reader is dead; returns whether that was so before the time was up."""
    space = select.poll()
    space.register(pipe, select.POLLOUT)
    return bool(space.poll(_LONGEST_WAIT_MS))


def serve_line(url: str, prefix: str) -> bytes:
    """The first line: the server of the leases."""
    return msgspec.json.encode(["serve", url, prefix]) + b"\n"


def hold_lines(since_s: float, attempts: Iterable[Attempt]) -> bytes:
    """Lines for attempts held since then (monotonic clock): one for each queue and length of lease."""
    alike: dict[tuple[str, float], list[Attempt]] = {}
    for attempt in attempts:
        alike.setdefault((attempt.queue, attempt.keepalive_ms), []).append(attempt)
    lines = [
        ["hold", queue, since_s, ms / 1000, [attempt.token for attempt in some], [attempt.id for attempt in some]]
        for (queue, ms), some in alike.items()
    ]
    return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])


def drop_line(tokens: list[str]) -> bytes:
    """The line for attempts that are over."""
    return msgspec.json.encode(["drop", tokens]) + b"\n"


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
