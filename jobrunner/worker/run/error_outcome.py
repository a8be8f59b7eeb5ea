"""From the error of an attempt to its outcome, the hooks to run, and the text that is kept."""

import traceback

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Cancel, Cancelled, Fail, Failed, Outcome, Retry, Snooze, Snoozed, Steer
from jobrunner.redaction import in_error
from jobrunner.retry import is_retried, is_spent, next_delay

_ERROR_LIMIT = 8000
_log = SafeLogger("jobrunner.runner")


def after_error(attempt: Attempt, definition: Definition, error: BaseException) -> tuple[Outcome, list[str]]:
    """The outcome of an attempt that ended with an error, and the hooks to run, in order."""
    if isinstance(error, Snooze):
        return Snoozed(error.delay_s), []
    if isinstance(error, Cancel):
        return Cancelled(str(error)), []
    outcome = _failure(attempt, definition, shown(definition, error))
    given_up = (
        not outcome.retry or definition.options.ack == "early" or is_spent(attempt.number, attempt.max_attempts or 0)
    )
    hooks = ["on_failure", "on_dead"] if given_up else ["on_failure"]
    return outcome, [name for name in hooks if name in definition.hooks]


def shown(definition: Definition, error: BaseException) -> BaseException:
    """The error as passed to hooks and logs: a timeout that was raised into a thread has no message."""
    return out_of_time(definition) if isinstance(error, AttemptTimeout) and not error.args else error


def out_of_time(definition: Definition) -> AttemptTimeout:
    """The error of an attempt that ran longer than its job or station allows."""
    return AttemptTimeout(
        f"the attempt ran longer than timeout={definition.options.timeout:g} s of {definition.kind} {definition.name!r}"
    )


def error_text(error: BaseException) -> str:
    """The error in one line, then its traceback, cut to 8 000 characters from the front of the traceback.

    Always fit to be sent: without characters that have no UTF-8.
    """
    try:
        words = str(error)
    except Exception:  # a user's __str__ may raise
        words = "(an error that cannot be shown)"
    first = f"{type(error).__name__}: {words[:1000]}".replace("\n", " ")
    if isinstance(error, (Steer, AttemptTimeout)) or error.__traceback__ is None:
        return sendable(first)
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:
        return sendable(first)
    return sendable(f"{first}\n{lines[-_ERROR_LIMIT:]}")


def sendable(text: str) -> str:
    """The text with redacted values hidden, and with escapes for characters that have no UTF-8."""
    return in_error(text).encode("utf-8", "backslashreplace").decode()


def _is_retried(attempt: Attempt, definition: Definition, error: BaseException) -> bool:
    if isinstance(error, Fail):
        return error.retry
    return is_retried(
        definition.options.retry_on,
        error,
        attempt.number,
        on_problem=lambda problem: _log.warning("retry_on failed", job=definition.name, problem=problem),
    )


def _failure(attempt: Attempt, definition: Definition, error: BaseException) -> Failed:
    if isinstance(error, Retry):
        retry = True
    else:  # the next tick of a periodic job is its retry
        retry = definition.periodic is None and _is_retried(attempt, definition, error)
    delay_s = error.delay_s if isinstance(error, Retry) else None
    policy = definition.options.backoff
    if delay_s is None and policy is not None:
        delay_s = next_delay(
            policy,
            attempt.retry_count + 1,
            error,
            on_problem=lambda problem: _log.warning("backoff failed", job=definition.name, problem=problem),
        )
    return Failed(error_text(error), delay_s, retry)
