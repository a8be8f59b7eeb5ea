"""A task: one enqueued run of a job, as it is sent and as it is read back.

The hash of a task has these fields (an absent field has its default):

=================== ==========================================================================================
field               content
=================== ==========================================================================================
id, type, queue     the id of the task; the job's name, empty for an item of a bare queue; the full name of its queue
payload, encoding   opaque bytes, never parsed inside the server; their format in a bare queue (`json` or bytes), or
                    the envelope of encrypted or signed bytes (see encryption/envelope.py), or of a reference to a
                    payload store (see payload_store/reference.py)
headers             JSON object of strings, kept across retries and moves
enqueue_time        when the task was first enqueued, Unix ms; retries, promotion and moves do not change it
retry_count         failures plus leases that ended without a report, since the task entered its queue; the current
                    attempt has the next number
expiries            leases that ended without a report
suspect             1 when the task was running when such a lease ended, and may be the cause: its next attempt runs
                    alone
max_attempts, max_stalled, keepalive_ms, priority, expires_in_ms   options of the task; absent: those of the queue
key                 the partition of limits per key and of fair turns: a tenant, a host, ...
place               queue position that the task has, will have when it is due, and returns to
error, died_at      text of the last failure; time of death
failures            the last ten attempts that failed or whose lease expired, a line each: Unix ms, number of the
                    attempt, failed, expired or crashed, worker (see Failure), first line of the error; tabs between
unknown_since       when a worker that did not know its job first handed it back since its last attempt, Unix ms
started_at          in a queue that keeps history: when the task was last handed out, Unix ms
run_ms              in a queue that keeps history: duration of the last attempt, as its worker measured it; only
                    for tasks that a worker ran and that did not die
keep_ms             in a queue that keeps history: how long a finished task stays if its history entry is trimmed before
                    that; absent: a minute for a job, not at all for an item
finished_at, outcome, result   for a finished task with a TTL; no outcome: succeeded; no result: None; no time: the
                    score in the index of history, else a minute (the default `result_ttl`) before the TTL ends
attempts            for a task that was cancelled before it ran
total_attempts      attempts before `retry_count` began anew: with a move, a requeue, or a death in another queue
hops                number of moves; a child of a task has the task's hops plus one
cancel_requested               flag
then, results, outcomes        for a task of a flow: joins to notify of its end; values passed to it (see join.py)
flow                for a callback of a flow: the id of the flow (other tasks of the flow have it in the last of `then`)
parts, r0, o0, r1, o1, ...     after very many steps, in place of `results` and `outcomes`: their parts, to be joined
=================== ==========================================================================================
"""

import hashlib
import itertools
import math
import os
import re
import threading
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from jobrunner.clock import time_ns
from jobrunner.errors import InvalidOption, NaiveDatetime, PayloadTooLarge
from jobrunner.formatting import describe
from jobrunner.retry import seconds

ENCRYPTED = "(encrypted)"
"""The placeholder shown for ciphertext."""
_MADE_ID = re.compile(r"[0-9a-f]{28}-.")
_TIME_DIGITS = 16
_LAST_S = 253_402_300_799
"""The last second that a datetime can hold."""


class TaskState(StrEnum):
    """The state of a task in its life cycle."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    DEAD = "dead"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether the task stays in this state unless a user or program acts on it."""
        return self in (TaskState.DEAD, TaskState.SUCCEEDED, TaskState.CANCELLED)


class Lock(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Uniqueness: tasks with the same digest are duplicates. `lasts`: 'started', 'finished' or 'expired'."""

    digest: str
    lasts: str
    ttl_ms: int
    on_clash: str
    covers_key: bool = False
    """Whether tasks with the same digest have the same partition key."""


class Task(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task to enqueue. `delay_ms` counts from the server's current time; `at_ms` is an instant (Unix ms). At most one
    of them is set."""

    id: str
    queue: str
    payload: bytes
    type: str = ""
    priority: int | None = None
    delay_ms: float | None = None
    at_ms: float | None = None
    keepalive_ms: int | None = None
    max_attempts: int | None = None
    max_stalled: int | None = None
    expires_in_ms: int | None = None
    headers: bytes | None = None
    encoding: str = ""
    key: str | None = None
    then: bytes | None = None
    """The joins to notify of the task's end (see join.py)."""
    lock: Lock | None = None
    kept_s: float = 0.0
    """How long its id stays known after its end, if that is so long that the enqueue needs no separate note."""
    sending: str = ""
    """For a task with an id chosen by the user: distinguishes this enqueue from others with the same id."""

    @property
    def may_go_anywhere(self) -> bool:
        """Whether any shard of its queue may take the task: it has no key, no lock and no id chosen by the user."""
        return self.key is None and self.lock is None and not self.sending


def due(
    in_: timedelta | float | None, at: datetime | float | None, *, option: str = "in_"
) -> tuple[float | None, float | None]:
    """Converts the options `in_` and `at` to (delay in ms, instant in Unix ms); at most one is not None.

    Raises InvalidOption for both options or an invalid time, NaiveDatetime for a datetime without a zone. A delay of 0
    or less, and an instant in the past, mean now.
    """
    if in_ is not None and at is not None:
        raise InvalidOption(f"both {option}={describe(in_)} and at={describe(at)} are given; give one of them")
    if in_ is not None:
        if isinstance(in_, timedelta):
            in_ = in_.total_seconds()
        return max(seconds(in_, option=option, minimum=-math.inf), 0.0) * 1000, None
    return None, None if at is None else instant_ms(at)


def instant_ms(at: object) -> float:
    """Converts an aware datetime, or seconds since 1970, to Unix ms. Raises NaiveDatetime, InvalidOption."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise NaiveDatetime(f"at={at.isoformat()} has no time zone; write datetime(…, tzinfo=UTC)")
        return min(at.timestamp(), _LAST_S) * 1000  # datetime.max would be rounded up to a time that no datetime holds
    if isinstance(at, (int, float)) and not isinstance(at, bool) and -_LAST_S <= at <= _LAST_S:
        return at * 1000
    raise InvalidOption(f"at={describe(at)}: give an aware datetime, or seconds since 1970, before the year 10000")


def check_priority(priority: object) -> int | None:
    """Returns a priority (0, 1 or 2; higher goes first) or None for the default. Raises InvalidOption."""
    if priority is None or (isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 2):
        return priority
    raise InvalidOption(f"priority={describe(priority)}: give 0, 1 or 2; higher goes first, 1 is the default")


class _IdSource:
    """Generates ids of 28 hex digits: 12 of Unix ms, 4 of a counter within the millisecond, 12 of this process.

    Invariant: ids increase within a process, so they sort in the order of their creation.
    """

    def __init__(self) -> None:
        self._process = os.urandom(6).hex()
        self._lock = threading.RLock()
        self._floor = time_ns() // 1_000_000 << 16
        self._counter = itertools.count(self._floor)

    def renew(self) -> None:
        """Renews the process part and the lock: a forked child must not share its parent's ids, nor a lock that a
        thread of the parent held."""
        self._process = os.urandom(6).hex()
        self._lock = threading.RLock()

    def next(self) -> str:
        """The next id, without its tag; no two threads get the same one."""
        number = next(self._counter)
        floor = time_ns() // 1_000_000 << 16
        if number < floor:
            counter = itertools.count(floor + 1)
            with self._lock:
                # The first thread in a millisecond sets the counter. No call happens in between, so a signal handler
                # that generates an id (the lock is re-entrant) runs before or after.
                if is_first := floor > self._floor:
                    self._floor, self._counter = floor, counter
            number = floor if is_first else next(self._counter)
        return f"{number:016x}{self._process}"


_ids = _IdSource()
os.register_at_fork(after_in_child=_ids.renew)


def new_id(tag: str) -> str:
    """A new task id. It sorts after all earlier ids of this process, and ends with the hash tag of its queue."""
    return f"{_ids.next()}-{tag}"


def derived_id(parent: str, ordinal: int | str, tag: str) -> str:
    """The id of a task derived from `parent`. `ordinal` distinguishes siblings; the same arguments give the same id.

    It has the format of a generated id, and the time of its parent's id if that has one, so both sort side by side.
    """
    digest = hashlib.sha256(f"{parent}\0{ordinal}".encode()).hexdigest()
    time = parent[:_TIME_DIGITS] if _MADE_ID.match(parent) else digest[-_TIME_DIGITS:]
    return f"{time}{digest[:12]}-{tag}"


def check_size(payload: bytes, limit: int) -> None:
    """Raises PayloadTooLarge for a payload of more bytes than the limit."""
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, the limit is {limit}; store it elsewhere and send a reference, "
            "or raise payload_limit"
        )
