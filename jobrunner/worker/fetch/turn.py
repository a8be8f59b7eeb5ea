"""One turn of the fetch loop, and reserves in flight: replied to but not read yet, or lost with the connection."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from jobrunner.broker.broker import Broker, run_each_or_errors
from jobrunner.broker.call import Call, attempt_to_interpret
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers, ReservePlan
from jobrunner.worker.fetch.waiting_reports import takes_no_writes
from jobrunner.worker.report.report_calls import ReportCall

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 32.0
"""Pauses between queries double, up to this pause; by then no command is in flight any more."""
_log = SafeLogger("jobrunner.worker")


class SentReserve(NamedTuple):
    """A reserve command, with the most tasks it takes and the numbers of their leases."""

    queue: str
    wanted: int
    first: int
    """Number of its first lease."""
    call: Call[Reservation]


def reserve(keys: Keys, numbers: LeaseNumbers, queue: str, count: int) -> SentReserve:
    """Creates a reserve with new lease numbers."""
    first = numbers.first_of(count)
    call = leases.reserve(keys.queue(queue), count, token=first, most_bytes=leases.REPLY_BYTES)
    return SentReserve(queue, count, first, call)


@dataclass(slots=True)
class FetchTurn:
    """State of one turn, passed from step to step."""

    may_reserve: bool
    """Decided once, when the turn begins: when False, the turn reserves and begins no task."""
    reports: list[ReportCall] = field(default_factory=list)
    plan: ReservePlan = field(default_factory=ReservePlan)
    asked_at: float = 0.0
    """When the exchange began (monotonic clock): leases count from here, as the server may have begun them then."""
    reserves: list[SentReserve] = field(default_factory=list)
    """The reserves for the shares of `plan`."""
    replies: list[Any] = field(default_factory=list)
    """Replies to `reports`, then to `reserves` (uninterpreted), then to the probes of `plan`."""
    refused: JobrunnerError | None = None
    """The last error reply of the server, which is raised or logged after all other replies were processed."""

    @property
    def is_refused_whole(self) -> bool:
        """Whether the server answered every call with an error that says that it is not well. Errors of reports alone
        say so only when it takes no writes: else a key of their queue is damaged, and other queues must not wait."""
        if not all(isinstance(reply, JobrunnerError) for reply in self.replies):
            return False
        asked = self.replies[len(self.reports) :]
        return bool(asked) or any(takes_no_writes(reply) for reply in self.replies)


@dataclass(frozen=True, slots=True)
class UnreadReservation:
    """The uninterpreted reply to a reserve, or the error with which the server refused it."""

    sent: SentReserve
    reply: Any
    asked_at: float

    @property
    def is_full(self) -> bool:
        """Whether the reply has as many tasks as the reserve requested."""
        return leases.is_full(self.reply, self.sent.wanted)

    def read(self) -> Reservation | JobrunnerError:
        """Interprets the reply. Returns the reservation, or its error."""
        if isinstance(self.reply, JobrunnerError):
            return self.reply
        return attempt_to_interpret(self.sent.call, self.reply)


class UnreadReservations:
    """Full replies of the last exchange, read while the server handles the next exchange. `tasks` counts their tasks.

    The fetch loop takes about a millisecond to read a reply of 500 tasks and hand them to the executor, in which the
    server would be idle. So a worker that is busy with short tasks sends its next exchange first.
    """

    def __init__(self) -> None:
        self._kept: deque[UnreadReservation] = deque()
        self.tasks = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, one: UnreadReservation) -> None:
        """Keeps a reply until `done`."""
        self._kept.append(one)
        self.tasks += one.sent.wanted

    def first(self) -> UnreadReservation:
        """The oldest reply. Its tasks count until `done`."""
        return self._kept[0]

    def done(self) -> None:
        """Removes the oldest reply, which was processed."""
        self.tasks -= self._kept.popleft().sent.wanted


class _LostReply(msgspec.Struct):
    queue: str
    first: int
    last: int
    pause_s: float = _FIRST_PAUSE_S
    due_at: float = 0.0


class LostReplies:
    """Reserves whose reply was lost with the connection: their tasks go back to their queue positions, with no attempt
    spent. Any thread may call `note`; the fetch loop calls the other methods.

    The worker does not hold these leases, so the tasks would wait until the leases expire; a task with one attempt
    would then be dead without a run. The worker knows the lease numbers, so it queries them as soon as the server
    answers again. It repeats the query, as a reserve may still be in flight: the system goes on sending the data of a
    closed connection. The first queries follow closely: they may be lost like the reserve, and leases may last 1 s.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._lost: deque[_LostReply] = deque()

    def note(self, sent: SentReserve) -> None:
        """Records a reserve without a reply, which the server may have applied."""
        self._lost.append(_LostReply(sent.queue, sent.first, sent.first + sent.wanted - 1))

    def hand_back(self) -> None:
        """Queries the lost leases that are due, and releases their tasks. Queries without an answer are repeated."""
        now = monotonic()
        due = [one for one in list(self._lost) if one.due_at <= now]  # a copy: others are noted meanwhile
        if not due:
            return
        asked = [leases.taken_in(self._keys.queue(one.queue), one.first, one.last) for one in due]
        found = run_each_or_errors(self._broker, asked)
        self._release([(one.queue, held) for one, held in zip(due, found, strict=True) if _has_any(held)])
        for one, held in zip(due, found, strict=True):
            one.due_at = now + one.pause_s
            if one.pause_s < _LONGEST_PAUSE_S:
                one.pause_s *= 2
            elif not isinstance(held, Exception):
                self._lost.remove(one)

    def _release(self, taken: list[tuple[str, list[tuple[str, int]]]]) -> None:
        calls = [
            leases.release(self._keys.queue(queue), [(task_id, str(number), "") for task_id, number in held])
            for queue, held in taken
        ]
        for (queue, held), verdicts in zip(taken, run_each_or_errors(self._broker, calls), strict=True):
            if not isinstance(verdicts, Exception):
                _log.info("tasks of a lost reply handed back", queue=queue, count=len(held))

    def until_next(self, pause_s: float) -> float:
        """Returns `pause_s`, or less when a query is due earlier."""
        if not self._lost:
            return pause_s
        return min(pause_s, max(min(one.due_at for one in list(self._lost)) - monotonic(), 0.0))


def _has_any(held: Any) -> bool:
    return bool(held) and not isinstance(held, Exception)
