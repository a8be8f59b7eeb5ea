"""The boundary between commands and the shell: every error becomes one line on stderr and an exit code.

0 done, 1 no (the server is away, there is no such task, a check failed), 2 misuse, 130 interrupted. With --debug the
traceback comes before the line.
"""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from jobrunner.errors import JobrunnerError, UnsafeServer, UsageError
from jobrunner.formatting import printable

DONE, NO, MISUSE, INTERRUPTED = 0, 1, 2, 130


class Refusal(Exception):
    """The answer is no: one line for a person, exit 1."""


def guarded(command: click.Command, words: Sequence[str]) -> int:
    """Runs a command and returns the exit code. A command returns None, or a code of its own."""
    try:
        returned = command.main(list(words), prog_name="jobrunner", standalone_mode=False)
        sys.stdout.flush()
        return returned if isinstance(returned, int) else DONE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _read_by_nobody()
        return NO
    except Exception as error:
        if "--debug" in words:
            click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
        _tell(error)
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """Which exit code stands for an error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return MISUSE if isinstance(error, UsageError | UnsafeServer) else NO


def _tell(error: Exception) -> None:
    click.echo(printable(f"Error: {' '.join(_message(error).split())}"), err=True)


def _message(error: Exception) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, JobrunnerError | Refusal):
        return str(error)
    return f"{type(error).__name__}: {error}; this was not foreseen, --debug shows where it happened"


def _read_by_nobody() -> None:
    # As Python's documentation advises; else the interpreter reports an error when it flushes stdout at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
