"""Output of commands: JSON or plain tables on stdout, messages and progress bars on stderr, and the exit codes.

Where the log on stderr is JSON, messages are lines of it.
"""

import base64
import dataclasses
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TextIO, TypeVar

import click
from msgspec import Struct
from msgspec.structs import asdict

from jobrunner.clock import perf_counter, utc_now
from jobrunner.formatting import away, cut, display_width, is_utf8, printable
from jobrunner.logs import IDENTITY, SafeLogger
from jobrunner.redaction import TOO_DEEP

_UNPRINTABLE = re.compile(r"[^\n -~]")
_log = SafeLogger("jobrunner.cli")


def answer_json(value: Any) -> None:
    """Writes a value of dataclasses, structs, lists, dicts and datetimes (ISO 8601) as JSON; NaN and
    Infinity as texts."""
    is_ascii = not is_utf8(sys.stdout.encoding)  # the stream's own escapes are not JSON
    text = _json(value, indent=2, ensure_ascii=is_ascii)
    click.echo(text if text.isprintable() else _UNPRINTABLE.sub(_json_escape, text))


def plain_json(value: Any) -> Any:
    """The value as lists, dicts, numbers and texts, for a JSON line."""
    return json.loads(_json(value))


def _json(value: Any, **options: Any) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False, **options)
    except ValueError:  # a payload may have NaN or Infinity, which JSON does not have
        return json.dumps(json.loads(json.dumps(value, default=_plain), parse_constant=str), **options)


def talk(line: str) -> None:
    """Prints a message to stderr, as a log line where the log is JSON."""
    if IDENTITY.log_format == "json":
        _log.info(line)
    else:
        echo(line, err=True)


def warn(line: str) -> None:
    """Prints a warning to stderr, as a log line where the log is JSON."""
    if IDENTITY.log_format == "json":
        _log.warning(line)
    else:
        echo(f"Warning: {line}", err=True)


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Prints text from outside; control characters are escaped."""
    click.echo(printable(str(text)), err=err, nl=nl)


_LEAST = 8
"""Columns of a terminal that a shortened cell keeps."""
_LEAST_TAIL = 24
INDENT = "    "
"""The indent of text that continues below its row on a narrow terminal."""


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, names: Sequence[str] = (),
    shortened: Sequence[str] = (), tail: bool = False, whole_tail: bool = False, wide: bool = False,
) -> str:  # fmt: skip
    """Formats rows below their headings; numbers are right-aligned, other cells left-aligned.

    On a terminal, unless `wide`, the table fits the width: columns named in `shortened` are shortened, and with `tail`
    the last column moves below its row; with `whole_tail` it moves before it is shortened. The first column and columns
    in `names` stay whole, as the next command needs them: a cell that does not fit gets a line of its own above its
    row. Columns without any space left move below. Where stdout is no terminal, each row is one line, and nothing is
    shortened.
    """
    grid = [list(columns), *([_cell(value) for value in row] for row in rows)]
    numeric = [len(grid) > 1 and all(is_number(row[at]) for row in grid[1:]) for at in range(len(columns))]
    widths = [max(display_width(row[at]) for row in grid) for at in range(len(columns))]
    room = None if wide else screen_width()
    if room is None or _sum(widths) <= room:
        return "\n".join(_line(row, widths, numeric) for row in grid)
    least = {at: max(_LEAST, len(name)) for at, name in enumerate(columns) if name in shortened}
    whole = {at: max(_LEAST, len(name)) for at, name in enumerate(columns) if name in names}
    fitted, below = _shrunk(widths, least | ({len(columns) - 1: _LEAST_TAIL} if tail else {}), room), False
    if (tail or whole_tail) and _sum(fitted) > room:
        fitted, below = _shrunk(widths[:-1], least, room), True
    fitted = _shrunk(_shrunk(fitted, whole, room), {0: len(columns[0])}, room)
    kept = {0, *whole}
    if _sum(fitted) > room:  # columns move below, so names may have their full width
        fitted = [widths[at] if at in kept and widths[at] <= room // 2 else width for at, width in enumerate(fitted)]
    return "\n".join(line for row in grid for line in _fitted(row, fitted, numeric, room, kept, below=below))


def screen_width() -> int | None:
    """The width of the terminal on stdout; None when stdout is a pipe or a file."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def draws_over(stream: TextIO) -> bool:
    """Whether a stream is a terminal that can redraw its content. A dumb terminal, as an Emacs shell, cannot, and rich
    shows nothing there before the end."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def prints_all_columns(*, wide: bool) -> bool:
    """Whether a list prints all of its columns: with --wide, and where no terminal limits the width."""
    return wide or screen_width() is None


def _sum(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)


def _shrunk(widths: Sequence[int], least: Mapping[int, int], room: int) -> list[int]:
    """The widths after reducing the widest columns of `least` step by step until all fit or have their minimum."""
    found = list(widths)
    while _sum(found) > room and (wider := [at for at, floor in least.items() if found[at] > floor]):
        found[max(wider, key=lambda at: found[at])] -= 1
    return found


def _fitted(
    row: Sequence[str], widths: Sequence[int], numeric: Sequence[bool], room: int, kept: AbstractSet[int], *,
    below: bool,
) -> Iterator[str]:  # fmt: skip
    cells = [*row[: len(widths)]]
    if apart := [at for at in sorted(kept) if at < len(cells) and display_width(cells[at]) > widths[at]]:
        names = [cells[at] for at in sorted({0, *apart})]
        in_one = "  ".join(names)
        yield from [in_one] if display_width(in_one) <= room else [names[0], *(INDENT + name for name in names[1:])]
        cells = ["" if at == 0 or at in apart else cell for at, cell in enumerate(cells)]
    shown = [cut(cell, width) for cell, width in zip(cells, widths, strict=True)]
    for begin, end in _lines_of(widths, room):
        if line := _line(shown[begin:end], widths[begin:end], numeric[begin:end]):
            yield INDENT + line if begin else line
    if below and row[-1] != "-":
        yield INDENT + cut(row[-1], room - len(INDENT))


def _lines_of(widths: Sequence[int], room: int) -> Iterator[tuple[int, int]]:
    """The ranges of columns that share a line: all columns, or on a very narrow terminal as many as fit, the next
    below."""
    begin, used = 0, widths[0]
    for at, width in enumerate(widths[1:], 1):
        used += 2 + width
        if used > room:
            yield begin, at
            begin, used = at, len(INDENT) + width
    yield begin, len(widths)


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """One `name  value` pair per line."""
    found = [(name, _cell(value)) for name, value in pairs]
    width = max(len(name) for name, _ in found)
    return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in found)


def when(instant: datetime | None) -> str:
    """The distance of an instant from now: `12 s ago`, `in 3 min`; `-` for None."""
    if instant is None:
        return "-"
    return away((instant - utc_now()).total_seconds())


def exactly(instant: datetime | None) -> str:
    """An instant in the zone of this machine, with its distance from now."""
    if instant is None:
        return "-"
    return f"{instant.astimezone().isoformat(sep=' ', timespec='seconds')} ({when(instant)})"


def readable(raw: bytes) -> Any:
    """A payload or result as its JSON value, else as text, else as base64."""
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
    gaps = (" " * max(width - display_width(cell), 0) for cell, width in zip(row, widths, strict=True))
    cells = [gap + cell if right else cell + gap for cell, gap, right in zip(row, gaps, numeric, strict=True)]
    return "  ".join(cells).rstrip()


def _cell(value: object) -> str:
    if isinstance(value, list | tuple | frozenset):
        value = ", ".join(str(one) for one in value)
    line = printable(" ".join(str(value).split()))
    return line if line else "-"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Struct):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return readable(value)
    return str(value)


DONE, NO, MISUSE, INTERRUPTED = 0, 1, 2, 130


class Refusal(Exception):
    """A command cannot do what was asked: one line on stderr, exit code 1."""


T = TypeVar("T")
_MANY = 1000


@contextmanager
def watched(items: Sequence[T], label: str) -> Iterator[Iterable[T]]:
    """Passes the items on; for many items, a progress bar counts them on a terminal."""
    if len(items) < _MANY or not sys.stderr.isatty():
        yield items
        return
    with click.progressbar(items, label=label, file=sys.stderr) as bar:
        yield bar


@contextmanager
def rising(total: int, label: str, noun: str) -> Iterator[Callable[[int], None] | None]:
    """A callback that takes the number of finished steps out of `total` and updates a progress bar with the rate; None
    without a terminal."""
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
