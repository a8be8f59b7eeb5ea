"""The settings of a worker process."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.retry import seconds
from jobrunner.settings import Duration, check_release, check_whole

EVENTS = ("lifecycle", "all")
_LENGTHS_OF_WORKERS = {
    "grace": False, "poll": True, "prefetch_time": False, "leader_ttl": True, "sweep": True, "heartbeat": True,
    "unknown_grace": False, "forget_queues": False,
}  # fmt: skip
"""Options of a worker that are durations, and whether 0 means none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The settings of a worker process. Times in seconds."""

    concurrency: int = 10
    """The most attempts at a time."""
    min_concurrency: int = 0
    """The number of threads, or child processes, that are kept at low load: more start with the load, up to
    `concurrency`, and end after a minute without work; 0: all are kept."""
    max_per_queue: Mapping[str, int] = field(default_factory=dict)
    """The most tasks of single queues at a time on this worker, {"thumbnails": 4}, so that slow tasks leave slots to
    others; it overrides the `max_per_worker` of their declarations."""
    executor: str = "threads"
    """The executor of plain jobs, threads or processes; "async" means threads: coroutine jobs have an event loop."""
    gates: tuple[Any, ...] = ()
    """Checks that keep the worker from taking tasks: "memory=90%", "cpu=95%", "module:function", or callables that
    return a reason, or None."""
    grace: float = 25.0
    """How long running attempts may go on when the worker is asked to stop; the others are released."""
    max_tasks: int = 0
    """The number of tasks after which the worker ends; 0: never."""
    max_memory: int = 0
    """Bytes of resident memory; above that the worker ends, and a child that runs attempts is replaced; 0: no limit."""
    poll: float = 15.0
    """The longest interval between polls of an idle worker, whatever wake-ups come."""
    prefetch_time: float = 0.03
    """The prefetched work, as the time that it takes to run."""
    batch_max: int = 500
    """The most tasks of one call to reserve."""
    leader_ttl: float = 10.0
    """How long the leader may be silent before another worker takes over."""
    sweep: float = 5.0
    """The interval of the leader's scan of active queues; when queues are few, of all queues."""
    forget_queues: float = 604_800.0
    """How long a queue without settings must be empty before the leader deletes its metadata; 0: never."""
    heartbeat: float = 10.0
    """The interval between heartbeats, at which a worker also reads its commands."""
    unknown_grace: float = 86_400.0
    """How long a task of a job that this worker does not know is released for other workers before it fails."""
    events: str = "lifecycle"
    """The events a worker writes: "lifecycle", or "all": the end of every attempt, too."""
    release: str = ""
    """The deployed version of the application, for the worker's record, events and pages; up to 64 printable
    characters. Without the option: JOBRUNNER_RELEASE, then [tool.jobrunner], then a variable of the host."""

    def __post_init__(self) -> None:
        check_whole(self.concurrency, "concurrency", minimum=1)
        if type(self.gates) not in (list, tuple):
            raise InvalidOption(f"gates={describe(self.gates)}: give a list, ['memory=90%'] or [function]")
        object.__setattr__(self, "gates", tuple(self.gates))
        if not isinstance(self.max_per_queue, Mapping):
            raise InvalidOption(f"max_per_queue={describe(self.max_per_queue)}: give a mapping, {{'thumbnails': 4}}")
        for queue, most in self.max_per_queue.items():
            check_whole(most, f"max_per_queue of {queue!r}", minimum=1)
        check_whole(self.min_concurrency, "min_concurrency", minimum=0)
        if self.min_concurrency > self.concurrency:
            raise InvalidOption(
                f"min_concurrency={self.min_concurrency} is above concurrency={self.concurrency}: give at most that"
            )
        check_whole(self.max_tasks, "max_tasks", minimum=0)
        check_whole(self.max_memory, "max_memory", minimum=0)
        if self.events not in EVENTS:
            raise InvalidOption(f"events={describe(self.events)}: choose one of {', '.join(EVENTS)}")
        check_whole(self.batch_max, "batch_max", minimum=1)
        for name, is_positive in _LENGTHS_OF_WORKERS.items():
            length_s = seconds(getattr(self, name), option=name)
            if is_positive and length_s <= 0:
                raise InvalidOption(f"{name}={describe(getattr(self, name))}: give more than 0")
            object.__setattr__(self, name, length_s)
        if self.executor not in ("threads", "processes", "async"):
            raise InvalidOption(f"executor {describe(self.executor)}: choose threads, processes or async")
        check_release(self.release, "release")


class WorkerOptions(TypedDict, total=False):
    """The settings that `Worker(…)` takes as keywords."""

    min_concurrency: int
    max_per_queue: Mapping[str, int]
    executor: str
    gates: list[Any] | tuple[Any, ...]
    grace: Duration
    max_tasks: int
    max_memory: int
    poll: Duration
    prefetch_time: Duration
    batch_max: int
    leader_ttl: Duration
    sweep: Duration
    forget_queues: Duration
    heartbeat: Duration
    unknown_grace: Duration
    events: str
    release: str | None
