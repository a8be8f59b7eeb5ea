"""The log lines of this package and its jobs, with the ids of worker, queue and task. log_output.py has their targets.

A line that is written while an attempt runs, by any logger, has worker, queue, task and attempt, and the job if there
is one. Programs that configure structlog themselves add `add_ids` to their processors. Invariant: when a line of this
package cannot be written, only that line is lost. But the error of a timeout, which may be raised in any code of its
thread, is passed on: the job would go on for ever.

structlog is imported with the first line: the import takes a quarter of the start time of a command, and most commands
log nothing.
"""

from collections.abc import MutableMapping
from contextvars import ContextVar
from functools import cache
from typing import Any, Protocol

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout

__all__ = ["add_ids"]


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
LEVELS = ("debug", "info", "warning", "error")


class SafeLogger:
    """The log of one part of this package: see `logger`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **said: Any) -> None:
        """Logs a detail for debugging."""
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
        """Logs the error that is being handled, with its traceback."""
        self._write("exception", event, said)

    def _write(self, level: str, event: str, said: dict[str, Any]) -> None:
        try:
            getattr(logger(self._name), level)(event, **said)
        except AttemptTimeout:
            raise
        except Exception:  # a closed stream, a full disk, a processor that fails
            return


def logger(name: str) -> Any:
    """A structlog logger with the configuration at the time of each line. In a program that does not configure
    structlog it writes to standard logging, so that the program's handlers and levels apply."""
    import structlog

    return structlog.get_logger(name) if structlog.is_configured() else _standard_logger(name)


@cache
def _standard_logger(name: str) -> Any:
    import structlog

    return structlog.wrap_logger(
        structlog.stdlib.LoggerFactory()(name),
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.PositionalArgumentsFormatter(),
            add_ids,
            _as_record,
        ],
    )


def _as_record(_: object, _method: str, line: MutableMapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments for a method of a standard logger: the message with its fields after it, which a handler also finds
    as `record.jobrunner`. The fields are an argument of the message, as error trackers group by `record.msg`."""
    fields = dict(line)
    event, error, stack = fields.pop("event", ""), fields.pop("exc_info", None), fields.pop("stack_info", False)
    trace = fields.pop("exception", "")
    if isinstance(trace, BaseException):
        error, trace = trace, ""
    text = " ".join(f"{name}={text_of(value)}" for name, value in fields.items())
    message, trace = str(event), f"\n{trace}" if trace else ""
    words: tuple[str, ...] = (message,)
    if text or trace:
        words = (message.replace("%", "%%") + (" %s" if text else "%s"), text + trace)
    return words, {"exc_info": error, "stack_info": stack, "extra": {"jobrunner": fields}}


def text_of(value: object) -> str:
    """The text of a value in a log line; its class when `str` fails."""
    try:
        return str(value)
    except AttemptTimeout:
        raise
    except Exception as error:  # a line that a job logs must not end its attempt
        return f"({type(value).__name__} cannot be written: {type(error).__name__})"


def add_ids(_logger: object, _method: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Adds the fields `worker`, `queue`, `task`, `attempt` and `job` to a log line of a worker or a task, unless the
    line has a field of that name. Returns the line.

    A processor of structlog, for programs that configure it themselves; a filter of standard logging calls it with
    `vars(record)` as the line. An item of a station has no `job`.
    """
    if IDENTITY.worker:
        line.setdefault("worker", IDENTITY.worker)
    run = RUNNING.get()
    if run is not None:
        attempt = run.attempt
        line.setdefault("queue", attempt.queue)
        line.setdefault("task", attempt.id)
        line.setdefault("attempt", attempt.number)
        line.setdefault("job", attempt.type)
    if line.get("job") == "":  # an item of a station has no job; its queue identifies the station
        del line["job"]
    return line


def is_logged(level: str) -> bool:
    """Whether lines of this level are logged, so that a caller can save their preparation."""
    return LEVELS.index(level) >= LEVELS.index(IDENTITY.log_level)
