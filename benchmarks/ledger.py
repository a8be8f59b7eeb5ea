"""The ledger of the tasks that workers ran: files mapped into memory, one entry for each call.

An entry costs a job a fraction of a microsecond and the server nothing, so every contender can afford it. It
is visible to the harness at once, survives any end of the worker, and shows a task that ran twice as two
entries. Each process has a file of its own, so processes never meet. Only the standard library is used:
contenders import this from environments of their own.
"""

import itertools
import mmap
import os
import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import mkstemp

VARIABLE = "BENCHMARK_LEDGER"
_ENTRY = struct.Struct("<Q")


def recorder() -> Callable[[int], None]:
    """The function with which a job of this process, or of one forked from it, enters a number.

    Numbers are 0 or more. Where the environment names no ledger, entering a number is an error.
    """
    setting = os.environ.get(VARIABLE)
    if setting is None:
        return _refuse
    pages, offsets = _own_pages(setting), itertools.count(0, _ENTRY.size)
    pack_into = _ENTRY.pack_into

    def renew() -> None:
        nonlocal pages, offsets
        pages, offsets = _own_pages(setting), itertools.count(0, _ENTRY.size)

    def record(number: int) -> None:
        # next() is atomic under the interpreter's lock: two threads never share an entry. 0 means empty.
        pack_into(pages, next(offsets), number + 1)

    os.register_at_fork(after_in_child=renew)
    return record


def _own_pages(setting: str) -> mmap.mmap:
    file, _ = mkstemp(dir=_folder(setting))
    try:
        os.ftruncate(file, int(setting.partition(":")[0]) * _ENTRY.size)
        return mmap.mmap(file, 0)
    finally:
        os.close(file)


def _folder(setting: str) -> str:
    return setting.partition(":")[2]


def _refuse(number: int) -> None:
    raise RuntimeError(f"cannot record {number}: {VARIABLE} is not set; start this with python -m benchmarks")


class Ledger:
    """The harness's side: an empty folder, with space for `capacity` entries of each process. Its owner removes it."""

    def __init__(self, folder: Path, capacity: int) -> None:
        folder.mkdir()
        self._folder = folder
        self._maps: dict[str, mmap.mmap] = {}
        self.environment = {VARIABLE: f"{capacity}:{folder}"}

    def __len__(self) -> int:
        """Number of entries so far; threads that are just writing may be missing."""
        self.scan()
        return sum(map(_filled, self._maps.values()))

    def numbers(self) -> list[int]:
        """All numbers entered; those of one process oldest first."""
        self.scan()
        return [entry - 1 for pages in self._maps.values() for (entry,) in _ENTRY.iter_unpack(pages[:]) if entry]

    def complaint(self, tasks: int) -> str | None:
        """None if the numbers 0 to `tasks` - 1 were entered exactly once each, else what is wrong."""
        times = Counter(self.numbers())
        lost = sum(1 for number in range(tasks) if not times[number])
        doubled = sum(count - 1 for count in times.values())
        strange = sum(1 for number in times if number >= tasks)
        if not (lost or doubled or strange):
            return None
        return f"{lost} lost, {doubled} doubled, {strange} never enqueued, of {tasks}"

    def scan(self) -> None:
        """Maps the files that are there; a mapped file stays readable after the folder is deleted."""
        with suppress(FileNotFoundError):
            for found in os.scandir(self._folder):
                if found.name not in self._maps and found.stat().st_size:
                    with Path(found.path).open("rb") as file:
                        self._maps[found.name] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _filled(pages: mmap.mmap) -> int:
    """Entries of one file: it is filled from its beginning, and 0 is none."""
    return bisect_left(range(len(pages) // _ENTRY.size), True, key=lambda index: _is_empty(pages, index))


def _is_empty(pages: mmap.mmap, index: int) -> bool:
    return _ENTRY.unpack_from(pages, index * _ENTRY.size) == (0,)
