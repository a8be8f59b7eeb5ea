"""One turn of the fetch loop, and its reserves: sent, replied to but not read yet, or lost with the connection."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from jobrunner.broker.broker import Broker, run_each_or_errors
from jobrunner.broker.call import Call, attempt_to_interpret
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.broker.calls.queues import probe
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError, OutcomeUnknown
from jobrunner.logs import SafeLogger
from jobrunner.worker.fetch.intake import Intake, TaskParts
from jobrunner.worker.fetch.queue_caps import CappedRotation
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
class _UnreadReservation:
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


class Reserves:
    """The reserves and probes of the fetch loop: their calls, and their replies until the tasks are taken in.

    `may_reserve` returns whether tasks may begin now. A worker that is busy with short tasks keeps full replies, and
    reads them while the server handles its next exchange: to read a reply of 500 tasks and hand them to the executor
    takes about a millisecond, in which the server would be idle.
    """

    def __init__(
        self, parts: TaskParts, intake: Intake, numbers: LeaseNumbers, lost: LostReplies,
        may_reserve: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._keys = parts.keys
        self._rotation = parts.rotation
        self._prefetch = parts.prefetch
        self._intake = intake
        self._numbers = numbers
        self._lost = lost
        self._may_reserve = may_reserve
        self._unread: deque[_UnreadReservation] = deque()
        self.unread_tasks = 0
        """The tasks of replies that are not read yet."""

    def calls(self, turn: FetchTurn) -> list[Call[Any]]:
        """The calls of a plan: its reserves, then its probes."""
        most = self._prefetch.batch_max  # of one call, which blocks the server
        for queue, share in turn.plan.shares.items():
            counts = [min(most, share - first) for first in range(0, share, most)]
            turn.reserves += [reserve(self._keys, self._numbers, queue, count) for count in counts]
        reserves: list[Call[Any]] = [replace(sent.call, read=_as_sent) for sent in turn.reserves]
        return reserves + [probe(self._keys.queue(queue)) for queue in turn.plan.probed]

    def take_replies(self, turn: FetchTurn, replies: Sequence[Any]) -> None:
        """Takes in what the replies to these calls bring, or keeps them for the next exchange."""
        found = iter(replies)
        reserved = [_UnreadReservation(sent, next(found), turn.asked_at) for sent in turn.reserves]
        count = sum(sent.wanted for sent in turn.reserves)
        if all(one.is_full for one in reserved) and self._may_read_later(count):
            for one in reserved:
                self._rotation.gave_all(one.sent.queue)
            self.unread_tasks += count
            self._unread.extend(reserved)
        else:
            for one in reserved:
                self._take(turn, one)
        for queue in turn.plan.probed:
            turn.refused = self._intake.take_probe(queue, next(found), turn.asked_at) or turn.refused

    def take_unread(self, turn: FetchTurn) -> None:
        """Takes in the tasks that an earlier turn left unread."""
        while self._unread:
            try:
                self._take(turn, self._unread[0])
            finally:
                self.unread_tasks -= self._unread.popleft().sent.wanted  # last: until then they are in hand here

    def lose(self, turn: FetchTurn) -> None:
        """Records that the connection broke before the replies to these calls."""
        for sent in turn.reserves:
            self._lost.note(sent)

    def _take(self, turn: FetchTurn, one: _UnreadReservation) -> None:
        reply, sent = one.read(), one.sent
        if isinstance(reply, JobrunnerError):
            if isinstance(reply, OutcomeUnknown):  # of one node of a cluster, while others answered
                self._lost.note(sent)
            self._rotation.refused(sent.queue)
            turn.refused = reply
        else:
            self._intake.take(sent.queue, sent.wanted, reply, one.asked_at, begins=self._may_reserve())

    def _may_read_later(self, count: int) -> bool:
        is_plain = not isinstance(self._rotation, CappedRotation) and not self._intake.quarantine.is_on
        return is_plain and self._may_reserve() and self._prefetch.runs_soon(count)


def _as_sent(reply: Any) -> Any:
    return reply
