"""The output of a demo: lines without a terminal, a live picture on a terminal."""

import io
from dataclasses import dataclass

import pytest

from jobs_example.demos import screen


@dataclass(frozen=True)
class SomeView:
    """A view that says its name."""

    elapsed_s: float = 4.25

    def summary(self) -> str:
        return f"{self.elapsed_s:5.2f} s"

    def picture(self) -> str:
        return "a picture"


class Terminal(io.StringIO):
    """A stream that says a person is looking at it."""

    def isatty(self) -> bool:
        return True


def test_a_stream_that_nobody_looks_at_gets_lines_without_any_colour() -> None:
    stream = io.StringIO()
    with screen.opened(stream) as shown:
        shown.say("worker A was killed")
        shown.show(SomeView())

    assert stream.getvalue() == "worker A was killed\n 4.25 s\n"


def test_lines_say_how_things_stand_only_every_few_seconds() -> None:
    stream = io.StringIO()
    lines = screen.Lines(stream, every_s=2.0)
    for elapsed_s in (0.0, 0.5, 1.9, 2.0, 3.9, 4.1):
        lines.show(SomeView(elapsed_s))

    assert [float(line[:5]) for line in stream.getvalue().splitlines()] == [0.0, 2.0, 4.1]


def test_a_terminal_gets_the_picture_and_keeps_what_was_said() -> None:
    terminal = Terminal()
    with screen.opened(terminal) as shown:
        shown.show(SomeView())
        shown.say("worker A [threads] was killed")

    assert "worker A [threads] was killed" in terminal.getvalue()
    assert "a picture" in terminal.getvalue()


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "find_spec", lambda name: None)
    terminal = Terminal()
    with screen.opened(terminal) as shown:
        shown.show(SomeView())

    assert terminal.getvalue() == " 4.25 s\n"
