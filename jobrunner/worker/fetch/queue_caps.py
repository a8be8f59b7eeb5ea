"""Caps of a worker on single queues (`max_per_worker`, `--max-per-queue`): the most tasks of a queue at a time.

A worker without caps uses `QueueRotation` and has none of this cost.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping

from jobrunner.broker.shards import whole_queue
from jobrunner.clock import monotonic
from jobrunner.worker.fetch.reserve_plan import QueueRotation, ReservePlan

_HINT_PAUSE_S = 0.25
"""The least interval between hints of a queue at its cap that are passed on. They are meant for another worker; without
another worker each comes back at once."""
_AHEAD = 2
"""The most tasks that the notifier reserves from a queue or shard. Tasks above a cap go back, which costs a call, so
the notifier only listens for hints of a queue that has no room for this number from each shard."""


class CappedRotation(QueueRotation):
    """Turns among queues of which some have a cap.

    Invariant: of a queue with a cap the worker holds no more tasks than that, running and fetched together, of all its
    shards. A queue at its cap has no turn until one of its tasks ends; its hints are passed on to other workers.
    """

    def __init__(self, weights: Mapping[str, int], poll_s: float, caps: Mapping[str, int]) -> None:
        super().__init__(weights, poll_s)
        self.caps = dict(caps)
        self._held = dict.fromkeys(caps, 0)
        self._full: set[str] = set()
        self._passed_at: dict[str, float] = {}
        self._kept_hints: dict[str, float] = {}

    def serve(self, weights: Mapping[str, int]) -> None:
        """As in the base class; new shards of a queue at its cap sleep until one of its tasks ends."""
        super().serve(weights)
        for queue in self._full:
            for shard in self._shards_of(queue):
                self._asleep_until[shard] = math.inf

    @property
    def open(self) -> list[str]:
        """The queues that may have a turn, without those that are at their cap or near it."""
        shards = Counter(map(whole_queue, found := super().open))
        return [queue for queue in found if self.has_room(queue, _AHEAD * shards[whole_queue(queue)])]

    def has_room(self, queue: str, count: int) -> bool:
        """Whether `count` more tasks of a queue may be held."""
        queue = whole_queue(queue)
        return queue not in self.caps or self._held[queue] + count <= self.caps[queue]

    def took(self, queue: str, count: int) -> None:
        """Records that `count` tasks of a queue were reserved."""
        queue = whole_queue(queue)
        if queue in self.caps:
            self._held[queue] += count
            if self._held[queue] >= self.caps[queue]:
                self._full.add(queue)
                for shard in self._shards_of(queue):
                    self._asleep_until[shard] = math.inf

    def ended(self, queues: Iterable[str]) -> None:
        """Records tasks, by their queues, that ended or are released."""
        for queue, count in Counter(map(whole_queue, queues)).items():
            if queue in self.caps:
                self._held[queue] -= count
                if queue in self._full and self.has_room(queue, 1):
                    self._full.discard(queue)
                    for shard in self._shards_of(queue):
                        self._kept_hints.pop(shard, None)
                        self.wake(shard)

    def plan(self, wanted: int) -> ReservePlan:
        """As in the base class; the part of a share above a cap goes to other queues."""
        plan = super().plan(wanted)
        over = 0
        left = {queue: most - self._held[queue] for queue, most in self.caps.items()}
        for shard in [shard for shard in plan.shares if whole_queue(shard) in self.caps]:
            queue = whole_queue(shard)
            over += max(plan.shares[shard] - left[queue], 0)
            plan.shares[shard] = min(plan.shares[shard], left[queue])
            left[queue] -= plan.shares[shard]
            if not plan.shares[shard]:
                del plan.shares[shard]
        others = [queue for queue in plan.shares if whole_queue(queue) not in self.caps] if over else []
        now = monotonic()
        free = [one for one in self.queues if over and whole_queue(one) not in self.caps]
        others = others or [one for one in free if self._is_ready(one, now)]
        for still, queue in zip(range(len(others), 0, -1), others, strict=True):
            part = math.ceil(over / still)
            over -= part
            if part:
                plan.shares[queue] = plan.shares.get(queue, 0) + part
        return plan

    def _is_ready(self, queue: str, now: float) -> bool:
        return self._asleep_until[queue] <= now

    def sleep(self, queue: str, next_event_s: float | None, keepalive_s: float) -> None:
        """As in the base class; a queue at its cap sleeps until one of its tasks ends."""
        super().sleep(queue, next_event_s, keepalive_s)
        if whole_queue(queue) in self._full:
            self._asleep_until[queue] = math.inf

    def wake(self, queue: str) -> None:
        """Wakes a queue that may have work; a queue at its cap sleeps on."""
        if whole_queue(queue) not in self._full:
            super().wake(queue)

    def _shards_of(self, queue: str) -> list[str]:
        return [name for name in self._asleep_until if whole_queue(name) == queue]

    def passes_on(self, queue: str) -> bool:
        """Whether a hint of a queue at its cap goes to another worker now. A hint that came back soon is kept for a
        while."""
        now = monotonic()
        due = self._passed_at.get(queue, -math.inf) + _HINT_PAUSE_S
        if due <= now:
            self._passed_at[queue] = now
            return True
        self._kept_hints[queue] = due
        return False

    def due_hints(self) -> list[str]:
        """Queues whose kept hints are due; removes these hints."""
        now = monotonic()
        due = [queue for queue, at in self._kept_hints.items() if at <= now]
        for queue in due:
            del self._kept_hints[queue]
        return due

    def until_hint(self) -> float:
        """Seconds until a kept hint is due."""
        return max(min(self._kept_hints.values(), default=math.inf) - monotonic(), 0.0)
