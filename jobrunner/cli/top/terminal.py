"""The terminal as a screen to draw on: keys without Enter, the alternate screen, and everything restored at the end.

Invariant: however the block is left (an exception, Ctrl-C, SIGTERM, Ctrl-Z and back), the terminal has the
settings, the cursor and the page it had.
"""

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from jobrunner.cli.signals import handling

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_REST_S = 0.05
"""Seconds to wait for the rest of an escape sequence; without it the key is Escape itself."""


class Terminal:
    """Reads keys and draws frames; `taken_over` yields it."""

    def __init__(self, keyboard: int, screen: int) -> None:
        self.keyboard = keyboard
        self._screen = screen
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drawn = ""

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        size = os.get_terminal_size(self._screen)
        return max(size.columns, 20), max(size.lines, 5)

    def pressed(self) -> Iterator[str]:
        """The keys that were pressed. Raises EOFError when the terminal is gone."""
        text = self._read()
        while is_cut(text) and select.select([self.keyboard], [], [], _REST_S)[0]:
            text += self._read()
        yield from names_of(text)

    def draw(self, lines: list[str]) -> None:
        """Draws as many lines as fit the screen; writes nothing when they are already displayed."""
        frame = "\r\n".join(lines)
        if frame == self._drawn:
            return
        self._drawn = frame
        # One write between the marks of a synchronised update, so that no partial frame is displayed.
        self.write(f"\x1b[?2026h\x1b[H{frame}\x1b[?2026l")

    def forget(self) -> None:
        """Makes `draw` write the next frame even if it is unchanged."""
        self._drawn = ""

    def write(self, text: str) -> None:
        """Writes all of the text."""
        rest = text.encode()
        while rest:
            rest = rest[os.write(self._screen, rest) :]

    def _read(self) -> str:
        raw = os.read(self.keyboard, 1024)
        if not raw:
            raise EOFError("the terminal is gone")
        return self._decoder.decode(raw)


@contextmanager
def taken_over(keyboard: int | None = None, screen: int | None = None) -> Iterator[Terminal]:
    """A terminal that sends each key at once and shows its alternate screen. Enter it in the main thread."""
    terminal = Terminal(
        sys.stdin.fileno() if keyboard is None else keyboard, sys.stdout.fileno() if screen is None else screen
    )
    before = termios.tcgetattr(terminal.keyboard)

    def enter() -> None:
        tty.setcbreak(terminal.keyboard, termios.TCSADRAIN)
        terminal.write(_ENTER)
        terminal.forget()

    def leave() -> None:
        try:
            terminal.write(_LEAVE)
        finally:
            termios.tcsetattr(terminal.keyboard, termios.TCSADRAIN, before)

    with _signals(enter, leave):
        try:
            enter()
            yield terminal
        finally:
            leave()


@contextmanager
def _signals(enter: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    def pause(*_: Any) -> None:
        leave()
        os.kill(os.getpid(), signal.SIGSTOP)
        enter()

    with handling({signal.SIGTERM: end, signal.SIGHUP: end, signal.SIGTSTP: pause}):
        yield


_NAMED = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left",
    "\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left",
    "\x1b[5~": "pageup", "\x1b[6~": "pagedown", "\x1b[H": "home", "\x1b[F": "end", "\x1b[1~": "home",
    "\x1b[4~": "end", "\x1bOH": "home", "\x1bOF": "end", "\x1b[Z": "backtab",
    "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape",
    "\x0c": "redraw", "\x04": "pagedown", "\x15": "pageup",
}  # fmt: skip
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[A-Za-z])|.", re.DOTALL)


def names_of(text: str) -> Iterator[str]:
    """The name of each key: `up`, `enter`, `escape`, ..., or the character itself; sequences unknown are left out."""
    for found in _SEQUENCE.finditer(text):
        word = found.group()
        if word in _NAMED:
            yield _NAMED[word]
        elif len(word) == 1 and word.isprintable():
            yield word


def is_cut(text: str) -> bool:
    """Whether the text ends within a sequence, of which the rest is still to come."""
    return re.search(r"\x1b(?:\[[0-9;?]*|O)?$", text) is not None


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a style; cut or padded to its width, if it has one."""

    text: str
    style: str = ""
    width: int | None = None


def line(cells: Iterable[Cell], width: int, *, selected: bool = False) -> Text:
    """Cells side by side, in at most `width` columns; a selected line is highlighted over the whole width."""
    text = Text(no_wrap=True, end="")
    for cell in cells:
        words = plain(cell.text)
        text.append(words if cell.width is None else fitted(words, cell.width), cell.style)
    text.truncate(width, overflow="ellipsis")
    if selected:
        text.pad_right(max(width - cell_len(text.plain), 0))
        text.stylize("on grey23")
    return text


def titled(title: str, width: int, *, bare: bool = False) -> Text:
    """The title of a section, as wide as the screen; a `bare` title begins in the first column."""
    return Text(set_cell_size(title if bare else f"  {title}", width), style="bold grey70 on grey15", end="")


def padded(left: Text, right: Text, width: int, *, whole: bool = False) -> Text:
    """Texts at the left and the right edge. If both do not fit, the left text is cut, or with `whole` the right one is
    omitted."""
    left = left.copy()
    if not whole:
        left.truncate(max(width - cell_len(right.plain) - 2, width // 3), overflow="ellipsis")
    gap = width - cell_len(left.plain) - cell_len(right.plain)
    if gap < 2:
        return left
    return Text.assemble(left, " " * gap, right, no_wrap=True, end="")


def joined(left: Text, right: Text, at: int) -> Text:
    """Two lines side by side, the second from column `at` on."""
    return Text.assemble(left, " " * max(at - cell_len(left.plain), 0), right, no_wrap=True, end="")


def fitted(words: str, width: int) -> str:
    """Text in exactly `width` columns, with an ellipsis when it was cut."""
    if cell_len(words) <= width:
        return set_cell_size(words, width)
    return set_cell_size(words, width - 1) + "…" if width > 0 else ""


def plain(text: str) -> str:
    """The text without characters that would move the cursor or change the terminal."""
    return "".join(one if one.isprintable() else " " if one.isspace() else "·" for one in text)
