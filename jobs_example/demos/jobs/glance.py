"""How the demo stands at one moment: plain values that a screen can show."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from jobs_example.demos.jobs import picture

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLine:
    """The counts of one queue."""

    name: str
    waiting: int
    scheduled: int
    pending: int
    dead: int
    done: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLine:
    """One worker process; `running` is how many tasks say that they are in its hands."""

    name: str
    executor: str
    pid: int
    state: Literal["alive", "killed", "ended"]
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A task in a worker's hands; `done` of `total` is its last word on its progress, 0 of 0 for none."""

    id: str
    what: str
    worker: str
    attempt: int
    done: float
    total: float

    @property
    def is_under_way(self) -> bool:
        """Whether it has done a part of its work, and has some time left to be killed in."""
        return 0.1 * self.total < self.done < 0.8 * self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class Glance:
    """All of it; `ended` of `accepted` tasks have ended."""

    elapsed_s: float
    accepted: int
    ended: int
    queues: tuple[QueueLine, ...]
    workers: tuple[WorkerLine, ...]
    running: tuple[RunningTask, ...]

    @property
    def is_quiet(self) -> bool:
        """Whether every accepted task has ended and no queue holds another."""
        left = sum(queue.waiting + queue.scheduled + queue.pending for queue in self.queues)
        return left == 0 and self.ended >= self.accepted

    def summary(self) -> str:
        """All in one line."""
        return picture.summary(self)

    def picture(self) -> "RenderableType":
        """Queues, workers, and what they are at."""
        return picture.picture(self)
