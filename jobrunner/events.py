"""Events for operators: workers start and stop, tasks die, queues are changed.

Events are kept in one stream on the server, the last 10 000 or so. Nothing depends on them: an event that cannot be
written is dropped, though it happened.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

KINDS: dict[str, str] = {
    "worker_started": "a worker began to work; queues, release",
    "worker_stopped": "a worker stopped on request",
    "worker_lost": "a worker ended, or its heartbeats did, without a stop; where its keeper saw it die: queues, how, "
    "and the tasks that it ran (the first ten ids, and running: how many)",
    "leader_changed": "another worker coordinates now; epoch",
    "task_died": "a task died; error, attempts, fate (kept, deleted, moved to another queue)",
    "tasks_died": "more tasks of the queue died in the same seconds than are named one by one; count",
    "attempt_ended": "an attempt ended, of a worker with events=\"all\"; outcome, attempt, run_ms, error",
    "queue_paused": "a queue was paused; for_ms, when it ends by itself",
    "queue_resumed": "a queue was resumed",
    "queue_configured": "settings of a queue were changed; the settings, place of those that a worker published",
    "queue_purged": "tasks of a queue were deleted; state, count",
    "queue_deleted": "a queue was deleted; count of its tasks",
    "dead_requeued": "dead tasks were requeued; count",
    "periodic_reanchored": "the last tick of a periodic job was ahead of the server's clock; ahead_s",
    "periodic_changed": "workers or a program brought another schedule of a periodic job; schedule",
    "periodic_added": "a periodic job was added or replaced at run time; schedule",
    "periodic_removed": "a periodic job that was added at run time was removed",
    "periodic_enabled": "a periodic job was enabled",
    "periodic_disabled": "a periodic job was disabled",
}
"""Every kind of event, the occasion on which it is written, and its details."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event. Fields that do not apply are empty; `details` differ by kind (see KINDS)."""

    id: str
    """The event's place in the stream, an argument for `events(after=…)`."""
    at: datetime
    kind: str
    queue: str = ""
    task: str = ""
    job: str = ""
    worker: str = ""
    by: str = ""
    """The originator: host and process of a client."""
    details: Mapping[str, str] = field(default_factory=dict)
