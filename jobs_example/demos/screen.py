"""Shows a demo to people: drawn live with rich on a terminal, as plain lines anywhere else.

What happens (`say`) stays on the screen; how things stand (`show`) is drawn over, or said every few seconds.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live


class View(Protocol):
    """How things stand at one moment, `elapsed_s` after the start."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""

    def summary(self) -> str:
        """All in one line."""

    def picture(self) -> "RenderableType":
        """All in one picture; called only when rich is there."""


class Screen(Protocol):
    """Where a demo shows itself."""

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, view: View) -> None:
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
    # Drawn by one thread only: with two, a picture that changes its height leaves parts of itself behind.
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
    """A picture that is drawn over, with what happened written above it."""

    def __init__(self, console: "Console", live: "Live") -> None:
        self._console = console
        self._live = live

    def say(self, text: str) -> None:
        """Writes the text above the picture."""
        self._console.print(text, markup=False, highlight=False)

    def show(self, view: View) -> None:
        """Draws the picture anew."""
        self._live.update(view.picture(), refresh=True)
