"""A task: one enqueued run of a job, as it is sent and as it is read back.

The hash of a task has these fields (absent ones are defaults):

=================== ==========================================================================================
field               content
=================== ==========================================================================================
id, type, queue     its id; the job's name, empty for a bare queue's item; the full name of the queue it is in
payload, encoding   opaque bytes, never parsed inside the server; how a bare queue reads them (`json` or bytes), or
                    the envelope of encrypted or signed ones (see encryption/envelope.py), or of a reference to a
                    payload store (see payload_store/reference.py)
headers             JSON object of strings that travels with it
enqueue_time        when it was first enqueued, Unix ms; retries, promotion and moves leave it alone
retry_count         failures plus leases that ended without a report, since it entered its queue; the attempt that
                    runs is the one after these
expiries            leases that ended without a report
suspect             1 when it was running in such an end and may have caused it: it runs alone the next time
max_attempts, max_stalled, keepalive_ms, priority, expires_in_ms   what the task says itself; else the queue's
key                 what limits per key and turns go by: a tenant, a host, ...
place               place in line that it has, will have when it is due, and goes back to
error, died_at      text of the last failure; time of death
failures            the last ten attempts that failed or whose lease expired, a line each: Unix ms, number of the
                    attempt, failed, expired or crashed, worker (see Failure), first line of the error; tabs between
unknown_since       when a worker that did not know its job first handed it back since its last attempt, Unix ms
started_at          in a queue that keeps history: when it was last handed out, Unix ms
run_ms              in a queue that keeps history: how long the last attempt ran, as its worker measured it; only
                    of tasks that a worker ran and that did not die
keep_ms             in a queue that keeps history: how long a finished task is to stay when its entry is trimmed before
                    that; none: a minute for a job, and not at all for an item
finished_at, outcome, result   of a finished task that is kept for a while, as its end of life tells; no outcome:
                    succeeded; no result: None; no time: that in the index of history, else, as `result_ttl` is a
                    minute, this long before the end of life
attempts            of a task that was cancelled before it ran
total_attempts, hops           lifetime figures across moves; a child of a task has its hops and one more
cancel_requested               flag
then, results, outcomes        of a task of a flow: whom to tell of its end; what it was given (see join.py)
flow                of a callback of a flow: the id of the flow (of other tasks of it, the last of `then` has it)
parts, r0, o0, r1, o1, ...     in place of the last two behind very many steps: what, side by side, makes them up
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
    """Where a task is in its life."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    PENDING = "pending"
    DEAD = "dead"
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more happens to the task by itself."""
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
    """A task to enqueue. `delay_ms` counts from the server's now; `at_ms` is an instant; at most one is given."""

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
    """The joins to notify of its end (see join.py)."""
    lock: Lock | None = None
    kept_s: float = 0.0
    """How long its id stays known when it is finished, if that is so long that the enqueue needs no note of its own."""
    sending: str = ""
    """Of a task with an id of the user's own: tells this sending from others of that id."""

    @property
    def may_go_anywhere(self) -> bool:
        """Whether any shard of its queue will do: it has no key, no lock and no id of the user's own."""
        return self.key is None and self.lock is None and not self.sending


def due(
    in_: timedelta | float | None, at: datetime | float | None, *, option: str = "in_"
) -> tuple[float | None, float | None]:
    """(delay in ms, instant in Unix ms) of the options `in_` and `at`; at most one is not None.

    Raises InvalidOption for both or for what is no time, NaiveDatetime for a datetime without a zone. A delay of 0 or
    less, and an instant that has passed, mean now.
    """
    if in_ is not None and at is not None:
        raise InvalidOption(f"both {option}={describe(in_)} and at={describe(at)} are given; give one of them")
    if in_ is not None:
        if isinstance(in_, timedelta):
            in_ = in_.total_seconds()
        return max(seconds(in_, option=option, minimum=-math.inf), 0.0) * 1000, None
    return None, None if at is None else instant_ms(at)


def instant_ms(at: object) -> float:
    """Unix ms of an aware datetime, or of seconds since 1970. Raises NaiveDatetime, InvalidOption."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise NaiveDatetime(f"at={at.isoformat()} has no time zone; write datetime(…, tzinfo=UTC)")
        return min(at.timestamp(), _LAST_S) * 1000  # datetime.max would be rounded up, to what no datetime can hold
    if isinstance(at, (int, float)) and not isinstance(at, bool) and -_LAST_S <= at <= _LAST_S:
        return at * 1000
    raise InvalidOption(f"at={describe(at)}: give an aware datetime, or seconds since 1970, before the year 10000")


def check_priority(priority: object) -> int | None:
    """Returns a priority (0, 1 or 2; higher goes first) or None for the default. Raises InvalidOption."""
    if priority is None or (isinstance(priority, int) and not isinstance(priority, bool) and 0 <= priority <= 2):
        return priority
    raise InvalidOption(f"priority={describe(priority)}: give 0, 1 or 2; higher goes first, 1 is the default")


class _IdSource:
    """28 hex digits: 12 of Unix ms, 4 of a counter within the millisecond, 12 of this process.

    Never goes back within a process, so ids sort in the order they were made.
    """

    def __init__(self) -> None:
        self._process = os.urandom(6).hex()
        self._lock = threading.RLock()
        self._floor = time_ns() // 1_000_000 << 16
        self._counter = itertools.count(self._floor)

    def renew(self) -> None:
        """Takes a new process part; a forked child must not share its parent's, nor a lock that a thread of it held."""
        self._process = os.urandom(6).hex()
        self._lock = threading.RLock()

    def next(self) -> str:
        """The next id, without its tag; no two threads get the same one."""
        number = next(self._counter)
        floor = time_ns() // 1_000_000 << 16
        if number < floor:
            counter = itertools.count(floor + 1)
            with self._lock:
                # The first one in a millisecond sets the counter. Nothing is called meanwhile, so a signal handler that
                # makes an id, which the lock lets in, runs before or after.
                if is_first := floor > self._floor:
                    self._floor, self._counter = floor, counter
            number = floor if is_first else next(self._counter)
        return f"{number:016x}{self._process}"


_ids = _IdSource()
os.register_at_fork(after_in_child=_ids.renew)


def new_id(tag: str) -> str:
    """A new task id: sorts behind all that this process made before, and carries the hash tag of its queue."""
    return f"{_ids.next()}-{tag}"


def derived_id(parent: str, ordinal: int | str, tag: str) -> str:
    """The id of what was made out of `parent` and is told from its siblings by `ordinal`; always the same one.

    It has the shape of a made id, and the time of its parent when that has one, so both sort side by side.
    """
    digest = hashlib.sha256(f"{parent}\0{ordinal}".encode()).hexdigest()
    time = parent[:_TIME_DIGITS] if _MADE_ID.match(parent) else digest[-_TIME_DIGITS:]
    return f"{time}{digest[:12]}-{tag}"


def check_size(payload: bytes, limit: int) -> None:
    """Raises PayloadTooLarge for more bytes than the limit."""
    if len(payload) > limit:
        raise PayloadTooLarge(
            f"the payload has {len(payload)} bytes, the limit is {limit}; store it elsewhere and send a reference, "
            "or raise payload_limit"
        )
