"""Every error is one line on stderr and an exit code."""

import click
import pytest

from jobrunner.cli.output import Refusal, guarded
from jobrunner.errors import InvalidName, ServerUnavailable, TaskGone, UnsafeServer


def a_command(error: BaseException) -> click.Command:
    def fail(debug: bool) -> None:
        raise error

    return click.Command("fail", callback=fail, params=[click.Option(["--debug"], is_flag=True)])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidName("a name"), 2),
        (UnsafeServer("it evicts"), 2),
        (click.UsageError("no such option"), 2),
        (ServerUnavailable("it is away"), 1),
        (TaskGone("no task"), 1),
        (Refusal("nothing to do"), 1),
        (RuntimeError("a defect\nin two lines"), 1),
    ],
)
def test_an_error_has_its_exit_code_and_one_line(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(a_command(error), []) == code

    heard = capsys.readouterr()
    assert heard.out == ""
    assert heard.err.startswith("Error: ")
    assert heard.err.count("\n") == 1


def test_with_debug_the_traceback_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(a_command(InvalidName("a name")), ["--debug"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "Error: a name"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_quiet(interruption: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(a_command(interruption), []) == 130

    assert capsys.readouterr().err.strip() == ""


def test_a_command_may_answer_with_a_code() -> None:
    assert guarded(click.Command("no", callback=lambda: 1), []) == 1
