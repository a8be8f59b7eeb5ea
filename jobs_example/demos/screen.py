"""Shows a demo to people: drawn live with rich on a terminal, as plain lines anywhere else.

Events (`say`) stay on the screen; the state (`show`) is redrawn in place, or printed every few seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class View(Protocol):
    """The state at one moment, `elapsed_s` after the start."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""

    def summary(self) -> str:
        """All in one line."""

    def picture(self) -> "RenderableType":
        """The state as a table; called only when rich is installed."""


class Screen(Protocol):
    """Shows the progress of a demo."""

    def say(self, text: str) -> None:
        """Prints a line about an event."""

    def show(self, view: View) -> None:
        """Shows the present state."""


@contextmanager
def opened(stream: TextIO) -> Iterator[Screen]:
    """A live screen when `stream` is a terminal and rich is installed, else plain lines."""
    if not stream.isatty() or find_spec("rich") is None:
        yield Lines(stream)
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=stream)
    # Drawn by one thread only: with two, a table that changes its height leaves parts of itself on the screen.
    with Live(console=console, auto_refresh=False, transient=True) as live:
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

    def show(self, view: View) -> None:
        """Writes one line, but not more often than every few seconds."""
        if view.elapsed_s < self._due_s:
            return
        self._due_s = view.elapsed_s + self._every_s
        self.say(view.summary())


class Drawing:
    """A table that is redrawn in place, with events printed above it."""

    def __init__(self, console: "Console", live: "Live") -> None:
        self._console = console
        self._live = live

    def say(self, text: str) -> None:
        """Prints the text above the table."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, view: View) -> None:
        """Redraws the table."""
        self._live.update(view.picture(), refresh=True)
