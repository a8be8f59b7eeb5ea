"""The lines that this package and its jobs log, with the ids of what they are about; and where they go: to stderr, as
lines for people or lines of JSON.

A line that is written while an attempt runs, by whatever logger, names worker, queue, task and attempt, and the job
where there is one. Programs that set structlog up themselves put `add_ids` among their processors. What must hold,
whoever set it up: a line of this package's own that cannot be written is lost, and nothing else. The error of a
timeout, which falls into whatever its thread does, is no such trouble: the job would go on for ever.

structlog is imported with the first line: that takes a quarter of the time in which a command starts, and most commands
log nothing.
"""

import os
import re
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TextIO

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout
from jobrunner.formatting import duration, printable


class Run(Protocol):
    """A run of an attempt (see jobs/running_task.py)."""

    attempt: Attempt


RUNNING: ContextVar[Run | None] = ContextVar("jobrunner_running", default=None)
"""The running attempt. `current_task()` and the ids in log lines are read from it."""


class ProcessIdentity:
    """The context that a worker process passes to its child processes."""

    worker = ""
    log_format = ""
    log_level = "info"


IDENTITY = ProcessIdentity()


class SafeLogger:
    """The log of one part of this package, by structlog as it is set up when a line is written."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **said: Any) -> None:
        """Logs a detail, for the search for an error."""
        self._write("debug", event, said)

    def info(self, event: str, **said: Any) -> None:
        """Logs normal operation."""
        self._write("info", event, said)

    def warning(self, event: str, **said: Any) -> None:
        """Logs a fault that was handled."""
        self._write("warning", event, said)

    def error(self, event: str, **said: Any) -> None:
        """Logs a fault that an operator must look at."""
        self._write("error", event, said)

    def exception(self, event: str, **said: Any) -> None:
        """An error that is handled at this moment, with its traceback."""
        self._write("exception", event, said)

    def _write(self, level: str, event: str, said: dict[str, Any]) -> None:
        try:
            getattr(logger(self._name), level)(event, **said)
        except AttemptTimeout:
            raise
        except Exception:  # a closed stream, a full disk, a processor that fails
            return


def logger(name: str) -> Any:
    """A structlog logger, as that is set up when a line is written."""
    import structlog

    return structlog.get_logger(name)


def add_ids(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names the worker and the attempt that runs, unless the line does so itself."""
    if IDENTITY.worker:
        line.setdefault("worker", IDENTITY.worker)
    run = RUNNING.get()
    if run is not None:
        attempt = run.attempt
        line.setdefault("queue", attempt.queue)
        line.setdefault("task", attempt.id)
        line.setdefault("attempt", attempt.number)
        line.setdefault("job", attempt.type)
    if line.get("job") == "":  # an item of a station has none; its queue says which station
        del line["job"]
    return line


_FRAME = re.compile(r'(?P<indent>[ |+]*)File "(?P<path>[^"]+)", line (?P<line>\d+)')
_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_STANDARD = f"{Path(os.__file__).parent}{os.sep}"
_STANDARD_ELSEWHERE = re.compile(r"/lib/python3\.\d+/")
"""The standard library of a worker on another machine, whose errors the dashboard renders."""
_MOST_LINES = 40
_DURATIONS = ("took", "retry_in")
_MOST_NAMES = 8
_OF_EACH_LINE = ("event", "level", "timestamp", "logger")
FORMATS = ("console", "json")
LEVELS = ("debug", "info", "warning", "error")


def is_logged(level: str) -> bool:
    """Whether lines of this level are logged, so that a caller can save their preparation."""
    return LEVELS.index(level) >= LEVELS.index(IDENTITY.log_level)


def log_to_stderr(form: str, level: str = "info") -> None:
    """Sets up structlog, and standard logging for programs that use that, for lines of `level` and above, also for what
    Python itself writes to stderr. A user's module may set up its own after."""
    import logging

    import structlog

    from jobrunner.python_messages import log_messages_of_python

    steps: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = _renderer(form)
    IDENTITY.log_format, IDENTITY.log_level = form, level
    least = getattr(logging, level.upper())
    structlog.configure(
        processors=[*steps, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=_Lines(sys.stderr).logger,
    )

    class StandardHandler(logging.StreamHandler[TextIO]):
        """Standard logging, in which any error of a line is lost, but a timeout."""

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
            error = sys.exc_info()[1]
            if isinstance(error, AttemptTimeout):
                raise error
            super().handleError(record)

    handler = StandardHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*steps, structlog.stdlib.add_logger_name, _add_extra],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(least)
    log_messages_of_python(SafeLogger("python"))


def warnings_to_stderr() -> None:
    """Lets only warnings and what is worse through, for a command that talks to a person itself."""
    log_to_stderr("console", "warning")


class _Lines:
    """Writes rendered lines for structlog, in place of its WriteLogger, whose lock stays locked in a child that is
    forked while another thread writes: the first line of the child would wait for it for ever."""

    def __init__(self, stream: TextIO) -> None:
        from jobrunner.forks import call_in_forks

        self._stream = stream
        self._renew_lock()
        call_in_forks(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = Lock()

    def logger(self, *_: object) -> "_Lines":
        """The factory of loggers, for `structlog.configure`."""
        return self

    def msg(self, line: str) -> None:
        """Writes a line in one write: the lines of several processes on one stderr do not mix. Troubles of the stream
        (a closed pipe, a full disk) cost lines of the log and nothing else."""
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    log = debug = info = warn = warning = error = err = exception = critical = fatal = failure = msg


def _add_extra(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the `extra` of standard logging, which replaces nothing that every line has: the message stays."""
    import structlog

    extra = structlog.stdlib.ExtraAdder()(logger, method, {"_record": line["_record"]})
    for name, value in extra.items():
        if name != "_record":
            line[f"extra_{name}" if name in _OF_EACH_LINE else name] = value
    return line


def _as_texts(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Tracebacks are texts, as renderers take them to be, also of an error that a job logs as `exception=error`."""
    from traceback import format_exception

    for name in ("exception", "stack"):
        value = line.get(name, "")
        if isinstance(value, BaseException):
            line[name] = "".join(format_exception(value)).rstrip()
        elif not isinstance(value, str):
            line[name] = str(value)
    return line


def _hide(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A line of a job is written without the values that redaction hides. Those of this package name none."""
    if RUNNING.get() is None:
        return line
    from jobrunner.redaction import in_line

    return in_line(line)


def _renderer(form: str) -> list[Any]:
    import structlog

    if form == "json":
        in_json = structlog.processors.JSONRenderer(default=str)
        return [structlog.processors.format_exc_info, _as_texts, _hide, _whatever_it_holds(in_json)]
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # The plain one: it shows no local variables, which may hold secrets.
    on_console = structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_traceback)
    return [_as_texts, _hide, _readable, _whatever_it_holds(on_console)]


def _whatever_it_holds(render: Any) -> Any:
    """The renderer, for values of any kind: a line that a job logs must not end its attempt."""

    def rendered(log: object, method: str, line: MutableMapping[str, Any]) -> Any:
        try:
            return render(log, method, dict(line))
        except AttemptTimeout:
            raise
        except Exception:  # a key of a dict that JSON does not have, a `__repr__` that raises
            return render(log, method, {name: _told(value) for name, value in line.items() if name != "exc_info"})

    return rendered


def _told(value: object) -> str:
    try:
        return printable(str(value))
    except AttemptTimeout:
        raise
    except Exception as error:
        return f"({type(value).__name__} cannot be written: {type(error).__name__})"


def _readable(_: Any, __: str, event: Any) -> Any:
    """Nothing that is logged steers the terminal: the renderer writes texts without blanks as they are. Tracebacks are
    shortened, durations get a unit, and of a list the first few are written."""
    return {printable(name): _readable_value(name, value) for name, value in event.items()}


def _readable_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return printable(short_traceback(value) if name == "exception" else value)
    if name in _DURATIONS and isinstance(value, float):
        return duration(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return printable(f"{len(value)} ({', '.join(value[:_MOST_NAMES])}{' …' if value[_MOST_NAMES:] else ''})")
    return value


def short_traceback(text: str) -> str:
    """A traceback for a terminal: neighbouring frames of this package and of the standard library are one line, files
    below the current folder are named from there, and at most forty lines are kept, from the end. The chain of
    exceptions stays.

    Works on the text, because a child process sends text.
    """
    found: list[str] = []
    folded: list[re.Match[str]] = []
    is_folding, indent = False, ""
    for line in text.splitlines():
        if frame := _FRAME.match(line):
            is_folding, indent = is_of_library(frame["path"]), frame["indent"]
            if is_folding:
                folded.append(frame)
                continue
        elif is_folding and line.startswith((f"{indent}  ", f"{indent}[Previous")):
            continue
        if folded:
            if frame is None or not found[-1:] or not found[-1].endswith("(most recent call last):"):
                found.append(_folded(folded))
            folded = []  # what led from the worker to the job is no part of the error
        is_folding = False
        found.append(line.replace(f'"{Path.cwd()}{os.sep}', '"', 1) if frame else line)
    if folded:
        found.append(_folded(folded))
    cut = len(found) - _MOST_LINES
    return "\n".join(found if cut <= 0 else [f"… {cut} lines", *found[cut:]])


def is_of_library(path: str) -> bool:
    """Whether a file is of this package or of the standard library, also of installations elsewhere."""
    if path.startswith((_PACKAGE, "<frozen ")) or "-packages/jobrunner/" in path:
        return True
    is_standard = path.startswith(_STANDARD) or _STANDARD_ELSEWHERE.search(path) is not None
    return is_standard and "-packages" not in path


def _folded(frames: list[re.Match[str]]) -> str:
    last = frames[-1]
    what = "1 frame" if len(frames) == 1 else f"{len(frames)} frames"
    return f"{last['indent']}… {what} of libraries, to {'/'.join(Path(last['path']).parts[-2:])}:{last['line']}"


def _traceback(stream: TextIO, error: Any) -> None:
    import structlog

    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(_hide(None, "", {"exception": text.getvalue()})["exception"]))
