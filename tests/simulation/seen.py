"""What the replies so far imply of a task, and the error for what they must not."""

from dataclasses import dataclass

_NEVER = float("inf")


class Violation(Exception):
    """Something that must not happen."""


@dataclass(slots=True)
class Seen:
    """The state of a task as the replies so far imply it."""

    queue: bytes
    priority: int
    order: int
    lease: float = 0.0
    ends: float = 0.0
    outcome: str = ""
    """How it ended; empty while it has not."""
    result: bytes = b""
    moves: int = 0
    """Into another queue."""
    has_place: bool = True
    """Whether its place in the queue is that of its enqueueing: it keeps that when it is released or its lease ends."""
    due: float = 0.0
    """When it was to enter the queue, Unix ms: when it was enqueued, or behind its delay."""
    is_delayed: bool = False
    is_there: bool = True
    """Whether it is known to be in its queue: a row of a batch comes there when it is applied."""
    not_before: float = 0.0
    """The end of its delay, Unix ms: nothing hands it out before that."""
    payload: bytes | None = None
    """None while it is not known: a batch gives its members new ones."""
    enqueued: float = 0.0
    """When, Unix ms, where a time to begin counts from it."""
    expires_at: float = _NEVER
    """When it dies unless it has begun, Unix ms."""
    key: bytes = b""
    """Its partition."""
    spent: int = 0
    """Attempts in this queue that failed, or whose lease ended without a report."""
    most_attempts: int | None = None
    """Its own; None: those of its queue."""
    is_counted: bool = True
    """Whether `spent` is known: not of a member of a batch, whose failures count for all."""
    hops: int = 0
    batch: bytes = b""
    """The batch that it is a member of, by the batch that was filled with it."""
    decided: int = 0
    """By how many batches."""
    is_to_stop: bool = False
    """Whether it was cancelled while a worker had it: without a report it is not handed out again, and so has ended."""
    is_of_old_queue: bool = False
    """Whether its queue was deleted since, with its totals."""

    def lapses(self, now: float) -> None:
        """Counts the attempt whose lease has ended without a report, if there is one."""
        if 0 < self.ends <= now:
            self.ends, self.spent = 0.0, self.spent + 1

    def enters(self, queue: bytes) -> None:
        """Notes that it was moved: attempts start anew."""
        self.moves += self.queue != queue
        self.queue, self.ends, self.spent, self.is_counted, self.has_place = queue, 0.0, 0, True, False
        self.not_before, self.payload = 0.0, None

    def goes_before(self, other: "Seen") -> bool:
        """By priority, when they were due, and order. A due time has whole ms."""
        if self.priority != other.priority:
            return self.priority > other.priority
        return self.due + 1 < other.due if self.is_delayed or other.is_delayed else self.order < other.order

    def waits_in_place(self, now: float, most_attempts: int) -> bool:
        """Whether it is to be handed out by its place: one that is due, or whose lease has ended, enters first."""
        if not self.has_place or self.ends > now or self.due + self.is_delayed > now or self.has_expired(now):
            return False
        return self.can_begin(most_attempts)

    def can_begin(self, most_attempts: int) -> bool:
        """Whether it is to be handed out as soon as its delay and its lease, if it has one, have ended."""
        if self.outcome or self.is_to_stop or not self.is_counted or not self.is_there:
            return False
        most = most_attempts if self.most_attempts is None else self.most_attempts
        return self.spent + (self.ends > 0) < most or not most

    def has_expired(self, now: float) -> bool:
        """Whether its time to begin is over, and no attempt of it was spent."""
        return self.expires_at <= now and not self.spent and not self.ends

    def is_of(self, queue: bytes) -> bool:
        """Whether it is in a queue, or in one of its shards."""
        return self.queue == queue or self.queue.startswith(queue + b"@")


def queue_of_key(key: bytes) -> bytes:
    """The full name of a queue by one of its keys: P:{tag}:name:waiting."""
    _, tag, rest = key.split(b":", 2)
    name = rest.rpartition(b":")[0]
    return name if tag[1:-1] == name else tag[1:-1] + b"/" + name
