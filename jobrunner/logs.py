"""Logs of a process that works: lines for people or lines of JSON, all on stderr, with the ids of what they tell of.

A line that is written while an attempt runs, by whatever logger, names worker, queue, task and attempt, and the job
where there is one. Programs that set structlog up themselves put `add_ids` among their processors. What must hold,
whoever set it up: a line of this package's own that cannot be written is lost, and nothing else.
"""

import logging
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TextIO

import structlog

from jobrunner.attempt import Attempt

FORMATS = ("console", "json")
RUNNING: ContextVar[Attempt | None] = ContextVar("jobrunner_running", default=None)
"""The attempt that runs here."""


class Identity:
    """What a process that works tells its children of itself."""

    worker = ""
    log_format = ""


IDENTITY = Identity()


class OwnLog:
    """The log of one part of this package, by structlog as it is set up when a line is written."""

    def __init__(self, name: str) -> None:
        self._log = structlog.get_logger(name)

    def info(self, event: str, **said: Any) -> None:
        """What went as it should."""
        self._write("info", event, said)

    def warning(self, event: str, **said: Any) -> None:
        """What went wrong and is made up for."""
        self._write("warning", event, said)

    def error(self, event: str, **said: Any) -> None:
        """What somebody has to look at."""
        self._write("error", event, said)

    def exception(self, event: str, **said: Any) -> None:
        """An error that is handled at this moment, with its traceback."""
        self._write("exception", event, said)

    def _write(self, level: str, event: str, said: dict[str, Any]) -> None:
        with suppress(Exception):  # a closed stream, a full disk, a processor that fails
            getattr(self._log, level)(event, **said)


def add_ids(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names the worker and the attempt that runs, unless the line does so itself."""
    if IDENTITY.worker:
        line.setdefault("worker", IDENTITY.worker)
    attempt = RUNNING.get()
    if attempt is not None:
        line.setdefault("queue", attempt.queue)
        line.setdefault("task", attempt.id)
        line.setdefault("attempt", attempt.number)
        line.setdefault("job", attempt.type)
    if line.get("job") == "":  # an item of a station has none; its queue says which station
        del line["job"]
    return line


def log_to_stderr(form: str) -> None:
    """Sets up structlog, and standard logging for programs that use that. A user's module may set up its own after."""
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
        logger_factory=structlog.WriteLoggerFactory(file=_Steady(sys.stderr)),  # type: ignore[arg-type]
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
    log_to_stderr("console")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


class _Steady:
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
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # The plain one: it shows no local variables, which may hold secrets.
    return [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)]
