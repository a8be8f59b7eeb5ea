"""The loop of `jobrunner top`: keys, answers of the server and frames. Needs rich."""

import os
import select
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from jobrunner.cli.top.draw import frame
from jobrunner.cli.top.poller import ServerPoller
from jobrunner.cli.top.state import Screen, ServerRequest, press
from jobrunner.cli.top.terminal import Terminal, taken_over
from jobrunner.clock import monotonic

_REST = "\x1b[K"
"""Erases the rest of a line."""
_TURN_S = 0.25
"""Seconds within which a resized terminal is redrawn."""


class LiveView:
    """The main loop: handles answers of the server and keys, refreshes on time, and draws a frame after each change."""

    def __init__(self, terminal: Terminal, server: ServerPoller, *, every_s: float) -> None:
        self._terminal = terminal
        self._server = server
        self._every_s = every_s
        self._screen = Screen()
        self._next_look_s = monotonic()
        self._size = (0, 0)

    def run(self) -> None:
        """Runs until `q` is pressed or the terminal is gone."""
        changed = True
        while True:
            if monotonic() >= self._next_look_s and not self._server.reading:
                self._look()
            if changed or self._size != self._terminal.size():
                self._draw()
            ready, _, _ = select.select([self._terminal.keyboard, self._server.bell], [], [], _TURN_S)
            changed = bool(ready)
            if self._server.bell in ready:
                self._hear()
            if self._terminal.keyboard in ready and self._left():
                return

    def _look(self) -> None:
        self._next_look_s = monotonic() + self._every_s
        self._server.read(self._screen)

    def _hear(self) -> None:
        os.read(self._server.bell, 1024)
        while not self._server.answers.empty():
            self._screen = self._server.answers.get()(self._screen)

    def _left(self) -> bool:
        try:
            return any(self._press(key) for key in self._terminal.pressed())
        except (EOFError, OSError):
            return True

    def _press(self, key: str) -> bool:
        if key == "redraw":
            self._terminal.forget()
        self._screen, wish = press(self._screen, key)
        if wish is not None and wish.act not in ("quit", "read"):
            self._server.act(wish)
        if wish is not None:
            self._next_look_s = monotonic()
            if wish.act == "read":
                self._look()
        return wish == ServerRequest(act="quit")

    def _draw(self) -> None:
        self._size = width, height = self._terminal.size()
        self._terminal.draw(ansi_lines(frame(self._screen, width, height), width, height))


def run_live(server: ServerPoller, *, every_s: float) -> None:
    """Shows the live view in this terminal. Starts the poller, which may still run the last request afterwards."""
    server.start()
    with taken_over() as terminal:
        LiveView(terminal, server, every_s=every_s).run()


def ansi_lines(lines: Sequence[Text], width: int, height: int) -> list[str]:
    """The lines with escape sequences, in the colours of this terminal (none with NO_COLOR)."""
    console = Console(width=width, height=height, force_terminal=True, highlight=False, legacy_windows=False)
    shown = []
    for one in lines:
        with console.capture() as captured:
            console.print(one, end="", soft_wrap=True)
        # After a full line the cursor is on its last column, which would be erased.
        shown.append(captured.get() + (_REST if cell_len(one.plain) < width else ""))
    return shown
