"""The picture of how the demo stands: queues, workers, and what they are at."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from jobs_example.demos.jobs.glance import Glance

MOST_BARS = 12
"""How many running tasks are drawn, so that the picture fits the window."""


def summary(glance: "Glance") -> str:
    """How things stand, in one line."""
    waiting, scheduled, pending, dead = (
        sum(getattr(queue, state) for queue in glance.queues) for state in ("waiting", "scheduled", "pending", "dead")
    )
    return (
        f"{glance.elapsed_s:5.1f} s  {glance.ended} of {glance.accepted} tasks have ended; "
        f"{waiting} waiting, {scheduled} scheduled, {pending} running, {dead} dead"
    )


def picture(glance: "Glance") -> "RenderableType":
    """How things stand: queues, workers, and what they are at."""
    from rich.columns import Columns
    from rich.console import Group

    beside = Columns([_queues(glance), _workers(glance)], padding=(0, 3))
    return Group(beside, _running(glance), summary(glance))


def _queues(glance: "Glance") -> "Table":
    from rich.table import Table

    table = Table("queue", title="queues", title_justify="left")
    for heading in ("waiting", "scheduled", "running", "dead", "done"):
        table.add_column(heading, justify="right")
    for queue in glance.queues:
        counts = (queue.waiting, queue.scheduled, queue.pending, queue.dead, queue.done)
        table.add_row(queue.name, *map(str, counts))
    return table


def _workers(glance: "Glance") -> "Table":
    from rich.table import Table

    table = Table("worker", "executor", "pid", "state", "running", title="workers", title_justify="left")
    for worker in glance.workers:
        state = f"[{'green' if worker.state == 'alive' else 'bold red'}]{worker.state}[/]"
        table.add_row(worker.name, worker.executor, str(worker.pid), state, str(worker.running))
    return table


def _running(glance: "Glance") -> "Table":
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    for task in [task for task in glance.running if task.total][:MOST_BARS]:
        again = f"attempt {task.attempt}" if task.attempt > 1 else ""
        table.add_row(
            task.what,
            ProgressBar(task.total, task.done, width=40),
            f"worker {task.worker}",
            f"[yellow]{again}[/]",
        )
    return table
