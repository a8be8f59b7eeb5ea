"""What happened that a person should know: workers come and go, tasks die, somebody changed a queue.

Events are kept in one stream on the server, the last 10 000 or so. They tell; nothing depends on them: one that cannot
be written is left out, and what it tells of has happened all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

KINDS: dict[str, str] = {
    "worker_started": "a worker began to work; queues, executor",
    "worker_stopped": "a worker ended as it was told to",
    "worker_lost": "a worker fell silent without a farewell: killed, hanging or cut off",
    "leader_changed": "another worker coordinates now; epoch",
    "task_died": "a task was given up; error, attempts, fate (kept, deleted, moved to another queue)",
    "tasks_died": "more tasks of the queue died in the same seconds than are named one by one; count",
    "attempt_ended": "an attempt ended, of a worker with events=\"all\"; outcome, attempt, run_ms, error",
    "queue_paused": "somebody paused a queue; for_ms, when it ends by itself",
    "queue_resumed": "somebody resumed a queue",
    "queue_configured": "somebody changed settings of a queue; the settings",
    "queue_purged": "somebody deleted tasks of a queue; state, count",
    "queue_deleted": "somebody deleted a queue; count of the tasks that went with it",
    "dead_requeued": "somebody sent dead tasks again; count",
    "periodic_reanchored": "the last tick of a periodic job was ahead of the server's clock; ahead_s",
    "periodic_changed": "workers brought another schedule of a periodic job; schedule",
    "periodic_enabled": "somebody had the ticks of a periodic job fire again",
    "periodic_disabled": "somebody had the ticks of a periodic job pass by",
}
"""Every kind, when it is written, and its details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Fields that say nothing are empty; `details` differ by kind (see KINDS)."""

    id: str
    """Its place in the stream; `events(after=…)` takes it."""
    at: datetime
    kind: str
    queue: str = ""
    task: str = ""
    job: str = ""
    worker: str = ""
    by: str = ""
    """Who did it: host and process of a client."""
    details: Mapping[str, str] = field(default_factory=dict)
