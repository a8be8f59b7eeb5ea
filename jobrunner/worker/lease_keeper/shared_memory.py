"""Memory that a worker shares with its lease keeper: signs of life of the keeper, and what the worker has begun.

To write a word takes some 50 ns and neither a call of the system nor a lock, and what is written stays when the process
that wrote it is killed. Layout, in words of 8 bytes: a few of the keeper's and the worker's own, then one for each
attempt that has begun and is not yet reported: the number of its lease; 0 where a word is free.

Invariant: an attempt that has begun is marked, or `lacks_marks` is true. So the keeper of a dead worker knows which
tasks cannot have had any effect.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jobrunner.attempt import Attempt
from jobrunner.worker.child_processes import name_of_this
from jobrunner.worker.quarantine import ALONE

_BEATS, _LACKS, _LOWEST, _HIGHEST, _ENDED, _TEXT, _SIGNAL = range(7)
_WAITS, _ALONE = 1 << 63, 1 << 62
_NUMBER = (1 << 53) - 1
_FIRST = 16
_WORDS = 1 << 16
_SIZE = _WORDS * 8


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
