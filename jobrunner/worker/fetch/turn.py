"""One turn of the fetch loop, and replies to its reserves that are read later: while the server handles the next
exchange.

To read a reply of 500 tasks and hand them to the executor takes the fetch loop about a millisecond, in which the server
has nothing to do. So a worker that is busy with short tasks sends its next exchange first.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from jobrunner.broker.call import Call, attempt_to_interpret
from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Reservation
from jobrunner.errors import JobrunnerError
from jobrunner.worker.fetch.reserve_plan import ReservePlan
from jobrunner.worker.report.report_calls import ReportCall


@dataclass(slots=True)
class FetchTurn:
    """One turn: each step leaves here what the later ones need."""

    may_reserve: bool
    """Decided once, when the turn begins: it reserves nothing and begins nothing when that was False."""
    reports: list[ReportCall] = field(default_factory=list)
    plan: ReservePlan = field(default_factory=ReservePlan)
    asked_at: float = 0.0
    """When the exchange began (monotonic clock): leases count from here, as the server may have begun them then."""
    reserves: list[tuple[str, int, int, Call[Reservation]]] = field(default_factory=list)
    """For the shares of `plan`: the queue, how many are asked for, the number of the first lease, and the call."""
    replies: list[Any] = field(default_factory=list)
    """In the order of `reports`, of `reserves`, as the server sent them, and of the probes of `plan`."""
    refused: JobrunnerError | None = None
    """The last error with which the server answered a call. It is raised when everything else was taken in."""


@dataclass(frozen=True, slots=True)
class UnreadReservation:
    """The reply to a reserve of so many tasks, as the server sent it, or the error it was refused with."""

    queue: str
    count: int
    first: int
    """Number of its first lease."""
    call: Call[Reservation]
    reply: Any
    asked_at: float

    @property
    def is_full(self) -> bool:
        """Whether it has as many tasks as were asked for."""
        return leases.is_full(self.reply, self.count)

    def read(self) -> Reservation | JobrunnerError:
        """The reservation, or its error."""
        return self.reply if isinstance(self.reply, JobrunnerError) else attempt_to_interpret(self.call, self.reply)


class UnreadReservations:
    """Full replies of the last exchange. `tasks` counts the tasks in them."""

    def __init__(self) -> None:
        self._kept: deque[UnreadReservation] = deque()
        self.tasks = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def keep(self, one: UnreadReservation) -> None:
        """Keeps a reply until it is `done`."""
        self._kept.append(one)
        self.tasks += one.count

    def first(self) -> UnreadReservation:
        """The oldest reply. Its tasks count until it is `done`."""
        return self._kept[0]

    def done(self) -> None:
        """The oldest reply is taken in."""
        self.tasks -= self._kept.popleft().count
