"""Rates of queues and their course, from several snapshots.

Rates are the growth of totals per second over the last ten seconds of snapshots. Totals only grow, so no task is
counted twice or missed. A queue missing in the previous snapshot is new: its totals count as growth. A queue that could
not be read has no rate until two snapshots have it again. A queue with lower totals than before was deleted meanwhile,
and starts from zero.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice

from jobrunner.client.client import Client
from jobrunner.inspector.live_snapshot import LiveSnapshot
from jobrunner.inspector.snapshot import CAME, LEFT, WENT_WRONG
from jobrunner.inspector.stats import by_queue

_RATE_WINDOW_S = 10.0

Totals = Mapping[str, Mapping[str, int] | None]
"""Counters by name, by queue; None for a queue that could not be read."""
_Look = tuple[float, Totals]
_NEW: Mapping[str, int] = {}
_MINUTE_S = 60.0
_COURSE_BEFORE = timedelta(minutes=15)
"""The time before the first snapshot that courses begin with, by minute."""
_KEPT = 120
"""Rates kept for each queue, one per snapshot."""


class Growth:
    """Rates at which totals grew between added snapshots; none before the second. No I/O."""

    def __init__(self) -> None:
        self._looks: deque[_Look] = deque()

    def add(self, at_s: float, totals: Totals) -> None:
        """Adds the totals of a snapshot; `at_s` is of a monotonic clock."""
        self._looks.append((at_s, totals))
        while len(self._looks) > 2 and at_s - self._looks[1][0] >= _RATE_WINDOW_S:
            self._looks.popleft()

    @property
    def queues(self) -> list[str]:
        """The queues of the last snapshot."""
        return list(self._looks[-1][1]) if self._looks else []

    def per_s(self, queues: Iterable[str], counters: Iterable[str]) -> float | None:
        """The growth per second of these counters of these queues, over the last ten seconds."""
        return _per_s(self._looks, queues, tuple(counters))

    def lately_per_s(self, queue: str, counters: Iterable[str]) -> float | None:
        """The growth per second of one queue, over the last two snapshots."""
        return _per_s([*islice(reversed(self._looks), 2)][::-1], [queue], tuple(counters))


def _per_s(looks: Sequence[_Look], queues: Iterable[str], counters: tuple[str, ...]) -> float | None:
    if len(looks) < 2 or looks[-1][0] <= looks[0][0]:
        return None
    last_s, now = looks[-1]
    grown: Counter[float] = Counter()
    for queue in queues:
        if (after := now.get(queue)) is None:
            continue
        known = ((at_s, found) for at_s, totals in looks if (found := totals.get(queue, _NEW)) is not None)
        first_s, before = next(known)
        grown[first_s] += sum(max(after.get(name, 0) - before.get(name, 0), 0) for name in counters)
    return sum((count / (last_s - first_s) for first_s, count in grown.items() if first_s < last_s), start=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Events per second over the last ten seconds of snapshots; None before the second snapshot."""

    into: float | None = None
    out: float | None = None
    bad: float | None = None
    """Attempts that failed, and leases that ended without a report."""
    course: tuple[float, ...] = ()
    """`out` between successive snapshots, oldest first; by minute for the time before the first snapshot, if known."""


class LiveRates:
    """Rates and their course, from the snapshots added to it."""

    def __init__(self, courses: Mapping[str, Iterable[float]] | None = None) -> None:
        """`courses`: initial values of the courses of queues, from before the first snapshot."""
        self._growth = Growth()
        self._courses = {name: deque(course, maxlen=_KEPT) for name, course in (courses or {}).items()}

    def add(self, seen: LiveSnapshot) -> None:
        """Adds a snapshot."""
        self._growth.add(seen.at_s, {one.name: None if one.problem else one.totals for one in seen.queues})
        for name in self._growth.queues:
            if (left := self._growth.lately_per_s(name, LEFT)) is not None:
                self._courses.setdefault(name, deque(maxlen=_KEPT)).append(left)
        for name in self._courses.keys() - self._growth.queues:  # queues that are gone
            del self._courses[name]

    def rates(self, queue: str) -> Rates:
        """Rates of one queue."""
        into, out, bad = (self._growth.per_s([queue], names) for names in (CAME, LEFT, WENT_WRONG))
        return Rates(into=into, out=out, bad=bad, course=tuple(self._courses.get(queue, ())))

    def total(self) -> Rates:
        """Rates of all queues together. A move within a pipeline counts out of one queue and into another."""
        queues = self._growth.queues
        into, out, bad = (self._growth.per_s(queues, names) for names in (CAME, LEFT, WENT_WRONG))
        courses = [self._courses.get(name, ()) for name in queues]
        longest = max(map(len, courses), default=0)
        padded = [(*(0.0,) * (longest - len(course)), *course) for course in courses]
        return Rates(into=into, out=out, bad=bad, course=tuple(sum(at) for at in zip(*padded, strict=True)))


def live_rates_of(client: Client) -> LiveRates:
    """Live rates whose courses begin with the last quarter of an hour, minute by minute. Raises ServerError."""
    found = by_queue(client, since=_COURSE_BEFORE + timedelta(minutes=1), may_lack=True)
    return LiveRates({name: [left / _MINUTE_S for left in one.course[:-1]] for name, one in found.items()})
