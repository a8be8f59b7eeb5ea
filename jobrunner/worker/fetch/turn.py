"""One turn of the fetch loop, and reserves on their way: sent ahead behind a wait, replied to but not read yet, or lost
with the connection."""

from collections import deque
from collections.abc import Sequence
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
from jobrunner.worker.report.report_calls import ReportCall

_MOST_AHEAD = 2
"""Two tasks of a queue: the second shows whether the queue has more. A worker that loses its connection strands at most
this many tasks until their leases expire."""
_QUEUES_AHEAD = 4
"""Workers that serve more queues than this poll instead."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 32.0
"""Pauses between the questions double, up to this one; behind it nothing is on its way any more."""
_log = SafeLogger("jobrunner.worker")


class SentReserve(NamedTuple):
    """A reserve: of up to how many tasks, and under which leases."""

    queue: str
    wanted: int
    first: int
    """Number of its first lease."""
    call: Call[Reservation]


def reserve(keys: Keys, numbers: LeaseNumbers, queue: str, count: int) -> SentReserve:
    """A reserve with lease numbers of its own."""
    first = numbers.first_of(count)
    call = leases.reserve(keys.queue(queue), count, token=first, most_bytes=leases.REPLY_BYTES)
    return SentReserve(queue, count, first, call)


@dataclass(slots=True)
class FetchTurn:
    """One turn: each step leaves here what the later ones need."""

    may_reserve: bool
    """Decided once, when the turn begins: it reserves nothing and begins nothing when that was False."""
    reports: list[ReportCall] = field(default_factory=list)
    plan: ReservePlan = field(default_factory=ReservePlan)
    asked_at: float = 0.0
    """When the exchange began (monotonic clock): leases count from here, as the server may have begun them then."""
    reserves: list[SentReserve] = field(default_factory=list)
    """For the shares of `plan`."""
    replies: list[Any] = field(default_factory=list)
    """In the order of `reports`, of `reserves`, as the server sent them, and of the probes of `plan`."""
    refused: JobrunnerError | None = None
    """The last error with which the server answered a call. It is raised when everything else was taken in."""


class ReserveAhead:
    """The reserve commands behind the wait. Its length is how many answers came that were not taken in. The wake-up
    thread calls `plan` and `take_replies`, the fetch loop everything else.

    Invariant: they reserve no more than the worker could take when it began to block, and it hands back what it cannot
    take any more; a task counts as held since the server handed it out.
    """

    def __init__(self, keys: Keys, numbers: LeaseNumbers) -> None:
        self._keys = keys
        self._numbers = numbers
        self._planned: list[SentReserve] = []
        self._planned_at = 0.0
        self._brought: deque[tuple[SentReserve, Reservation, float]] = deque()

    def __len__(self) -> int:
        return len(self._brought)

    def plan(self, queues: Sequence[str], wanted: int) -> list[Call[Reservation]]:
        """Reserves from these queues, together at most `wanted`; nothing where they are too many."""
        count = min(wanted // max(len(queues), 1), _MOST_AHEAD)
        asks = count > 0 and len(queues) <= _QUEUES_AHEAD
        self._planned = [reserve(self._keys, self._numbers, queue, count) for queue in queues] if asks else []
        self._planned_at = monotonic()
        return [planned.call for planned in self._planned]

    def take_planned(self) -> list[SentReserve]:
        """Those that were planned last and are not replied to."""
        planned, self._planned = self._planned, []
        return planned

    def take_replies(self, brought: Sequence[Reservation | JobrunnerError]) -> set[str]:
        """Takes in the replies to the calls; returns the queues that need no poll now."""
        polled = set()
        for sent, one in zip(self.take_planned(), brought, strict=False):
            if isinstance(one, Reservation):
                self._brought.append((sent, one, self._planned_at))
                polled.add(sent.queue)
        return polled

    def first(self) -> tuple[SentReserve, Reservation, float]:
        """The oldest answer: to which reserve, what came, and when the wait began (monotonic clock). It counts until it
        is `done`."""
        return self._brought[0]

    def done(self) -> None:
        """The oldest answer is taken in."""
        self._brought.popleft()


@dataclass(frozen=True, slots=True)
class UnreadReservation:
    """The reply to a reserve, as the server sent it, or the error it was refused with."""

    sent: SentReserve
    reply: Any
    asked_at: float

    @property
    def is_full(self) -> bool:
        """Whether it has as many tasks as were asked for."""
        return leases.is_full(self.reply, self.sent.wanted)

    def read(self) -> Reservation | JobrunnerError:
        """The reservation, or its error."""
        if isinstance(self.reply, JobrunnerError):
            return self.reply
        return attempt_to_interpret(self.sent.call, self.reply)


class UnreadReservations:
    """Full replies of the last exchange, read while the server handles the next. `tasks` counts the tasks in them.

    To read a reply of 500 tasks and hand them to the executor takes the fetch loop about a millisecond, in which the
    server has nothing to do. So a worker that is busy with short tasks sends its next exchange first.
    """

    def __init__(self) -> None:
        self._kept: deque[UnreadReservation] = deque()
        self.tasks = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, one: UnreadReservation) -> None:
        """Keeps a reply until it is `done`."""
        self._kept.append(one)
        self.tasks += one.sent.wanted

    def first(self) -> UnreadReservation:
        """The oldest reply. Its tasks count until it is `done`."""
        return self._kept[0]

    def done(self) -> None:
        """The oldest reply is taken in."""
        self.tasks -= self._kept.popleft().sent.wanted


class _LostReply(msgspec.Struct):
    queue: str
    first: int
    last: int
    pause_s: float = _FIRST_PAUSE_S
    due_at: float = 0.0


class LostReplies:
    """Reserves whose reply was lost with the connection: what they took goes back to its place, no attempt spent. Any
    thread notes them; the fetch loop does the rest.

    Nobody here knows of these leases, so their tasks would wait until they end; a task with one attempt would be dead
    then and have never run. The numbers of the leases are known, so the server is asked for them as soon as it answers
    again. It is asked more than once, as a command may still be on its way: the system goes on sending what a closed
    connection left. The first questions follow each other closely, as they may be lost like the reserve, and leases may
    last one second.
    """

    def __init__(self, broker: Broker, keys: Keys) -> None:
        self._broker = broker
        self._keys = keys
        self._lost: deque[_LostReply] = deque()

    def note(self, sent: SentReserve) -> None:
        """This reserve may have been applied."""
        self._lost.append(_LostReply(sent.queue, sent.first, sent.first + sent.wanted - 1))

    def hand_back(self) -> None:
        """Asks for the leases when that is due, and releases their tasks. One that does not answer is asked again."""
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
        """The pause, or less where the server is to be asked before."""
        if not self._lost:
            return pause_s
        return min(pause_s, max(min(one.due_at for one in list(self._lost)) - monotonic(), 0.0))


def _has_any(held: Any) -> bool:
    return bool(held) and not isinstance(held, Exception)
