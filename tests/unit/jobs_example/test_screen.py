"""What people see of the demo."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from jobs_example import screen
from jobs_example.glance import Glance, QueueLine, RunningTask, WorkerLine
from jobs_example.verdict import Check

GLANCE = Glance(
    elapsed_s=4.25,
    accepted=265,
    ended=96,
    queues=(
        QueueLine(name="imports", waiting=3, scheduled=0, pending=4, dead=0, done=5),
        QueueLine(name="partner", waiting=100, scheduled=2, pending=8, dead=7, done=91),
    ),
    workers=(
        WorkerLine(name="A", executor="threads", pid=11, state="killed", running=0),
        WorkerLine(name="B", executor="processes", pid=12, state="alive", running=12),
    ),
    running=(
        RunningTask(id="1", what="import March", worker="B", attempt=2, done=15, total=31),
        RunningTask(id="2", what="quote EWR-IAH", worker="B", attempt=1, done=0, total=0),
    ),
)
CHECKS = [
    Check(what="flights", expected="336776", found="336776", agrees=True),
    Check(what="latest carriers", expected="F9 FL", found="FL F9", agrees=False),
]


class Terminal(io.StringIO):
    """A stream that says a person is looking at it."""

    def isatty(self) -> bool:
        return True


def test_a_summary_adds_up_the_queues() -> None:
    assert screen.summary(GLANCE) == (
        "  4.2 s  96 of 265 tasks have ended; 103 waiting, 2 scheduled, 12 running, 7 dead"
    )


def test_a_stream_that_nobody_looks_at_gets_lines_without_any_colour() -> None:
    stream = io.StringIO()
    with screen.opened(stream) as shown:
        shown.say("worker A was killed")
        shown.show(GLANCE)

    assert stream.getvalue() == f"worker A was killed\n{screen.summary(GLANCE)}\n"


def test_lines_say_how_things_stand_only_every_few_seconds() -> None:
    stream = io.StringIO()
    lines = screen.Lines(stream, every_s=2.0)
    for elapsed_s in (0.0, 0.5, 1.9, 2.0, 3.9, 4.1):
        lines.show(replace(GLANCE, elapsed_s=elapsed_s))

    assert [float(line[:5]) for line in stream.getvalue().splitlines()] == [0.0, 2.0, 4.1]


def test_a_person_sees_queues_workers_progress_and_attempts() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=130)
    console.print(screen.picture(GLANCE))
    seen = stream.getvalue()

    for word in (
        "imports",
        "partner",
        "threads",
        "processes",
        "killed",
        "alive",
        "import March",
        "attempt 2",
    ):
        assert word in seen
    assert "quote EWR-IAH" not in seen  # it says nothing of its progress


def test_a_terminal_gets_the_picture_and_keeps_what_was_said() -> None:
    terminal = Terminal()
    with screen.opened(terminal) as shown:
        shown.show(GLANCE)
        shown.say("worker A [threads] was killed")

    assert "worker A [threads] was killed" in terminal.getvalue()
    assert "import March" in terminal.getvalue()


def test_without_rich_a_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "find_spec", lambda name: None)
    terminal = Terminal()
    with screen.opened(terminal) as shown:
        shown.show(GLANCE)
    screen.write_checks(CHECKS, terminal)

    assert terminal.getvalue().startswith(screen.summary(GLANCE))
    assert "\x1b" not in terminal.getvalue()


def test_checks_are_a_table_that_aligns() -> None:
    stream = io.StringIO()
    screen.write_checks(CHECKS, stream)

    assert stream.getvalue().splitlines() == [
        "check            expected  found",
        "flights          336776    336776  agrees",
        "latest carriers  F9 FL     FL F9   DIFFERS",
    ]


def test_checks_on_a_terminal_say_the_same() -> None:
    terminal = Terminal()
    screen.write_checks(CHECKS, terminal)

    for word in ("336776", "agrees", "DIFFERS"):
        assert word in terminal.getvalue()
