"""Shows the demo to people: drawn live with rich on a terminal, as plain lines anywhere else.

What happens (`say`) stays on the screen; how things stand (`show`) is drawn over, or said every few seconds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

from jobs_example.glance import Glance
from jobs_example.verdict import Check

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table

MOST_BARS = 12
"""How many running tasks are drawn, so that the picture fits the window."""


class Screen(Protocol):
    """Where the demo shows itself."""

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, glance: Glance) -> None:
        """How things stand now."""


@contextmanager
def opened(stream: TextIO) -> Iterator[Screen]:
    """A live screen when a person looks at `stream` and rich is installed, else plain lines."""
    if not stream.isatty() or find_spec("rich") is None:
        yield Lines(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        yield Drawing(console, live)


class Lines:
    """Plain lines, for logs and pipes."""

    def __init__(self, stream: TextIO, every_s: float = 2.0) -> None:
        self._stream = stream
        self._every_s = every_s
        self._due_s = 0.0

    def say(self, text: str) -> None:
        """Writes the text as a line."""
        print(text, file=self._stream, flush=True)

    def show(self, glance: Glance) -> None:
        """Writes one line, but not more often than every few seconds."""
        if glance.elapsed_s < self._due_s:
            return
        self._due_s = glance.elapsed_s + self._every_s
        self.say(summary(glance))


class Drawing:
    """A picture that is drawn over, with what happened written above it."""

    def __init__(self, console: "Console", live: "Live") -> None:
        self._console = console
        self._live = live

    def say(self, text: str) -> None:
        """Writes the text above the picture."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, glance: Glance) -> None:
        """Draws the picture anew."""
        self._live.update(picture(glance))


def summary(glance: Glance) -> str:
    """How things stand, in one line."""
    waiting, scheduled, pending, dead = (
        sum(getattr(queue, state) for queue in glance.queues) for state in ("waiting", "scheduled", "pending", "dead")
    )
    return (
        f"{glance.elapsed_s:5.1f} s  {glance.ended} of {glance.accepted} tasks have ended; "
        f"{waiting} waiting, {scheduled} scheduled, {pending} running, {dead} dead"
    )


def picture(glance: Glance) -> "RenderableType":
    """How things stand: queues, workers, and what they are at."""
    from rich.columns import Columns
    from rich.console import Group

    beside = Columns([_queues(glance), _workers(glance)], padding=(0, 3))
    return Group(beside, _running(glance), summary(glance))


def write_checks(checks: Sequence[Check], stream: TextIO) -> None:
    """Writes the checks as a table: in colour on a terminal with rich, in plain columns anywhere else."""
    if stream.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        Console(file=stream).print(_checks(checks))
        return
    rows = [("check", "expected", "found", "")] + [
        (check.what, check.expected, check.found, _verdict(check)) for check in checks
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print("  ".join([*cells, row[3]]).rstrip(), file=stream)


def _queues(glance: Glance) -> "Table":
    from rich.table import Table

    table = Table("queue", title="queues", title_justify="left")
    for heading in ("waiting", "scheduled", "running", "dead", "done"):
        table.add_column(heading, justify="right")
    for queue in glance.queues:
        counts = (queue.waiting, queue.scheduled, queue.pending, queue.dead, queue.done)
        table.add_row(queue.name, *map(str, counts))
    return table


def _workers(glance: Glance) -> "Table":
    from rich.table import Table

    table = Table("worker", "executor", "pid", "state", "running", title="workers", title_justify="left")
    for worker in glance.workers:
        state = f"[{'green' if worker.state == 'alive' else 'bold red'}]{worker.state}[/]"
        table.add_row(worker.name, worker.executor, str(worker.pid), state, str(worker.running))
    return table


def _running(glance: Glance) -> "Table":
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


def _checks(checks: Sequence[Check]) -> "Table":
    from rich.table import Table

    table = Table("check", "expected", "found", "")
    for check in checks:
        colour = "green" if check.agrees else "bold red"
        table.add_row(check.what, check.expected, check.found, f"[{colour}]{_verdict(check)}[/]")
    return table


def _verdict(check: Check) -> str:
    return "agrees" if check.agrees else "DIFFERS"
