"""Plans the next reserves of the fetch loop: how many tasks (`Prefetch`), from which queues (`QueueRotation`), and
under which lease numbers (`LeaseNumbers`)."""

import math
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from jobrunner.attempt import numbers_of
from jobrunner.clock import monotonic

_LONGEST_S = 3600.0
_REFUSED_PAUSE_S = 1.0
_UNPROBED = 4
"""The most queues with unknown backlog that are reserved from without a probe. More are probed first, as each empty
queue would waste a share of the tasks that the worker can take."""
_MOST_PROBES = 256
"""The most probes in an exchange. Its tasks and reports wait for all probes: with thousands of queues that took
seconds, up to the time limit of a reply."""
_LEAST = 8
"""The fewest tasks to reserve from a queue that filled its last reserve: otherwise many full queues would cost the
server a call for each task."""
_STUCK_S = 0.25
_UNBEGUN_S = 2.0
"""A task that has a slot and has not begun for this time is blocked, by the interpreter or the event loop."""
_MEASURED_S = 0.002
_MOST_CALLS = 2
_TOGETHER = 4
_SHORTEST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.02


@dataclass(slots=True)
class ReservePlan:
    """The reserves and probes of one exchange with the server."""

    shares: dict[str, int] = field(default_factory=dict)
    """How many tasks to reserve from each queue; the sum is at most the wanted number."""
    probed: list[str] = field(default_factory=list)
    """Queues to ask whether they have tasks."""


class QueueRotation:
    """Weighted turns among the queues that may have work: smooth weighted round robin (the algorithm of nginx's
    upstreams), skipping queues known to be empty.

    A queue that returned fewer tasks than requested sleeps until a wake-up, its next event, or the poll interval,
    whichever is first. The tasks of an exchange are split over several queues, so that a far server costs one round
    trip for all of them.
    """

    def __init__(self, weights: Mapping[str, int], poll_s: float) -> None:
        self._weights = dict(weights)
        self._credit = dict.fromkeys(weights, 0.0)
        self._asleep_until = dict.fromkeys(weights, 0.0)
        self._blocked: set[str] = set()
        self._giving: set[str] = set()
        """Queues that filled their last reserve."""
        self._likely: set[str] = set()
        """Queues in which a probe found tasks."""
        self._had_probe: set[str] = set()
        """Queues that were probed in this round, when there are more than an exchange may probe."""
        self._refused: set[str] = set()
        self._paused_until: dict[str, float] = {}
        self._likely_first = False
        self.poll_s = poll_s

    def serve(self, weights: Mapping[str, int]) -> None:
        """Adds queues to the rotation, and sets the weights of its present queues."""
        for queue, weight in weights.items():
            self._weights[queue] = weight
            self._credit.setdefault(queue, 0.0)
            self._asleep_until.setdefault(queue, 0.0)

    @property
    def queues(self) -> list[str]:
        """All queues, in the order given."""
        return list(self._weights)

    @property
    def open(self) -> list[str]:
        """The queues that may have a turn."""
        queues = [queue for queue in self._weights if queue not in self._blocked]
        if self._paused_until:
            now = monotonic()
            return [queue for queue in queues if self._paused_until.get(queue, 0.0) <= now]
        return queues

    @property
    def polled(self) -> frozenset[str]:
        """The queues that get a reserve by themselves, at the latest with the next poll: not those that wait for a full
        target, or at their cap for the end of a task. Any thread may ask."""
        return frozenset(queue for queue, until in list(self._asleep_until.items()) if until < math.inf)

    def plan(self, wanted: int) -> ReservePlan:
        """Splits the number of wanted tasks over the queues. Empty when all queues are known to be empty."""
        now = monotonic()
        ready = [queue for queue, until in self._asleep_until.items() if until <= now]
        if len(ready) > _UNPROBED:
            unknown = [queue for queue in ready if queue not in self._giving and queue not in self._likely]
            if len(unknown) > _UNPROBED:
                known = [queue for queue in ready if queue in self._giving or queue in self._likely]
                return ReservePlan(self._shares(known, wanted), self._probed(unknown))
        return ReservePlan(self._shares(ready, wanted))

    def _probed(self, unknown: list[str]) -> list[str]:
        """As many of these queues as an exchange may probe. The others are probed before these are probed again,
        whatever wakes them."""
        if len(unknown) <= _MOST_PROBES:
            return unknown
        others = [queue for queue in unknown if queue not in self._had_probe]
        if not others:
            self._had_probe.clear()
        some = (others or unknown)[:_MOST_PROBES]
        self._had_probe.update(some)
        return some

    def _shares(self, ready: list[str], wanted: int) -> dict[str, int]:
        if len(ready) <= 1:
            return dict.fromkeys(ready, wanted)
        total = sum(self._weights[queue] for queue in ready)
        # `sleep` cancels credit and debt. The others make that up by weight, so that the sum stays 0: a sum that grows
        # with each empty queue would outgrow what a queue of low weight accrues, which then has no turn again.
        per_weight = wanted - sum(self._credit[queue] for queue in ready) / total
        for queue in ready:
            self._credit[queue] += per_weight * self._weights[queue]
        by_credit = sorted(ready, key=self._credit.__getitem__, reverse=True)
        giving = [queue for queue in by_credit if queue in self._giving]
        others = [queue for queue in by_credit if queue not in self._giving]
        if giving and len(others) > _UNPROBED:
            shares = self._halves(giving, others, wanted)
        elif giving and wanted > len(others):
            shares = dict.fromkeys(others, 1) | self._split(giving, wanted - len(others))
        else:
            shares = self._split(by_credit, wanted)
        for queue, share in shares.items():
            self._credit[queue] -= share * total
        return shares

    def _halves(self, giving: list[str], others: list[str], wanted: int) -> dict[str, int]:
        """Splits between queues that filled their last reserve and queues that may hand out nothing, because each of
        their partitions is at its limit. The former get at least half, or every other turn when one task is wanted."""
        self._likely_first = not self._likely_first
        some = others[: (wanted + self._likely_first) // 2]
        rest = wanted - len(some)
        return dict.fromkeys(some, 1) | (self._split(giving, rest) if rest else {})

    def _split(self, by_credit: list[str], wanted: int) -> dict[str, int]:
        """Splits by weight, among as many of these queues as there are shares for, those with most credit first. What
        is left goes to the first, also when nothing is for a queue then: it keeps its credit until it is first."""
        least = _LEAST if by_credit[0] in self._giving else 1
        chosen = by_credit[: max(math.ceil(wanted / least), 1)]
        total = sum(self._weights[queue] for queue in chosen)
        shares = {queue: wanted * self._weights[queue] // total for queue in chosen}
        shares[chosen[0]] += wanted - sum(shares.values())
        return {queue: share for queue, share in shares.items() if share}

    def gave_all(self, queue: str) -> None:
        """Records that a queue filled its last reserve."""
        self._likely.discard(queue)
        self._refused.discard(queue)
        self._giving.add(queue)

    def has_tasks(self, queue: str) -> None:
        """Records that a probe found tasks in a queue."""
        self._refused.discard(queue)
        self._likely.add(queue)
        self.wake(queue)

    def sleep(self, queue: str, next_event_s: float | None, keepalive_s: float) -> None:
        """Records that a queue is empty now, and may have tasks in `next_event_s`.

        The queue is polled at least once per `keepalive_s`, so that the end of every lease of other workers is known
        before it comes.
        """
        for known in (self._giving, self._likely, self._refused):
            known.discard(queue)
        if queue in self._blocked:
            return
        self._credit[queue] = 0.0  # an empty queue neither accrues credit nor owes any
        pause = min(self.poll_s, keepalive_s)
        if next_event_s is not None:
            pause = min(pause, max(next_event_s, 0.0))
        self._asleep_until[queue] = max(monotonic() + pause, self._paused_until.get(queue, 0.0))

    def refused(self, queue: str) -> None:
        """Records that calls on a queue fail: a key is damaged, or its node is away."""
        self.sleep(queue, _REFUSED_PAUSE_S, _REFUSED_PAUSE_S)
        self._refused.add(queue)

    @property
    def has_refused(self) -> bool:
        """Whether the last answer about any of the queues was an error."""
        return bool(self._refused)

    def pause(self, queue: str, seconds: float = _REFUSED_PAUSE_S) -> None:
        """Takes a queue whose tasks this worker cannot begin now out of the rotation for `seconds`, one at most,
        whatever wakes it. A released task sends a hint, and would be fetched again at once."""
        seconds = min(seconds, _REFUSED_PAUSE_S)
        self._paused_until[queue] = monotonic() + seconds
        self.sleep(queue, seconds, _REFUSED_PAUSE_S)

    def resume(self, queue: str) -> None:
        """Ends the pause of a queue."""
        self._paused_until.pop(queue, None)
        self.wake(queue)

    def is_paused(self, queue: str) -> bool:
        """Whether it has no turn yet because of `pause`."""
        return self._paused_until.get(queue, 0.0) > monotonic()

    def wake(self, queue: str) -> None:
        """Wakes a queue that may have work."""
        if queue in self._asleep_until and queue not in self._blocked:
            self._asleep_until[queue] = self._paused_until.get(queue, 0.0)

    def wake_all(self) -> None:
        """Wakes every queue, except refused queues, as each error costs the others a pause."""
        for queue in self._asleep_until.keys() - self._refused:
            self.wake(queue)

    def block(self, queue: str) -> None:
        """Takes a queue out of the rotation until it is unblocked."""
        if queue in self._asleep_until:
            self._blocked.add(queue)
            self._asleep_until[queue] = math.inf

    def unblock(self, queue: str) -> None:
        """Returns a blocked queue to the rotation."""
        self._blocked.discard(queue)
        self.wake(queue)

    def until_next(self) -> float:
        """Seconds until a queue is due for a reserve; 0 when one is due."""
        soonest = min(self._asleep_until.values(), default=math.inf)
        return min(max(soonest - monotonic(), 0.0), _LONGEST_S)


class Prefetch:
    """Decides how many tasks to hold: one for each slot, and work for a few tens of milliseconds more, at the rate at
    which tasks finish.

    So short tasks are fetched in large batches, and no task waits behind a long task while another worker could run it.
    """

    def __init__(self, concurrency: int, prefetch_s: float, batch_max: int) -> None:
        self._concurrency = concurrency
        self._prefetch_s = prefetch_s
        self.batch_max = batch_max
        """The most tasks of one call."""
        self._rate = 0.0
        self._counted = 0
        self._busy_s = 0.0
        self._since = self._moved_at = monotonic()
        self.in_hand = 0

    def took(self, count: int) -> None:
        """Records that `count` tasks were reserved."""
        self._moved_at = monotonic()
        if self.in_hand == 0:  # idle time tells nothing about the rate
            self._since = self._moved_at - self._busy_s
        self.in_hand += count

    def gave(self, finished: int, released: int = 0) -> None:
        """Records the numbers of tasks that finished or were released. The rate is measured over 2 ms or more of busy
        time."""
        if self.in_hand == 0:
            return
        self.in_hand -= finished + released
        self._counted += finished
        now = monotonic()
        if finished:
            self._moved_at = now
        self._busy_s = now - self._since
        if self._busy_s >= _MEASURED_S:
            weight = min(self._busy_s / 0.05, 1.0)
            self._rate += (self._counted / self._busy_s - self._rate) * weight
            self._since, self._counted, self._busy_s = now, 0, 0.0

    @property
    def depth(self) -> int:
        """How many tasks to hold beyond the running tasks."""
        return int(self._rate * self._prefetch_s)

    @property
    def has_free_slots(self) -> bool:
        """Whether more tasks could run at once than are in hand."""
        return self.in_hand < self._concurrency

    def wanted(self, backlog: int, coming: int = 0) -> int:
        """How many tasks to reserve now; 0 while the backlog is more than half full, unless slots are free all the
        same. `coming`: the number of reserved tasks that are neither in hand nor in the backlog yet."""
        free = self._concurrency + self.depth - self.in_hand - coming
        backlog += coming
        if free <= 0 or (backlog > 0 and backlog > self.depth // 2 and not self.has_free_slots):
            return 0
        return min(free, self.batch_max * self._calls)

    @property
    def _calls(self) -> int:
        """How many full calls an exchange may have: two when three calls' tasks run within the prefetch time. More
        tasks then share the round trip to a far server."""
        return min(max(self.depth // self.batch_max - 1, 1), _MOST_CALLS)

    @property
    def pause_s(self) -> float:
        """How long ended attempts may wait, while there is more to do, so that some are reported together: a turn for
        each would take processor time from tasks that compute for some milliseconds."""
        if self._rate <= 0 or self.has_free_slots:
            return _SHORTEST_PAUSE_S
        return min(max(_TOGETHER / self._rate, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)

    def runs_soon(self, count: int) -> bool:
        """Whether `count` tasks run within the prefetch time, so that a millisecond more until they begin does not
        matter."""
        return count <= self.depth

    def ends_together(self, backlog: int, most: int) -> int:
        """How many finished tasks to collect before they are reported: `most`, or fewer when round trips are rare, so
        that the backlog is refilled before it runs out."""
        if self.pause_s <= _SHORTEST_PAUSE_S:
            return most
        return min(max(backlog - self.depth // 4, 1), most)

    def is_stuck(self, backlog: int) -> bool:
        """Whether tasks wait behind long tasks in all slots, so that another worker should have them. Tasks that have a
        slot get more time: mostly they begin before another worker could have them."""
        limit_s = _STUCK_S if self.in_hand > self._concurrency else _UNBEGUN_S
        return backlog > 0 and monotonic() - self._moved_at > limit_s

    def forget_rate(self) -> None:
        """Resets the rate after the tasks turned out to be long, so that prefetch starts small again."""
        self._rate = 0.0


class LeaseNumbers:
    """The numbers of a worker's leases. Two leases of one task never share a number, unless more than 2^27 lie between.

    `note` is called with the range of numbers before any lease has them.
    """

    def __init__(self, worker_id: str, note: Callable[[int, int], object] = lambda _first, _last: None) -> None:
        self._numbers = numbers_of(worker_id)
        self._lowest = self._next = self._numbers[secrets.randbelow(len(self._numbers))]
        self._highest = 0
        self._note = note
        self._lock = threading.Lock()

    def first_of(self, count: int) -> int:
        """The first of `count` consecutive numbers."""
        with self._lock:
            if self._next + count > self._numbers.stop:
                self._next = self._lowest = self._numbers.start
            first = self._next
            self._next += count
            self._highest = max(self._highest, self._next)
            self._note(self._lowest, self._highest)
        return first
