"""The error boundary of the command line: every error becomes one line on stderr and an exit code.

Codes: 0 done, 1 failed (the server is unreachable, there is no such task, a check failed), 2 misuse, 130 interrupted.
With --json the line is a JSON object; with --debug the traceback precedes it. Where stderr is a JSON log, the error is
one of its lines.
"""

import errno
import json
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import click

from jobrunner.cli.output import DONE, INTERRUPTED, MISUSE, NO, Refusal
from jobrunner.errors import JobrunnerError, UnsafeServer, UsageError
from jobrunner.formatting import printable
from jobrunner.log_output import log_to_stderr
from jobrunner.logs import IDENTITY, SafeLogger

_log = SafeLogger("jobrunner.cli")


def guarded(command: click.Command, words: Sequence[str]) -> int:
    """Runs a command and returns the exit code. A command returns None or an exit code."""
    try:
        returned = command.main(list(words), prog_name="jobrunner", standalone_mode=False)
        if not sys.stdout.closed:  # as by a job
            sys.stdout.flush()
        return returned if isinstance(returned, int) else DONE
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        _read_by_nobody()
        return NO
    except SystemExit as error:  # a job module that exits with a text, which Python would print
        if not isinstance(error.code, str) or not _logs_json(words):
            raise
        _log_error(error, error.code, NO, debug="--debug" in words)
        return NO
    except Exception as error:
        if _logs_json(words) and "--json" not in words:
            _log_error(error, _text(error), exit_code(error), debug="--debug" in words)
        else:
            if "--debug" in words:
                click.echo(printable("".join(traceback.format_exception(error))), err=True, nl=False)
            _tell(error, as_json="--json" in words)
        if _has_no_room(error):
            _read_by_nobody()
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """The exit code for an error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return MISUSE if isinstance(error, UsageError | UnsafeServer) else NO


def _logs_json(words: Sequence[str]) -> bool:
    """Whether stderr is a JSON log, by the options, as an error may precede the set-up of logging."""
    asked = "--log-format=json" in words or ("--log-format", "json") in pairwise(words)
    return asked or IDENTITY.log_format == "json"


def _log_error(error: BaseException, text: str, code: int, *, debug: bool) -> None:
    if IDENTITY.log_format != "json":
        log_to_stderr("json")
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    trace = {"exc_info": error} if debug else {}
    _log.error("command failed", error=text, error_type=kind, exit_code=code, **trace)


def _text(error: Exception) -> str:
    return " ".join(_message(error).split())


def _tell(error: Exception, *, as_json: bool) -> None:
    text = _text(error)
    click.echo(json.dumps(error_value(error, text)) if as_json else printable(f"Error: {text}"), err=True)


def error_value(error: Exception, text: str) -> dict[str, Any]:
    """An error as JSON. `hint` is the text after the first semicolon of the message: the remedy."""
    is_usage = isinstance(error, click.UsageError)
    message, _, hint = text.partition("; ")
    kind = "UsageError" if is_usage else type(error).__name__
    return {"error": {"type": kind, "message": message, "hint": hint or None, "exit_code": exit_code(error)}}


def _message(error: Exception) -> str:
    if isinstance(error, click.MissingParameter) and error.ctx is not None:
        usage = " ".join(error.ctx.command.collect_usage_pieces(error.ctx))
        return f"{error.format_message().rstrip('.')}; usage: {error.ctx.command_path} {usage}"
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, JobrunnerError | Refusal):
        return str(error)
    if _has_no_room(error):
        return f"{error}: there is no room for the output, or for a file of this command; make room and run it again"
    if remedy := _remedy_of_limit(error):
        return f"{error}; {remedy}"
    return f"{type(error).__name__}: {error}; this was not foreseen, --debug shows where it happened"


def _remedy_of_limit(error: Exception) -> str:
    """The remedy when this process has reached a limit of the system; '' for another error."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return "raise the limit on open files (ulimit -n)"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return "raise the limit on threads (ulimit -u, the pids of a container)"
    return ""


def _has_no_room(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _read_by_nobody() -> None:
    # As Python's documentation advises; otherwise the interpreter reports an error when it flushes stdout at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
