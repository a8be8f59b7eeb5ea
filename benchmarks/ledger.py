"""What a worker ran, written where nothing can lose it: a file mapped into memory, one entry for each call.

An entry costs a job a fraction of a microsecond and the server nothing, so every contender can afford it. It
is visible to the harness at once, survives any end of the worker, and shows a task that ran twice as two
entries. Only the standard library is used: contenders import this from environments of their own.
"""

import itertools
import mmap
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path

VARIABLE = "BENCHMARK_LEDGER"
_ENTRY = struct.Struct("<Q")


def recorder() -> Callable[[int], None]:
    """The function with which a job of this process enters a number; for one worker process at a time.

    Numbers are 0 or more. Where the environment names no ledger, entering a number is an error.
    """
    path = os.environ.get(VARIABLE)
    if path is None:
        return _refuse
    with Path(path).open("r+b") as file:
        room = mmap.mmap(file.fileno(), 0)
    offsets = itertools.count(0, _ENTRY.size)
    pack_into = _ENTRY.pack_into

    def record(number: int) -> None:
        # next() is atomic under the interpreter's lock: two threads never share an entry. 0 means empty.
        pack_into(room, next(offsets), number + 1)

    return record


def _refuse(number: int) -> None:
    raise RuntimeError(f"cannot record {number}: {VARIABLE} is not set; start this with python -m benchmarks")


class Ledger:
    """The harness's side: an empty file with room for `room` entries, removed by its directory's owner."""

    def __init__(self, path: Path, room: int) -> None:
        path.write_bytes(bytes(room * _ENTRY.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._room = room
        self.environment = {VARIABLE: str(path)}

    def __len__(self) -> int:
        """Number of entries so far; threads that are just writing may be missing."""
        return bisect_left(range(self._room), True, key=lambda index: self._entry(index) == 0)

    def numbers(self) -> list[int]:
        """All numbers entered, oldest first."""
        return [entry - 1 for (entry,) in _ENTRY.iter_unpack(self._map[:]) if entry]

    def complaint(self, tasks: int) -> str | None:
        """None if the numbers 0 to `tasks` - 1 were entered exactly once each, else what is wrong."""
        times = Counter(self.numbers())
        lost = sum(1 for number in range(tasks) if not times[number])
        doubled = sum(count - 1 for count in times.values())
        strange = sum(1 for number in times if number >= tasks)
        if not (lost or doubled or strange):
            return None
        return f"{lost} lost, {doubled} doubled, {strange} never enqueued, of {tasks}"

    def _entry(self, index: int) -> int:
        (entry,) = _ENTRY.unpack_from(self._map, index * _ENTRY.size)
        return int(entry)
