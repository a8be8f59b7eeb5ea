"""Lease numbers encode the worker that holds them, so finding the holder needs no extra Redis field.

A number has 52 bits, which sorted sets keep and write exactly: a 1, the 24 bits of the worker's mark (the end of its
id), and 27 bits that count its leases from a random start. Leases of programs and of batches have numbers below that,
which encode nothing.
"""

import hashlib
import secrets
import threading
from collections.abc import Callable

_COUNTED = 1 << 27
_FIRST = 1 << 51


class LeaseNumbers:
    """The numbers of a worker's leases. Two leases of one task never share one, unless more than 2^27 lie between.

    `note` hears from which number to which there may be leases, before there are any.
    """

    def __init__(self, worker_id: str, note: Callable[[int, int], object] = lambda _first, _last: None) -> None:
        self._base = _FIRST + int(mark_in(worker_id), 16) * _COUNTED
        self._lowest = self._next = secrets.randbelow(_COUNTED)
        self._highest = 0
        self._note = note
        self._lock = threading.Lock()

    def first_of(self, count: int) -> int:
        """The first of so many that follow one another."""
        with self._lock:
            if self._next + count > _COUNTED:
                self._next = self._lowest = 0
            first = self._base + self._next
            self._next += count
            self._highest = max(self._highest, self._next)
            self._note(self._base + self._lowest, self._base + self._highest)
        return first


def number_from(word: str) -> int:
    """The number of a lease, or the first of several, that a program or a batch takes: the same for the same word."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


def new_mark() -> str:
    """Six hexadecimal digits."""
    return secrets.token_hex(3)


def mark_in(worker_id: str) -> str:
    """The mark that a worker's id ends with."""
    return worker_id.rpartition(".")[2]


def mark_of(number: float) -> str:
    """The mark of the worker that took the lease with this number, "" when no worker did (lua/lib/dead_tasks.lua)."""
    return f"{int(number) // _COUNTED - _FIRST // _COUNTED:06x}" if number >= _FIRST else ""
