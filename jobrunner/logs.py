"""The lines that this package and its jobs log, with the ids of what they are about; and where they go: to stderr, as
lines for people or lines of JSON.

A line that is written while an attempt runs, by whatever logger, names worker, queue, task and attempt, and the job
where there is one. Programs that set structlog up themselves put `add_ids` among their processors. What must hold,
whoever set it up: a line of this package's own that cannot be written is lost, and nothing else.

structlog is imported with the first line: that takes a quarter of the time in which a command starts, and most commands
log nothing.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from io import StringIO
from typing import Any, Protocol, TextIO

from jobrunner.attempt import Attempt
from jobrunner.formatting import printable


class Run(Protocol):
    """A run of an attempt (see jobs/running_task.py)."""

    attempt: Attempt


RUNNING: ContextVar[Run | None] = ContextVar("jobrunner_running", default=None)
"""The running attempt. `current_task()` and the ids in log lines are read from it."""


class ProcessIdentity:
    """The context that a worker process passes to its child processes."""

    worker = ""
    log_format = ""


IDENTITY = ProcessIdentity()


class SafeLogger:
    """The log of one part of this package, by structlog as it is set up when a line is written."""

    def __init__(self, name: str) -> None:
        self._name = name

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
        with suppress(Exception):  # a closed stream, a full disk, a processor that fails
            getattr(logger(self._name), level)(event, **said)


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


FORMATS = ("console", "json")


def log_to_stderr(form: str) -> None:
    """Sets up structlog, and standard logging for programs that use that. A user's module may set up its own after."""
    import structlog

    steps: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last = _renderer(form)
    IDENTITY.log_format = form
    structlog.configure(
        processors=[*steps, *last],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # One write for each line: the lines of several processes on one stderr do not mix.
        logger_factory=structlog.WriteLoggerFactory(file=_SafeStream(sys.stderr)),  # type: ignore[arg-type]
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*steps, structlog.stdlib.add_logger_name, structlog.stdlib.ExtraAdder()],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def warnings_to_stderr() -> None:
    """Lets only warnings and what is worse through, for a command that talks to a person itself."""
    import structlog

    log_to_stderr("console")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


class _SafeStream:
    """A stream whose troubles (a closed pipe, a full disk) cost lines of the log and nothing else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


def _renderer(form: str) -> list[Any]:
    import structlog

    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # The plain one: it shows no local variables, which may hold secrets.
    return [_readable, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_traceback)]


def _readable(_: Any, __: str, event: Any) -> Any:
    """Nothing that is logged steers the terminal: the renderer writes texts without blanks as they are."""
    return {printable(name): printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(stream: TextIO, error: Any) -> None:
    import structlog

    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(text.getvalue()))
