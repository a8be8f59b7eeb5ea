"""Lease numbers encode the worker that holds them, so finding the holder needs no extra Redis field.

A number has 52 bits, which sorted sets keep and write exactly: a 1, the 24 bits of the worker's mark (the end of its
id), and 27 bits that count its leases from a random start. Leases of programs and of batches have numbers below that,
which encode nothing.
"""

import hashlib
import secrets

_COUNTED = 1 << 27
_FIRST = 1 << 51


def numbers_of(worker_id: str) -> range:
    """The numbers that the leases of a worker may have."""
    first = _FIRST + int(mark_in(worker_id), 16) * _COUNTED
    return range(first, first + _COUNTED)


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
