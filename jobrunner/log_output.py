"""The output of log lines: on stderr, as text for people or as JSON."""

import os
import sys
import threading
import warnings
from collections.abc import MutableMapping
from contextlib import suppress
from io import StringIO
from math import isfinite
from typing import Any, TextIO

from jobrunner.errors import AttemptTimeout
from jobrunner.formatting import duration, printable
from jobrunner.logs import IDENTITY, RUNNING, SafeLogger, add_ids, text_of
from jobrunner.tracebacks import short_traceback

_DURATIONS = ("took", "retry_in")
_MOST_NAMES = 8
_ADDED = ("level", "timestamp")
_OF_EACH_LINE = ("event", *_ADDED, "logger")
FORMATS = ("console", "json")


def log_to_stderr(form: str, level: str = "info") -> None:
    """Sets up structlog and standard logging for lines of `level` and above. Messages that Python itself writes to
    stderr are logged, too. A user's module may set up its own logging after."""
    import logging

    import structlog

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
        processors=[_keep, structlog.processors.StackInfoRenderer(), *steps, *last],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=_Lines(sys.stderr).logger,
    )

    python = SafeLogger("python")

    class StandardHandler(logging.StreamHandler[TextIO]):
        """The handler of standard logging. Of the errors of a line, as of arguments that do not fit its message, only
        AttemptTimeout reaches the caller. Others are a line: Python writes some forty lines to stderr."""

        def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name there
            error = sys.exc_info()[1]
            if isinstance(error, AttemptTimeout):
                raise error
            if logging.raiseExceptions:
                python.error(
                    "a log line cannot be written", message=text_of(record.msg), args=text_of(record.args),
                    error=f"{type(error).__name__}: {error}", file=record.pathname, line=record.lineno,
                )  # fmt: skip

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
    _log_messages_of_python(python)


def warnings_to_stderr() -> None:
    """Logs only warnings and errors, for commands with output of their own."""
    log_to_stderr("console", "warning")


class _Lines:
    """Writes rendered lines for structlog. The WriteLogger of structlog has a lock that stays locked in a child forked
    while another thread writes: the first line of the child would wait for ever."""

    def __init__(self, stream: TextIO) -> None:
        from jobrunner.forks import call_in_forks

        self._stream = stream
        self._lock = threading.Lock()
        call_in_forks(self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def logger(self, *_: object) -> "_Lines":
        """The factory of loggers, for `structlog.configure`."""
        return self

    def msg(self, line: str) -> None:
        """Writes a line in one write, so that the lines of several processes on one stderr do not mix. Errors of the
        stream (a closed pipe, a full disk) only lose log lines."""
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    log = debug = info = warn = warning = error = err = exception = critical = fatal = failure = msg


def _log_messages_of_python(log: SafeLogger) -> None:
    """Logs messages that Python itself writes to stderr: warnings, errors that ended a thread, and errors that Python
    ignores, as of `__del__`. They have several lines, which a program that reads the log line by line would take for
    separate entries. A program may set its own hooks after."""

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
        log.error(args.err_msg or "exception ignored", object=_repr_of(args.object), exc_info=error)

    warnings.showwarning = warned
    threading.excepthook = ended
    sys.unraisablehook = ignored


def _repr_of(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # an object under destruction
        return type(value).__name__


def _keep(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keeps fields of a job that have the name of a field of every line, which would replace them."""
    for name in _ADDED:
        if name in line:
            line[f"extra_{name}"] = line.pop(name)
    return line


def _add_extra(logger: Any, method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the `extra` of standard logging. Names of fields of every line get the prefix `extra_`: the message stays.
    """
    import structlog

    extra = structlog.stdlib.ExtraAdder()(logger, method, {"_record": line["_record"]})
    for name, value in extra.items():
        if name != "_record":
            line[f"extra_{name}" if name in _OF_EACH_LINE else name] = value
    return line


def _as_texts(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Formats tracebacks, also of an error that a job logs as `exception=error`: renderers need texts."""
    from traceback import format_exception

    for name in ("exception", "stack"):
        value = line.get(name, "")
        if isinstance(value, BaseException):
            line[name] = "".join(format_exception(value)).rstrip()
        elif not isinstance(value, str):
            line[name] = str(value)
    return line


def _hide(_: object, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Hides redacted values in a line of a job. The lines of this package have none."""
    if RUNNING.get() is None:
        return line
    from jobrunner.redaction import in_line

    return in_line(line)


def _renderer(form: str) -> list[Any]:
    import structlog

    if form == "json":
        in_json = structlog.processors.JSONRenderer(_written_as_json, default=str)
        return [structlog.processors.format_exc_info, _as_texts, _hide, _whatever_it_holds(in_json)]
    colours = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    # The plain formatter: it writes no local variables, which may hold secrets.
    on_console = structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=_traceback)
    return [_as_texts, _hide, _readable, _whatever_it_holds(on_console)]


def _written_as_json(line: Any, default: Any) -> str:
    """JSON has no numbers for `nan` and infinity: readers refuse a line with what Python writes for them."""
    import json

    try:
        return json.dumps(line, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(_without_nan(line), default=default, allow_nan=False)


def _without_nan(value: Any) -> Any:
    """Replaces `nan` and infinity by texts, at any depth."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {_without_nan(name): _without_nan(one) for name, one in value.items()}
    return [_without_nan(one) for one in value] if isinstance(value, list | tuple) else value


def _whatever_it_holds(render: Any) -> Any:
    """Makes a renderer accept values of any kind: a log line of a job must not end its attempt."""

    def rendered(log: object, method: str, line: MutableMapping[str, Any]) -> Any:
        try:
            return render(log, method, dict(line))
        except AttemptTimeout:
            raise
        except Exception:  # a key of a dict that JSON does not have, a `__repr__` that raises
            texts = {name: printable(text_of(value)) for name, value in line.items() if name != "exc_info"}
            return render(log, method, texts)

    return rendered


def _readable(_: Any, __: str, event: Any) -> Any:
    """Formats values for people: tracebacks are shortened, durations get a unit, and lists are cut. Control characters
    are escaped: the renderer writes texts without blanks as they are, and they could control the terminal."""
    return {printable(name): _readable_value(name, value) for name, value in event.items()}


def _readable_value(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return printable(short_traceback(value) if name == "exception" else value)
    if name in _DURATIONS and isinstance(value, float):
        return duration(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str) for one in value):
        return printable(f"{len(value)} ({', '.join(value[:_MOST_NAMES])}{' …' if value[_MOST_NAMES:] else ''})")
    return value


def _traceback(stream: TextIO, error: Any) -> None:
    import structlog

    text = StringIO()
    structlog.dev.plain_traceback(text, error)
    stream.write(printable(_hide(None, "", {"exception": text.getvalue()})["exception"]))
