"""Turns the error or cancellation of an attempt into its outcome, the hooks to run, and the stored text."""

import traceback
from collections.abc import Callable
from pathlib import Path

from jobrunner.attempt import Attempt
from jobrunner.errors import AttemptCancelled, AttemptTimeout, JobrunnerError
from jobrunner.formatting import storable
from jobrunner.jobs.registry import Definition, timeout_of
from jobrunner.logs import SafeLogger
from jobrunner.outcome import (
    Acknowledged,
    Cancel,
    Cancelled,
    Fail,
    Failed,
    Outcome,
    Retry,
    Snooze,
    Snoozed,
    Steer,
    Succeeded,
    Unknown,
)
from jobrunner.redaction import in_error
from jobrunner.retry import NOT_RAISED_BY_JOBS, errors_of, is_retried, is_spent, next_delay
from jobrunner.tracebacks import is_of_library
from jobrunner.worker.report.attempt_log import fields_of, subject_of

_ERROR_LIMIT = 8000
_REDACTED = 200_000
"""How many characters at the end of a traceback are searched for hidden values."""
_SHOWN_OF_GROUP = 3
OnCancel = Callable[[BaseException], BaseException]
"""Called with the CancelledError of an attempt whose task was cancelled from outside its coroutine: returns the error
it failed with, or raises its argument, to pass it on."""
_log = SafeLogger("jobrunner.runner")


def after_error(attempt: Attempt, definition: Definition, error: BaseException) -> tuple[Outcome, list[str]]:
    """The outcome of an attempt that ended with an error, and the hooks to run, in order."""
    cause = sole_error(error)
    if isinstance(cause, Snooze):
        return Snoozed(cause.delay_s), []
    if isinstance(cause, Cancel):
        return Cancelled(str(cause)), []
    outcome = _failure(attempt, definition, shown(attempt, definition, error))
    given_up = (
        not outcome.retry or definition.options.ack == "early" or is_spent(attempt.number, attempt.max_attempts or 0)
    )
    hooks = ["on_failure", "on_dead"] if given_up else ["on_failure"]
    return outcome, [name for name in hooks if name in definition.hooks]


def sole_error(error: BaseException) -> BaseException:
    """The one error of an exception group, as an asyncio.TaskGroup raises for a task that failed; else the error."""
    found = errors_of(error)
    return found[0] if len(found) == 1 else error


def shown(attempt: Attempt, definition: Definition, error: BaseException) -> BaseException:
    """The error as passed to hooks and logs: a timeout that was raised into a thread has no message."""
    if not isinstance(error, AttemptTimeout) or error.args:
        return error
    return out_of_time(attempt, definition).with_traceback(error.__traceback__)


def out_of_time(attempt: Attempt, definition: Definition) -> AttemptTimeout:
    """The error of an attempt that exceeded the timeout of its job, its station or its own options."""
    timeout_s, job_s = timeout_of(attempt, definition) or 0.0, definition.options.timeout
    owner = f"{definition.kind} {definition.name!r}"
    whose = owner if timeout_s == job_s else f"this task of {owner}"
    return AttemptTimeout(f"the attempt ran longer than timeout={timeout_s:g} s of {whose}")


def error_text(error: BaseException) -> str:
    """The error in one line, then its traceback, cut to 8 000 characters from the front of the traceback.

    For an exception group of one error it is that error; for a larger group it has the first of its errors, too. It can
    always be sent: it has no characters without UTF-8.
    """
    found = errors_of(error)
    first = _line_of(sole_error(error))
    if len(found) > 1:
        first = f"{first}: {'; '.join(map(_line_of, found[:_SHOWN_OF_GROUP]))}"
    if isinstance(sole_error(error), Steer) or error.__traceback__ is None or _is_only_ours(sole_error(error)):
        return sendable(first)
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:
        return sendable(first)
    if len(lines) > _ERROR_LIMIT:
        lines = in_error(lines[-_REDACTED:])[-_ERROR_LIMIT:]  # redact first: a cut may part a value from its name
    return sendable(f"{first}\n{lines}")


def _is_only_ours(error: BaseException) -> bool:
    """Whether a timeout met no code of the job: its traceback would say nothing about where the time was spent."""
    return isinstance(error, AttemptTimeout) and not place_of(error)


def _line_of(error: BaseException) -> str:
    try:
        words = str(error)
    except Exception:  # a user's __str__ may raise
        words = "(an error that cannot be shown)"
    return f"{type(error).__name__}: {words[:1000]}".replace("\n", " ")


def failed(error: BaseException, delay_s: float | None = None, *, retry: bool = True) -> Failed:
    """The outcome of an attempt that failed with this error."""
    cause = sole_error(error)
    # A time-out or a cancellation meets a job anywhere: dead tasks of a job are one group for it.
    place = "" if isinstance(cause, (AttemptTimeout, AttemptCancelled)) else place_of(cause)
    return Failed(error_text(error), delay_s, retry, qualified_name(type(cause)), place)


def place_of(error: BaseException) -> str:
    """The innermost frame of the user's code in the traceback: the end of its file's path, a colon and the function. A
    frame of a library where the user's code has none; empty where only this package has frames."""
    theirs, other = "", ""
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        if not is_of_library(code.co_filename):
            other = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_qualname}"
            theirs = theirs if "-packages" in code.co_filename else other
        trace = trace.tb_next
    return sendable(theirs or other)


def refused(error: JobrunnerError) -> Failed:
    """The outcome of an attempt whose task cannot be read: dead at once, without a traceback, which would not help."""
    return Failed(
        sendable(f"{type(error).__name__}: {error}"), retry=False, error_type=qualified_name(type(error))
    )


def qualified_name(kind: type) -> str:
    """`package.module.Class`; a built-in class without its module."""
    return sendable(kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}")


def sendable(text: str) -> str:
    """The text with redacted values hidden, and with escapes for characters that have no UTF-8."""
    return storable(in_error(text))


def _is_retried(attempt: Attempt, definition: Definition, error: BaseException) -> bool:
    if isinstance(error, Fail):
        return error.retry
    return is_retried(
        definition.options.retry_on,
        error,
        attempt.number,
        on_problem=lambda problem: _log.warning("retry_on failed", job=definition.name, problem=problem),
    )


def _may_retry(definition: Definition, error: BaseException) -> bool:
    """Whether the error may be retried: the next tick of a periodic job is its retry, unless it declares how it retries
    or another component ended the attempt.

    `max_attempts` alone does not: of a periodic job it bounds the attempts that crashes of workers end.
    """
    options = definition.declared
    declares_retries = options.backoff is not None or options.retry_on is not None
    return definition.periodic is None or declares_retries or isinstance(error, NOT_RAISED_BY_JOBS)


def _failure(attempt: Attempt, definition: Definition, error: BaseException) -> Failed:
    cause = sole_error(error)
    retry = isinstance(cause, Retry) or (_may_retry(definition, cause) and _is_retried(attempt, definition, cause))
    delay_s = cause.delay_s if isinstance(cause, Retry) else None
    policy = definition.options.backoff
    if delay_s is None and policy is not None:
        delay_s = next_delay(
            policy,
            attempt.retry_count + 1,
            cause,
            on_problem=lambda problem: _log.warning("backoff failed", job=definition.name, problem=problem),
        )
    return failed(error, delay_s, retry=retry)


def cancelled_by_a_job(error: BaseException) -> BaseException:
    """The error of an attempt whose task was cancelled, but not by the worker; with the place where the job was."""
    return AttemptCancelled(
        "the asyncio task of the attempt was cancelled (CancelledError), by its own job or by another one"
    ).with_traceback(error.__traceback__)


def pass_on_cancellation(error: BaseException) -> BaseException:
    """Raises the cancellation."""
    raise error


def cause_of(error: BaseException, on_cancel: OnCancel) -> BaseException:
    """The error that ended a coroutine. `on_cancel` names the error for a cancellation from outside; when it returns a
    failure the task's cancellation is undone, so that hooks can await. Raises the GeneratorExit of a coroutine that
    outlived its event loop and is discarded: its attempt has been reported by then."""
    import asyncio  # a worker with threads does not need it

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        raise error from None
    if not isinstance(error, asyncio.CancelledError) or task is None or not task.cancelling():
        return error
    cause = on_cancel(error)
    while task.uncancel():
        pass
    return cause


def unknown_job(attempt: Attempt) -> Unknown:
    """The outcome of an attempt whose job this worker does not know."""
    what = f"no job {attempt.type!r}" if attempt.type else f"no station of queue {attempt.queue!r}"
    return Unknown(f"UnknownJob: this worker knows {what}; load the module that declares it")


def unreadable_here(error: JobrunnerError) -> Unknown:
    """The outcome of an attempt whose payload another worker may be able to read: it is in a store that is away or not
    configured here, or needs a key that this worker lacks."""
    return Unknown(sendable(f"{type(error).__name__}: {error}"), is_unreadable=True)


def already_acknowledged(attempt: Attempt, outcome: Outcome) -> Acknowledged:
    """The outcome of an attempt that was acknowledged before it ran; logs an outcome other than success."""
    if not isinstance(outcome, Succeeded):
        reason = fields_of(outcome) if isinstance(outcome, Failed) else {"error": type(outcome).__name__}
        _log.error("early-acknowledged task not retried", **subject_of(attempt), **reason)
        return Acknowledged(succeeded=False, error=outcome.error if isinstance(outcome, Failed) else "")
    return Acknowledged()
