"""The lines that this package and its jobs log, with the ids of what they are about. Where they go is in log_output.

A line that is written while an attempt runs, by whatever logger, names worker, queue, task and attempt, and the job
where there is one. Programs that set structlog up themselves put `add_ids` among their processors. What must hold,
whoever set it up: a line of this package's own that cannot be written is lost, and nothing else. The error of a
timeout, which falls into whatever its thread does, is no such trouble: the job would go on for ever.

structlog is imported with the first line: that takes a quarter of the time in which a command starts, and most commands
log nothing.
"""

from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Protocol

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout


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


def is_logged(level: str) -> bool:
    """Whether lines of this level are logged, so that a caller can save their preparation."""
    return LEVELS.index(level) >= LEVELS.index(IDENTITY.log_level)
