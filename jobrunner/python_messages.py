"""Sends messages to a log that Python itself writes to stderr, over several lines: warnings, errors that ended a
thread, and errors that Python ignores, as of `__del__`. A program that reads the log line by line would take each of
their lines for a line of its own.
"""

import sys
import threading
import warnings
from typing import Any, Protocol, TextIO


class Log(Protocol):
    """Where they are written."""

    def warning(self, event: str, **said: Any) -> None:
        """Logs a fault that was handled."""

    def error(self, event: str, **said: Any) -> None:
        """Logs a fault that an operator must look at."""


def log_messages_of_python(log: Log) -> None:
    """Has them written to `log` from now on, until a program sets hooks of its own."""

    def warned(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None,
        line: str | None = None,
    ) -> None:  # fmt: skip
        if file is None:
            log.warning(str(message), category=category.__name__, file=filename, line=lineno)
        else:
            file.write(warnings.formatwarning(message, category, filename, lineno, line))

    def ended(args: threading.ExceptHookArgs) -> None:
        if not issubclass(args.exc_type, SystemExit):
            name = None if args.thread is None else args.thread.name
            error = args.exc_type, args.exc_value, args.exc_traceback
            log.error("an error ended a thread", thread=name, exc_info=error)

    def ignored(args: "sys.UnraisableHookArgs") -> None:
        error = args.exc_type, args.exc_value, args.exc_traceback
        log.error(args.err_msg or "exception ignored", object=_told(args.object), exc_info=error)

    warnings.showwarning = warned
    threading.excepthook = ended
    sys.unraisablehook = ignored


def _told(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # an object on its way out
        return type(value).__name__
