"""Output of commands: JSON or plain tables on stdout, messages and progress bars on stderr, and the exit code.

Every error becomes one line on stderr and an exit code: 0 done, 1 no (the server is away, there is no such task, a
check failed), 2 misuse, 130 interrupted. With --json that line is a JSON object, with --debug the traceback precedes
it.
"""

import base64
import dataclasses
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import click

from jobrunner.clock import perf_counter, utc_now
from jobrunner.errors import JobrunnerError, UnsafeServer, UsageError
from jobrunner.formatting import away, printable
from jobrunner.redaction import TOO_DEEP

_UNPRINTABLE = re.compile(r"[^\n -~]")


def answer_json(value: Any) -> None:
    """Writes a value of dataclasses, lists, dicts and datetimes (ISO 8601) as JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    click.echo(text if text.isprintable() else _UNPRINTABLE.sub(_json_escape, text))


def plain_json(value: Any) -> Any:
    """The same value in lists, dicts, numbers and texts, for a JSON line."""
    return json.loads(json.dumps(value, default=_plain))


def talk(line: str) -> None:
    """Prints a message to stderr."""
    echo(line, err=True)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text that may come from others; control characters are escaped."""
    click.echo(printable(str(text)), err=err, nl=nl)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows below their headings; numbers to the right, all else to the left."""
    shown = [[_cell(value) for value in row] for row in rows]
    numeric = [all(is_number(row[at]) for row in shown) and bool(shown) for at in range(len(columns))]
    widths = [max(len(row[at]) for row in [list(columns), *shown]) for at in range(len(columns))]
    lines = [_line(row, widths, numeric) for row in [list(columns), *shown]]
    return "\n".join(lines)


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """One `name  value` pair per line."""
    found = [(name, _cell(value)) for name, value in pairs]
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in found)


def when(instant: datetime | None) -> str:
    """How far away an instant is: `12 s ago`, `in 3 min`; `-` for none."""
    if instant is None:
        return "-"
    return away((instant - utc_now()).total_seconds())


def exactly(instant: datetime | None) -> str:
    """An instant in the zone of this machine, and how far away it is."""
    if instant is None:
        return "-"
    return f"{instant.astimezone().isoformat(sep=' ', timespec='seconds')} ({when(instant)})"


def readable(raw: bytes) -> Any:
    """A payload or result: the JSON value that it is, else its text, else its bytes in base64."""
    try:
        return json.loads(raw)
    except RecursionError:
        return TOO_DEEP
    except ValueError:
        pass
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


def is_number(text: str) -> bool:
    """Whether a cell holds a plain number."""
    return text.replace(".", "", 1).isdigit()


def _json_escape(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else json.dumps(found[0])[1:-1]


def _line(row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    shape = zip(row, widths, numeric, strict=True)
    cells = [f"{cell:>{width}}" if right else f"{cell:<{width}}" for cell, width, right in shape]
    return "  ".join(cells).rstrip()


def _cell(value: object) -> str:
    if isinstance(value, list | tuple | frozenset):
        value = ", ".join(str(one) for one in value)
    line = printable(" ".join(str(value).split()))
    return line if line else "-"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return readable(value)
    return str(value)


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
        _tell(error, as_json="--json" in words)
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """Which exit code stands for an error."""
    if isinstance(error, click.ClickException):
        return error.exit_code
    return MISUSE if isinstance(error, UsageError | UnsafeServer) else NO


def _tell(error: Exception, *, as_json: bool) -> None:
    text = " ".join(_message(error).split())
    click.echo(json.dumps(error_value(error, text)) if as_json else printable(f"Error: {text}"), err=True)


def error_value(error: Exception, text: str) -> dict[str, Any]:
    """An error as JSON. `hint` is what the message says behind its first semicolon: the remedy."""
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
    return f"{type(error).__name__}: {error}; this was not foreseen, --debug shows where it happened"


def _read_by_nobody() -> None:
    # As Python's documentation advises; else the interpreter reports an error when it flushes stdout at its exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


T = TypeVar("T")
_MANY = 1000


@contextmanager
def watched(items: Sequence[T], label: str) -> Iterator[Iterable[T]]:
    """The same items; a bar shows how many were taken when they are many and a terminal is there to show it."""
    if len(items) < _MANY or not sys.stderr.isatty():
        yield items
        return
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield bar


@contextmanager
def rising(total: int, label: str, noun: str) -> Iterator[Callable[[int], None] | None]:
    """A callback that takes how many of `total` are done and updates a progress bar with the rate; None without a
    terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    began = perf_counter()
    with click.progressbar(
        length=total, label=label, file=sys.stderr, show_pos=True, item_show_func=lambda shown: shown
    ) as bar:

        def tell(done: int) -> None:
            rate = done / max(perf_counter() - began, 0.001)
            bar.update(min(done, total) - bar.pos, f"{rate:,.0f} {noun}/s")

        yield tell
        tell(total)
