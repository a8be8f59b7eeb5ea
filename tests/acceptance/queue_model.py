"""A model of a queue in plain Python, with which the real one is compared.

Places in line are tuples that sort: priority, millisecond, whether scheduled for it (0) or arrived in it (1), which
of those, id. Times are whole milliseconds, tokens exact fractions.
"""

from dataclasses import dataclass
from fractions import Fraction

Place = tuple[int, int, int, int, str]
STATES = ("waiting", "scheduled", "pending", "dead", "done")


@dataclass
class ModelTask:
    id: str
    queue: "ModelQueue"
    payload: object
    priority: int
    max_attempts: int
    keepalive: int | None
    state: str = "waiting"
    place: Place = (0, 0, 0, 0, "")
    when: int = 0
    """Due time, end of lease, time of death or of finishing, by state."""
    token: str = ""
    retry_count: int = 0
    expiries: int = 0
    total_attempts: int = 0
    hops: int = 0


@dataclass
class ModelQueue:
    """One queue. Every method takes the clock; all but reports begin with `upkeep`, as the real ones do."""

    name: str
    tasks: dict[str, ModelTask]
    """Those of all queues of the tag."""
    paused: bool = False
    max_inflight: int = 0
    max_size: int = 0
    max_attempts: int = 5
    keepalive: int = 30_000
    dead_ttl: int = 30 * 86_400_000
    dead_max: int = 0
    history: int = 0
    history_max: int = 0
    rate: tuple[int, int] | None = None
    """Tokens, and the milliseconds in which that many are added."""
    level: Fraction | None = None
    level_at: int = 0
    arrival: tuple[int, int] = (0, 0)

    def of(self, state: str) -> list[ModelTask]:
        """Its tasks of one state, in the order of the queue, of due times, of deaths or of ends."""
        found = [task for task in self.tasks.values() if task.queue is self and task.state == state]
        orders = {"waiting": lambda task: task.place, "scheduled": lambda task: task.place[1:]}
        return sorted(found, key=orders.get(state, lambda task: (task.when, task.id)))

    def upkeep(self, now: int) -> None:
        for task in self.of("scheduled"):
            if task.when <= now:
                task.state = "waiting"
        for task in self.of("pending"):
            if task.when <= now:
                self._lose(task, now)
        self._trim("dead", now - self.dead_ttl, self.dead_max)
        if self.history:
            self._trim("done", now - self.history, self.history_max)

    def push(self, task: ModelTask, delay: int, now: int) -> None:
        self.tasks[task.id] = task
        self.join(task, now + delay, now)

    def join(self, task: ModelTask, due: int, now: int) -> None:
        """Into the line, or into the schedule."""
        task.queue = self
        if due > now:
            self._schedule(task, due)
            return
        last_ms, last_slot = self.arrival
        self.arrival = (now, 0) if now > last_ms else (last_ms, last_slot + 1)
        task.state, task.place = "waiting", (-task.priority, self.arrival[0], 1, self.arrival[1], task.id)

    def reserve(self, count: int, now: int) -> list[ModelTask]:
        self.upkeep(now)
        taken = self._hand_out(count, now, self._room())
        for task in taken:
            task.state, task.when = "pending", now + (task.keepalive or self.keepalive)
        return taken

    def pop(self, count: int, now: int) -> list[ModelTask]:
        taken = self._hand_out(count, now, None)
        for task in taken:
            self.finish(task, now)
        return taken

    def fail(self, task: ModelTask, delay: int, now: int) -> None:
        task.retry_count += 1
        if 0 < (task.max_attempts or self.max_attempts) <= task.retry_count:
            task.state, task.when = "dead", now
        else:
            self.join(task, now + delay, now)

    def release(self, task: ModelTask) -> None:
        task.state = "waiting"

    def finish(self, task: ModelTask, now: int) -> None:
        if self.history:
            task.state, task.when = "done", now
        else:
            del self.tasks[task.id]

    def requeue(self, task: ModelTask, now: int) -> None:
        task.total_attempts += task.retry_count
        task.retry_count = task.expiries = 0
        self.join(task, now, now)

    def move(self, task: ModelTask, to: "ModelQueue", delay: int, now: int) -> None:
        task.total_attempts += task.retry_count + 1
        task.retry_count = task.expiries = 0
        task.hops += 1
        to.join(task, now + delay, now)

    def is_full(self, more: int) -> bool:
        return bool(self.max_size) and len(self.of("waiting")) + len(self.of("scheduled")) + more > self.max_size

    def level_now(self, now: int) -> Fraction | None:
        """Tokens in the bucket; None without a rate. A clock that stepped back adds none; they flow on from there."""
        if self.rate is None:
            return None
        most, interval = self.rate
        if self.level is None:
            return Fraction(most)
        self.level_at = min(self.level_at, now)
        return min(Fraction(most), self.level + Fraction(max(0, now - self.level_at) * most, interval))

    def _hand_out(self, count: int, now: int, room: int | None) -> list[ModelTask]:
        self.upkeep(now)
        level = self.level_now(now)
        limits = [limit for limit in (count, room, None if level is None else int(level)) if limit is not None]
        taken = [] if self.paused else self.of("waiting")[: max(min(limits), 0)]
        if level is not None and taken:
            self.level, self.level_at = level - len(taken), now
        return taken

    def _room(self) -> int | None:
        return self.max_inflight - len(self.of("pending")) if self.max_inflight else None

    def _schedule(self, task: ModelTask, due: int) -> None:
        task.state = "none"
        slots = [other.place[3] for other in self.of("scheduled") if other.place[1] == due]
        task.state, task.when = "scheduled", due
        task.place = (-task.priority, due, 0, max(slots, default=-1) + 1, task.id)

    def _lose(self, task: ModelTask, now: int) -> None:
        task.retry_count += 1
        task.expiries += 1
        if 0 < (task.max_attempts or self.max_attempts) <= task.retry_count:
            task.state, task.when = "dead", now
        else:
            task.state = "waiting"

    def _trim(self, state: str, before: int, most: int) -> None:
        kept = [task for task in self.of(state) if task.when > before]
        if most:
            kept = kept[-most:]
        for task in self.of(state):
            if task not in kept:
                del self.tasks[task.id]
