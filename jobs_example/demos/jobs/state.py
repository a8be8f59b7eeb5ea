"""The state of the demo at one moment, and its rendering on a screen."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

MOST_BARS = 12
"""How many running tasks are shown, so that the table fits the window."""


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
    """One worker process; `running` is the number of tasks that it runs, by their progress notes."""

    name: str
    executor: str
    pid: int
    state: Literal["alive", "killed", "ended"]
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningTask:
    """A running task; `done` of `total` is the progress that it last reported, 0 of 0 for none."""

    id: str
    what: str
    worker: str
    attempt: int
    done: float
    total: float

    @property
    def is_under_way(self) -> bool:
        """Whether it has done part of its work and leaves enough time to kill its worker."""
        return 0.1 * self.total < self.done < 0.8 * self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
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
        return _summary(self)

    def picture(self) -> "RenderableType":
        """Queues, workers, and running tasks."""
        return _picture(self)


def _summary(state: DemoState) -> str:
    waiting, scheduled, pending, dead = (
        sum(getattr(queue, name) for queue in state.queues) for name in ("waiting", "scheduled", "pending", "dead")
    )
    return (
        f"{state.elapsed_s:5.1f} s  {state.ended} of {state.accepted} tasks have ended; "
        f"{waiting} waiting, {scheduled} scheduled, {pending} running, {dead} dead"
    )


def _picture(state: DemoState) -> "RenderableType":
    from rich.columns import Columns
    from rich.console import Group

    beside = Columns([_queues(state), _workers(state)], padding=(0, 3))
    return Group(beside, _running(state), _summary(state))


def _queues(state: DemoState) -> "Table":
    from rich.table import Table

    table = Table("queue", title="queues", title_justify="left")
    for heading in ("waiting", "scheduled", "running", "dead", "done"):
        table.add_column(heading, justify="right")
    for queue in state.queues:
        counts = (queue.waiting, queue.scheduled, queue.pending, queue.dead, queue.done)
        table.add_row(queue.name, *map(str, counts))
    return table


def _workers(state: DemoState) -> "Table":
    from rich.table import Table

    table = Table("worker", "executor", "pid", "state", "running", title="workers", title_justify="left")
    for worker in state.workers:
        shown = f"[{'green' if worker.state == 'alive' else 'bold red'}]{worker.state}[/]"
        table.add_row(worker.name, worker.executor, str(worker.pid), shown, str(worker.running))
    return table


def _running(state: DemoState) -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for task in [task for task in state.running if task.total][:MOST_BARS]:
        again = f"attempt {task.attempt}" if task.attempt > 1 else ""
        table.add_row(
            task.what,
            ProgressBar(task.total, task.done, width=40),
            f"worker {task.worker}",
            f"[yellow]{again}[/]",
        )
    return table
