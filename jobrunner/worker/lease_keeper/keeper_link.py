"""The link between a worker and its lease keeper: the worker's held leases, the lines of the pipe, shared memory.

The worker reports every reservation and every end with a line (`HeldLeases`), and marks attempts that have begun in
shared memory. Writing a word of it takes some 50 ns, without a system call or a lock, and the word stays when the
writing process is killed. Layout, in words of 8 bytes: a few of the keeper's and the worker's own, then one word for
each attempt that has begun and is not yet reported, with the number of its lease; 0 in a free word.

Invariant: an attempt that has begun is marked, or `lacks_marks` is true. So the keeper of a dead worker knows which
tasks cannot have had any effect.
"""

import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import IO

import msgspec

from jobrunner.attempt import ALONE, Attempt
from jobrunner.clock import monotonic
from jobrunner.worker.child_processes import name_of_this

_BEATS, _LACKS, _LOWEST, _HIGHEST, _ENDED, _TEXT, _SIGNAL, _SIGNS = range(8)
_WAITS, _ALONE = 1 << 63, 1 << 62
_NUMBER = (1 << 53) - 1
_FIRST = 16
_WORDS = 1 << 16
_SIZE = _WORDS * 8
_LONG_AGO = 0.0
SHORT_MS = 15_000.0
"""Shorter leases may end while a keeper starts, or before it reads its pipe."""
_MISSING_S = 5.0
"""Without a keeper for this time, a next one may never start. A task begun before has the rest of its lease, which is
not short, for another to come."""
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a keeper ignores: they are meant for its worker."""


class HeldWork(msgspec.Struct, frozen=True):
    """The facts that the keeper needs to clean up after a dead worker."""

    queues: list[str]
    """The queues that the worker reserves from."""
    process: str
    """The name of the worker's process, which its children inherit; '' when it started none."""
    claims_children: bool
    """Whether all that its process started belongs to its jobs; else only the processes of its slots."""
    worker: str = ""
    """Its id in the list of workers."""
    serves: str = ""
    """All its queues, as its events name them."""
    log_format: str = ""
    """How the worker's lines are written on the stderr that both have; '' where it does not write them there."""
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class BegunAttempt:
    """An attempt by the number of its lease: whether it keeps the lease when its worker dies, and whether it was in
    quarantine."""

    number: int
    waits: bool = False
    is_alone: bool = False


class SharedMemory:
    """The shared words, for the process that made them or that got their descriptor."""

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = _new_file() if descriptor is None else descriptor
        self._map = mmap.mmap(self.descriptor, _SIZE)
        self._words = memoryview(self._map).cast("Q")
        self.waits: Callable[[Attempt], bool] | None = None
        """Whether an attempt keeps its lease when its worker dies; None: no job of this worker declares that."""
        self._free: list[int] = []
        """Free words that were used before; `_unused` has the others: a list of all would cost each start
        milliseconds."""
        self._unused = iter(range(_FIRST, _WORDS))

    @property
    def beats(self) -> int:
        """The number of the keeper's heartbeats so far."""
        return self._words[_BEATS]

    def beat(self) -> None:
        """Writes a heartbeat. Called by the keeper."""
        self._words[_BEATS] += 1

    @property
    def signs_of_worker(self) -> int:
        """The number of the worker interpreter's heartbeats so far; 0: none yet."""
        return self._words[_SIGNS]

    def sign(self) -> None:
        """Writes a heartbeat of this interpreter. Called by the worker."""
        self._words[_SIGNS] += 1

    @property
    def lacks_marks(self) -> bool:
        """Whether a begun attempt may be without a mark: more attempts were in hand at once than there are words."""
        return self._words[_LACKS] != 0

    def took(self, lowest: int, highest: int) -> None:
        """Writes the range of lease numbers that the worker takes."""
        self._words[_LOWEST], self._words[_HIGHEST] = lowest, highest

    @property
    def taken(self) -> tuple[int, int]:
        """The range of the numbers of all leases of the worker."""
        return self._words[_LOWEST], self._words[_HIGHEST]

    def begin(self, attempt: Attempt) -> None:
        """Marks an attempt as begun. Called by the thread that runs it, before any code of the job; called again for a
        second try of the same attempt."""
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
        """Removes the quarantine mark of an attempt."""
        if attempt.mark:
            self._words[attempt.mark] &= ~_ALONE

    def end(self, attempts: Iterable[Attempt]) -> None:
        """Removes the marks of attempts that are reported or released."""
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
        """The last signal that code of the worker sent to its own process; 0: no signal was seen."""
        return self._words[_SIGNAL]

    def sends_itself(self, number: int) -> None:
        """Records the signal that code of the worker sends to its own process."""
        self._words[_SIGNAL] = number

    def write(self, text: bytes) -> None:
        """Stores a text for the keeper of a dead worker, after the words and earlier texts: a reader always finds a
        whole text, also after a kill in the middle of this write."""
        place = os.fstat(self.descriptor).st_size
        os.pwrite(self.descriptor, text, place)
        self._words[_TEXT] = place << 32 | len(text)

    def read(self) -> bytes:
        """The text that was stored last; empty when the worker died before it stored any."""
        place, size = divmod(self._words[_TEXT], 1 << 32)
        return os.pread(self.descriptor, size, place)

    def end_well(self) -> None:
        """Marks that the worker, or its part in this process, ended with nothing left to clean up."""
        self._words[_ENDED] = 1

    @property
    def ended_well(self) -> bool:
        """Whether `end_well` was called."""
        return self._words[_ENDED] != 0

    def close(self) -> None:
        """Closes the descriptor, so that no other process gets the memory; running threads may still write to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _new_file() -> int:
    if hasattr(os, "memfd_create"):
        descriptor: int = os.memfd_create(name_of_this())
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _SIZE)
    return descriptor


class HeldLeases:
    """The leases that a worker holds. It sends each reservation and end to the keeper, which replies with the attempts
    to stop.

    Nothing is sent to a keeper that is still starting: it does not read yet, and a full pipe would block the worker. A
    keeper that is ready gets all held leases. `wake` makes it read at once; it is called with the lock, and no more
    once `disconnect` has returned.
    """

    def __init__(self, wake: Callable[[], object]) -> None:
        self.memory = SharedMemory()
        self._held: dict[str, Attempt] = {}
        self._stopped: set[str] = set()
        self._lock = threading.Lock()
        self._wake = wake
        self._pipe: IO[bytes] | None = None
        self._away_since = monotonic()
        self._write_rest: Callable[[bytes], bool] = lambda _: False
        self.begin = self.memory.begin
        """Called with each attempt before it begins, by the thread that runs it."""
        self.clear = self.memory.clear
        """Called with an attempt that outlived its quarantine."""
        self.took = self.memory.took
        """Called with the lowest and the highest lease number of this worker."""

    def __len__(self) -> int:
        return len(self._held)

    def serve(self, queues: list[str]) -> None:
        """Tells the keeper the queues that the worker reserves from, if the worker has begun: its text exists by
        then."""
        if left := self.memory.read():
            work = msgspec.json.decode(left, type=HeldWork)
            self.memory.write(msgspec.json.encode(msgspec.structs.replace(work, queues=queues)))

    def connect(self, pipe: IO[bytes], write_rest: Callable[[bytes], bool]) -> None:
        """Connects a keeper that is ready and reads from this pipe. `write_rest` is called with the bytes that a full
        pipe did not take, and returns whether the keeper still reads."""
        with self._lock:
            self._pipe, self._write_rest = pipe, write_rest
            self._send(hold_lines(_LONG_AGO, self._held.values()))
            self._wake()

    def disconnect(self) -> None:
        """Disconnects a keeper that is gone."""
        with self._lock:
            self._lose()

    def _lose(self) -> None:
        if self._pipe is not None:
            self._away_since = monotonic()  # first: `away_s` reads both without the lock
            self._pipe = None

    @property
    def is_ready(self) -> bool:
        """Whether the keeper runs."""
        return self._pipe is not None

    @property
    def away_s(self) -> float:
        """Seconds without a keeper; 0 while it runs."""
        return 0.0 if self._pipe is not None else monotonic() - self._away_since

    @property
    def is_missing(self) -> bool:
        """Whether there has been no keeper for longer than one takes to start: nobody may renew any lease."""
        return self.away_s > _MISSING_S

    def can_keep(self, attempts: list[Attempt]) -> bool:
        """Whether the keeper renews each of these leases before it ends; a short lease may end while the keeper is
        still starting."""
        return self._pipe is not None or not _is_one_short(attempts)

    def hold(self, attempts: list[Attempt], since_s: float) -> None:
        """Adds the attempts of one reservation, before any of them begins, held since `since_s` (monotonic clock)."""
        with self._lock:
            self._held.update((attempt.token, attempt) for attempt in attempts)
            self._send(hold_lines(since_s, attempts))
            if self._pipe is not None and _is_one_short(attempts):
                self._wake()

    def drop(self, attempts: Iterable[Attempt]) -> None:
        """Removes attempts that are over."""
        with self._lock:
            over = [attempt for attempt in attempts if self._held.pop(attempt.token, None) is not None]
            tokens = [attempt.token for attempt in over]
            self.memory.end(over)
            if self._stopped:
                self._stopped.difference_update(tokens)
            if tokens:
                self._send(drop_line(tokens))

    def _send(self, line: bytes) -> None:
        """Writes to the keeper. Called with the lock. The watcher detects a dead keeper, and the next keeper gets
        all."""
        if self._pipe is None:
            return
        try:
            rest = line[self._pipe.write(line) or 0 :]
        except OSError:
            return
        if rest and not self._write_rest(rest):
            self._lose()

    def attempts(self) -> list[Attempt]:
        """All held attempts."""
        with self._lock:
            return list(self._held.values())

    def is_stopped(self, token: str) -> bool:
        """Whether the attempt should stop: cancelled, or its lease is lost."""
        return token in self._stopped

    def stop(self, token: str) -> bool:
        """Asks an attempt to stop; returns whether it runs. An ended attempt is held until its report is answered, so
        its lease may be over."""
        with self._lock:
            attempt = self._held.get(token)
            if attempt is None:
                return False
            self._stopped.add(token)
            return attempt.began_s > 0 and attempt.run_s < 0

    def stop_all(self) -> None:
        """Asks every held attempt to stop."""
        with self._lock:
            self._stopped.update(self._held)


def serve_line(url: str, prefix: str) -> bytes:
    """The first line: the server of the leases."""
    return msgspec.json.encode(["serve", url, prefix]) + b"\n"


def hold_lines(since_s: float, attempts: Iterable[Attempt]) -> bytes:
    """Lines for attempts held since `since_s` (monotonic clock): one for each queue and length of lease."""
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


def _is_one_short(attempts: Iterable[Attempt]) -> bool:
    return min(attempt.keepalive_ms for attempt in attempts) < SHORT_MS
