"""An attempt: one run of a task, under a lease. Built for every task that is handed out, so it is kept small.

Lease numbers encode the worker that holds them, so finding the holder needs no extra Redis field. A number has 52 bits,
which sorted sets keep and write exactly: a 1, the 24 bits of the worker's mark (the end of its id), and 27 bits that
count its leases from a random start. Leases of programs and of batches have numbers below that, which encode nothing.
"""

import hashlib
import secrets
from datetime import datetime
from math import isfinite

import msgspec

from jobrunner.clock import from_ms
from jobrunner.retry import LONGEST_LEASE_S

_BAND = 2.0**42
"""See lua/lib/queue_position.lua."""
_COUNTED = 1 << 27
_FIRST = 1 << 51
SUSPECT, ALONE = 1, 2
"""Values of `Attempt.suspect`: a task that was running in a crash, and one that runs alone, see
worker/fetch/quarantine.py."""


class Attempt(msgspec.Struct, gc=False):
    """A task under a worker's lease. Numbers come from the server; `number` is 1 for the first attempt."""

    queue: str
    id: str
    token: str
    deadline_ms: float
    keepalive_ms: float
    type: str
    payload: bytes | None
    number: int
    retry_count: int
    enqueue_time_ms: float
    max_attempts: int
    headers: bytes | None
    encoding: bytes | None = None
    then: bytes | None = None
    """The joins to notify of the end of a task of a flow; its report carries them."""
    due_ms: float = 0.0
    """The instant at which the task was due, Unix ms; 0: at its enqueue."""
    unknown_since_ms: float = 0.0
    """The instant at which a worker that did not know its job first released it, Unix ms; 0: no worker did."""
    began_s: float = 0.0
    """The start of the attempt in this process (performance counter)."""
    run_s: float = -1.0
    """The run time; negative before the attempt has ended."""
    suspect: int = 0
    """SUSPECT, ALONE, or 0 for a task that was not running in a crash."""
    mark: int = 0
    """Offset of its "begun" flag in memory shared with the lease keeper (lease_keeper/keeper_link.py); 0: none."""

    @property
    def deadline(self) -> datetime:
        """The end of the lease at the hand-out; renewals extend it."""
        return from_ms(self.deadline_ms)

    @property
    def enqueue_time(self) -> datetime:
        """The time at which the task was first enqueued."""
        return from_ms(self.enqueue_time_ms)


def add_rare(
    attempt: Attempt,
    now_ms: float,
    retry_count: bytes | None,
    max_attempts: bytes | None,
    keepalive_ms: bytes | None,
    headers: bytes | None,
    encoding: bytes | None,
    _expires_in_ms: bytes | None,
    then: bytes | None,
    place: bytes | None = None,
    priority: bytes | None = None,
    unknown_since: bytes | None = None,
    suspect: bytes | None = None,
    _cancel_requested: bytes | None = None,
) -> None:
    """Adds the fields that few tasks have, from the reply of lua/reserve.lua.

    Damaged numbers read as the defaults of tasks without these fields, never as an error.
    """
    attempt.retry_count = _whole(retry_count, 0)
    attempt.number = attempt.retry_count + 1
    attempt.max_attempts = _whole(max_attempts, attempt.max_attempts)
    if keepalive_ms is not None:
        attempt.keepalive_ms = _lease_length(keepalive_ms, attempt.keepalive_ms)
        attempt.deadline_ms = now_ms + attempt.keepalive_ms
    attempt.headers = headers
    attempt.encoding = encoding
    attempt.then = then
    if unknown_since is not None:
        attempt.unknown_since_ms = _decimal(unknown_since, 0.0)
    if suspect is not None:
        attempt.suspect = SUSPECT
    if place is not None:
        attempt.due_ms = due_ms(place, priority)


def due_ms(place: bytes, priority: bytes | None) -> float:
    """The instant at which the task with this place in line was due, Unix ms."""
    return max(_decimal(place, 0.0) - (1 - min(max(_whole(priority, 1), 0), 2)) * _BAND, 0.0)


def _lease_length(raw: bytes, default: float) -> float:
    read = _decimal(raw, default)
    return read if 0 < read <= LONGEST_LEASE_S * 1000 else default


def _whole(raw: bytes | None, default: int) -> int:
    try:
        return int(raw or default)
    except ValueError:
        return default


def _decimal(raw: bytes | None, default: float) -> float:
    try:
        read = float(raw or default)
    except ValueError:
        return default
    return read if isfinite(read) else default


def numbers_of(worker_id: str) -> range:
    """The numbers that the leases of a worker may have."""
    first = _FIRST + int(mark_in(worker_id), 16) * _COUNTED
    return range(first, first + _COUNTED)


def number_from(word: str) -> int:
    """The number of a lease, or the first of several, of a program or a batch: the same for the same `word`."""
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=6).digest())


def new_mark() -> str:
    """A new random mark of a worker: six hexadecimal digits."""
    return secrets.token_hex(3)


def mark_in(worker_id: str) -> str:
    """The mark that a worker's id ends with."""
    return worker_id.rpartition(".")[2]


def mark_of(number: float) -> str:
    """The mark of the worker that took the lease with this number, "" when no worker did (lua/lib/dead_tasks.lua)."""
    return f"{int(number) // _COUNTED - _FIRST // _COUNTED:06x}" if number >= _FIRST else ""
