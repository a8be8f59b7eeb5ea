"""The terminal is as it was, however the live view is left."""

import os
import pty
import select
import signal
import termios
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest

from jobrunner.cli.top.terminal import taken_over


@dataclass
class Line:
    """Both ends of a terminal: input typed into `near` is read from `far`."""

    near: int
    far: int

    def shown(self) -> str:
        text = b""
        while select.select([self.near], [], [], 0)[0]:
            text += os.read(self.near, 65536)
        return text.decode().replace("\r\r\n", "\r\n")  # the terminal adds a return of its own


@pytest.fixture
def ends() -> Iterator[Line]:
    near, far = pty.openpty()
    yield Line(near, far)
    os.close(near)
    os.close(far)


def settings(line: Line) -> list[object]:
    return termios.tcgetattr(line.far)


def test_keys_come_without_enter_and_escape_alone_is_told_from_an_arrow(ends: Line) -> None:
    with taken_over(ends.far, ends.far) as terminal:
        assert not settings(ends)[3] & termios.ICANON  # type: ignore[operator]
        os.write(ends.near, b"q\x1b[A")
        assert list(terminal.pressed()) == ["q", "up"]
        os.write(ends.near, b"\x1b")
        assert list(terminal.pressed()) == ["escape"]
        os.write(ends.near, b"\xc3")
        assert list(terminal.pressed()) == []
        os.write(ends.near, b"\xa9")
        assert list(terminal.pressed()) == ["é"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, None])
def test_settings_page_and_cursor_are_back_whatever_happened(ends: Line, error: type[BaseException] | None) -> None:
    before = settings(ends)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)]

    with pytest.raises(error) if error else nullcontext(), taken_over(ends.far, ends.far) as terminal:
        terminal.draw(["a line"])
        if error is not None:
            raise error

    assert settings(ends) == before
    assert ends.shown().endswith("\x1b[?7h\x1b[?25h\x1b[?1049l")
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGTSTP)] == handlers


def test_sigterm_leaves_as_an_error_would(ends: Line) -> None:
    before = settings(ends)

    with pytest.raises(SystemExit) as left, taken_over(ends.far, ends.far):
        signal.raise_signal(signal.SIGTERM)

    assert left.value.code == 128 + signal.SIGTERM
    assert settings(ends) == before


def test_a_frame_is_one_write_and_the_same_frame_is_none(ends: Line) -> None:
    with taken_over(ends.far, ends.far) as terminal:
        ends.shown()
        terminal.draw(["one", "two"])
        drawn = ends.shown()
        assert drawn == "\x1b[?2026h\x1b[Hone\r\ntwo\x1b[?2026l"
        assert "\x1b[2J" not in drawn
        terminal.draw(["one", "two"])
        assert ends.shown() == ""
        terminal.forget()
        terminal.draw(["one", "two"])
        assert ends.shown() == drawn
