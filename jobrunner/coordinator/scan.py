"""One scan per interval serves every maintenance task of the leader, instead of one query each."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls.leader import ScanReply, leader_scan, together
from jobrunner.broker.calls.queues import registered
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic, thread_time
from jobrunner.errors import JobrunnerError

SHARE = 0.006
"""The largest share of one core that the leader spends on inactive queues, however many there are."""


class ScanBudget:
    """Limits the processor time of maintenance: tasks work under `spending`, and postpone work while `pause` is above
    0.0.
    """

    def __init__(self, share: float = SHARE) -> None:
        self._share = share
        self._free_at = float("-inf")

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Turns the processor time that this thread uses in the block into a pause."""
        began = thread_time()
        try:
            yield
        finally:
            self._free_at = max(self._free_at, monotonic()) + (thread_time() - began) / self._share

    def forget(self) -> None:
        """Starts with an unspent budget."""
        self._free_at = float("-inf")

    @property
    def pause(self) -> float:
        """Seconds until the budget allows more work; 0.0 when it allows work now."""
        return max(self._free_at - monotonic(), 0.0)


_BUSY_FOR_S = 60.0
_SLICES_OF_A_TURN = 4


class LeaderScan:
    """A maintenance task of the leader: scans queues and workers, and hands the result to `takers`.

    Every `every_s` it scans the workers and the recently active queues in one call. A round through all other queues is
    due then, slice by slice, which lasts as long as the budget requires. So the cost of a scan follows the activity and
    not the number of queues. The call for the active ones takes the first slice along, which is all of few queues. An
    error of one queue does not keep results of the others from the takers.
    """

    def __init__(
        self, broker: Broker, keys: Keys, every_s: float, takers: Collection[Callable[[ScanReply], object]],
        budget: ScanBudget | None = None, unused_ms: int = 0,
    ) -> None:  # fmt: skip
        self._broker = broker
        self._keys = keys
        self._looks = Interval(every_s)
        self._is_round_due = False
        self._takers = takers
        self._budget = budget or ScanBudget()
        self._unused_ms = unused_ms
        self._cursor = 0
        self._busy: dict[str, float] = {}
        self._totals: dict[str, int] = {}
        self._totals_of_round: dict[str, int] = {}

    def forget(self) -> None:
        """Forgets earlier results, which may be stale, and makes a scan due. Called when leadership begins."""
        self._cursor, self._busy, self._totals, self._totals_of_round = 0, {}, {}, {}
        self._looks.end()
        self._budget.forget()

    def step(self) -> float:
        """Scans when that is due; returns the seconds to the next scan. Raises the first error of the server."""
        pause = self._looks.begin()
        is_due, pause = not pause, pause or self._looks.every_s
        busy = self._names_of_busy() if is_due else []
        self._is_round_due |= is_due
        if self._is_round_unfinished and not self._budget.pause:
            with self._budget.spending():
                self._go_round(busy, with_workers=is_due)
        elif is_due:
            self._look(busy, with_workers=True)
        return min(pause, self._budget.pause) if self._is_round_unfinished else pause

    @property
    def _is_round_unfinished(self) -> bool:
        return self._cursor > 0 or self._is_round_due

    def _go_round(self, busy: Sequence[str], *, with_workers: bool) -> None:
        """Scans some slices of the round through all queues, the first slice together with the busy queues."""
        for _ in range(_SLICES_OF_A_TURN):
            if not self._cursor:
                self._is_round_due = False
            try:
                self._cursor, names = self._broker.run(registered(self._keys, self._cursor))
            except JobrunnerError:
                if with_workers:  # the node with the names is away, not those of the busy queues
                    self._look(busy, with_workers=True)
                raise
            try:
                self._look(list(dict.fromkeys([*busy, *names])), with_workers=with_workers)
            finally:
                if not self._cursor:
                    self._totals, self._totals_of_round = self._totals_of_round, {}
            if not self._cursor:
                return
            busy, with_workers = (), False

    def _names_of_busy(self) -> list[str]:
        now = monotonic()
        self._busy = {name: ends for name, ends in self._busy.items() if ends > now}
        return sorted(self._busy)

    def _look(self, names: Sequence[str], *, with_workers: bool) -> None:
        calls = leader_scan(self._keys, names, with_workers=with_workers, unused_ms=self._unused_ms)
        replies = self._broker.run_each(calls) if calls else []
        found = together([one for one in replies if isinstance(one, ScanReply)])
        self._note(found)
        for take in self._takers:
            take(found)
        for one in replies:
            if isinstance(one, JobrunnerError):
                raise one

    def _note(self, found: ScanReply) -> None:
        ends = monotonic() + _BUSY_FOR_S
        for name, total in found.totals.items():
            before = self._totals_of_round.get(name, self._totals.get(name))
            if before != total:
                found.changed.append(name)
                if before is not None:
                    self._busy[name] = ends
            self._totals_of_round[name] = total
        for name in (*found.in_work, *found.due):
            self._busy[name] = ends


_NEVER = float("-inf")


class Interval:
    """An interval of `every_s` by this process's monotonic clock; it is over at first."""

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s
        self._began_at = _NEVER

    @property
    def left(self) -> float:
        """Seconds that are left of the interval; 0.0 when it is over."""
        return max(self._began_at + self.every_s - monotonic(), 0.0)

    def end(self) -> None:
        """Ends the interval now."""
        self._began_at = _NEVER

    def begin(self) -> float:
        """Begins the next interval and returns 0.0 when the last is over; else returns the seconds that are left."""
        if left := self.left:
            return left
        self._began_at = monotonic()
        return 0.0
