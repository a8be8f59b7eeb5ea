"""Where logs of a process that works go: lines for people or lines of JSON, all on stderr."""

import logging
import os
import sys
from contextlib import suppress
from io import StringIO
from typing import Any, TextIO

import structlog

from jobrunner.formatting import printable
from jobrunner.logs import IDENTITY, add_ids

FORMATS = ("console", "json")


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
    if form == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # The plain one: it shows no local variables, which may hold secrets.
    return [_readable, structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_traceback)]


def _readable(_: Any, __: str, event: Any) -> Any:
    """Nothing that is logged steers the terminal: the renderer writes texts without blanks as they are."""
    return {printable(name): printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _traceback(stream: TextIO, error: Any) -> None:
    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(text.getvalue()))
