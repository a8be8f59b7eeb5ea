"""What the replies so far imply of a task, and the error for what they must not."""

from dataclasses import dataclass


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
    is_plain: bool = True
    """Whether it waits since it was enqueued: its place is known."""
    batch: bytes = b""
    """The batch that it is a member of, by the batch that was filled with it."""
    decided: int = 0
    """By how many batches."""
    is_to_stop: bool = False
    """Whether it was cancelled while a worker had it: without a report it is not handed out again, and so has ended."""

    def is_of(self, queue: bytes) -> bool:
        """Whether it is in a queue, or in one of its shards."""
        return self.queue == queue or self.queue.startswith(queue + b"@")
