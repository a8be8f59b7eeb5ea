"""Whose a lease is: a lease that a worker takes has a number that says so, which costs nobody a command or a field.

A number has 52 bits, which sorted sets keep and write exactly: a 1, the 24 of the worker's mark, with which its id
ends, and 27 that count its leases from a random start on. Numbers that programs and batches take are below that and
say nothing.
"""

import hashlib
import secrets
import threading

_COUNTED = 1 << 27
_FIRST = 1 << 51


class LeaseNumbers:
    """The numbers of a worker's leases. Two leases of one task never share one, unless more than 2^27 lie between."""

    def __init__(self, worker_id: str) -> None:
        self._base = _FIRST + int(mark_in(worker_id), 16) * _COUNTED
        self._next = secrets.randbelow(_COUNTED)
        self._lock = threading.Lock()

    def first_of(self, count: int) -> int:
        """The first of so many that follow one another."""
        with self._lock:
            if self._next + count > _COUNTED:
                self._next = 0
            first = self._base + self._next
            self._next += count
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
    """The mark of the worker that took the lease with this number; empty when no worker did (lua/lib/failures.lua)."""
    return f"{int(number) // _COUNTED - _FIRST // _COUNTED:06x}" if number >= _FIRST else ""
