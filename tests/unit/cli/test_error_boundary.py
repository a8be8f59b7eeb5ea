"""Every error is one line on stderr and an exit code."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jobrunner.cli.error_boundary import guarded
from jobrunner.cli.output import Refusal
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


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (
            InvalidName("queue name 'a{b}' is not allowed; leave out braces"),
            ("InvalidName", "queue name 'a{b}' is not allowed", "leave out braces", 2),
        ),
        (Refusal("nothing to do"), ("Refusal", "nothing to do", None, 1)),
        (click.NoSuchOption("--rat", possibilities=["--rate"]), ("UsageError", None, None, 2)),
    ],
    ids=lambda one: type(one).__name__,
)
def test_with_json_the_error_is_an_object_on_stderr(
    error: Exception, found: tuple[str, str | None, str | None, int], capsys: pytest.CaptureFixture[str]
) -> None:
    json_ = click.Option(["--json", "debug"], is_flag=True)
    command = a_command(error)
    command.params = [json_]

    assert guarded(command, ["--json"]) == found[3]

    heard = capsys.readouterr()
    told = json.loads(heard.err)["error"]
    assert (heard.out, heard.err.count("\n")) == ("", 1)
    assert (told["type"], told["exit_code"]) == (found[0], found[3])
    assert found[1] is None or (told["message"], told["hint"]) == found[1:3]


def test_a_missing_argument_is_named_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    command = click.Command("show", params=[click.Argument(["name"])])

    assert guarded(command, []) == 2

    assert capsys.readouterr().err == "Error: Missing argument 'NAME'; usage: jobrunner [OPTIONS] NAME\n"


def test_with_debug_the_traceback_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(a_command(InvalidName("a name")), ["--debug"]) == 2

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == "Error: a name"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            OSError(errno.EMFILE, "Too many open files", "register.lua"),
            "[Errno 24] Too many open files: 'register.lua'; raise the limit on open files (ulimit -n)",
        ),
        (
            RuntimeError("can't start new thread"),
            "can't start new thread; raise the limit on threads (ulimit -u, the pids of a container)",
        ),
    ],
)
def test_a_limit_of_the_system_is_named_with_the_remedy(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(a_command(error), []) == 1

    assert capsys.readouterr().err == f"Error: {told}\n"


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), click.Abort()])
def test_an_interruption_is_quiet(interruption: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(a_command(interruption), []) == 130

    assert capsys.readouterr().err.strip() == ""


def test_a_command_may_answer_with_a_code() -> None:
    assert guarded(click.Command("no", callback=lambda: 1), []) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_an_output_without_room_is_told_in_one_line() -> None:
    """Also by the interpreter, which flushes what is left at its exit."""
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "jobrunner", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert ended.returncode == 1
    assert "No space left on device: there is no room for the output" in ended.stderr
    assert ended.stderr.count("\n") == 1
