"""Runs one attempt and names its outcome. Nothing a job does or raises leaves this module as an exception."""

import asyncio
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import structlog

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.clock import utc_now
from jobrunner.codec import encode
from jobrunner.errors import AttemptTimeout, ParameterError, UsageError
from jobrunner.jobs.registry import JobDefinition, find
from jobrunner.jobs.run import Run
from jobrunner.outcome import Cancel, Cancelled, Fail, Failed, Outcome, Retry, Snooze, Snoozed, Steer, Succeeded
from jobrunner.retry import Backoff, is_spent, next_delay

_ERROR_LIMIT = 8000
_SUCCEEDED = Succeeded()
_log = structlog.get_logger("jobrunner.runner")


class Runner:
    """Turns attempts into outcomes: finds the job, reads its parameters, runs it with its hooks.

    `is_stopped(token)` tells whether the attempt with that lease token should stop.
    """

    def __init__(self, broker: Broker, keys: Keys, is_stopped: Callable[[str], bool]) -> None:
        self._broker = broker
        self._keys = keys
        self._is_stopped = is_stopped

    def run(self, attempt: Attempt) -> Outcome:
        """Runs a job whose `run` is a plain function."""
        found = self.prepare(attempt)
        if isinstance(found, Failed):
            return found
        definition, job = found
        try:
            if definition.hooks and "before" in definition.hooks:
                job.before()
            returned = job.run()
            if returned is None and not definition.hooks:
                return _SUCCEEDED
            outcome = self._read_returned(definition, returned)
        except BaseException as error:  # a job's sys.exit() must not end the worker
            return self._after_error(attempt, definition, job, error)
        return self._after_return(attempt, definition, job, outcome)

    async def run_async(self, attempt: Attempt) -> Outcome:
        """Runs a job whose `run` is a coroutine function."""
        found = self.prepare(attempt)
        if isinstance(found, Failed):
            return found
        definition, job = found
        try:
            if "before" in definition.hooks:
                await _maybe(job.before())
            returned = await _within(definition, job.run())
            outcome = self._read_returned(definition, returned)
        except BaseException as error:
            return self._after_error(attempt, definition, job, error)
        return self._after_return(attempt, definition, job, outcome)

    def prepare(self, attempt: Attempt) -> tuple[JobDefinition, Any] | Failed:
        """The job of an attempt, built from its payload; or why that cannot be."""
        definition = find(attempt.type)
        if definition is None:
            return Failed(
                f"UnknownJob: this worker knows no job {attempt.type!r}; load the module that declares it",
                Backoff().delay(attempt.retry_count + 1),
            )
        try:
            job = definition.parameters.read(attempt.payload or b"")
        except ParameterError as error:
            return Failed(f"ParameterError: {error}", retry=False)
        timeout_s = definition.options.timeout
        job.__dict__["_current"] = Run(
            attempt,
            definition.name,
            self._broker,
            self._keys,
            lambda: self._is_stopped(attempt.token),
            None if timeout_s is None else _from_now(timeout_s),
        )
        return definition, job

    def timed_out(self, attempt: Attempt, error: BaseException) -> Outcome:
        """The outcome of an attempt that was ended from outside: a timeout or a crash of its process."""
        found = self.prepare(attempt)
        if isinstance(found, Failed):
            return found
        return self._after_error(attempt, *found, error)

    def _read_returned(self, definition: JobDefinition, returned: Any) -> Outcome:
        if returned is None:
            return _SUCCEEDED
        if isinstance(returned, Steer):
            raise returned
        try:
            return Succeeded(encode(returned, what=f"the result of job {definition.name!r}"))
        except UsageError as error:
            raise Fail(str(error), retry=False) from error

    def _after_return(self, attempt: Attempt, definition: JobDefinition, job: Any, outcome: Outcome) -> Outcome:
        if "after" in definition.hooks:
            _call_hook("after", attempt, job.after)
        return outcome

    def _after_error(self, attempt: Attempt, definition: JobDefinition, job: Any, error: BaseException) -> Outcome:
        if isinstance(error, Snooze):
            return Snoozed(error.delay_s)
        if isinstance(error, Cancel):
            return Cancelled(str(error))
        if isinstance(error, AttemptTimeout) and not error.args:
            error = out_of_time(definition)
        outcome = _failure(attempt, definition, error)
        if "on_failure" in definition.hooks:
            _call_hook("on_failure", attempt, job.on_failure, error)
        spent = not outcome.retry or is_spent(attempt.number, _limit(attempt, definition))
        if spent and "on_dead" in definition.hooks:
            _call_hook("on_dead", attempt, job.on_dead, error)
        return outcome


def _limit(attempt: Attempt, definition: JobDefinition) -> int:
    if attempt.max_attempts is not None:
        return attempt.max_attempts
    return 5 if definition.options.max_attempts is None else definition.options.max_attempts


def _failure(attempt: Attempt, definition: JobDefinition, error: BaseException) -> Failed:
    retry = error.retry if isinstance(error, Fail) else definition.periodic is None
    delay_s = error.delay_s if isinstance(error, Retry) else None
    if delay_s is None:
        delay_s = next_delay(
            definition.options.backoff,
            attempt.retry_count + 1,
            error,
            on_problem=lambda problem: _log.warning("backoff failed", job=definition.name, problem=problem),
        )
    return Failed(error_text(error), delay_s, retry or isinstance(error, Retry))


def error_text(error: BaseException) -> str:
    """The error in one line, then its traceback, cut to 8 000 characters from the front of the traceback."""
    first = f"{type(error).__name__}: {error}".replace("\n", " ")[:1000]
    if isinstance(error, (Steer, AttemptTimeout)) or error.__traceback__ is None:
        return first
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception:  # a user's __str__ may raise
        return first
    return f"{first}\n{lines[-_ERROR_LIMIT:]}"


def _call_hook(name: str, attempt: Attempt, hook: Callable[..., Any], *args: Any) -> None:
    try:
        hook(*args)
    except BaseException as error:
        _log.warning("hook failed", hook=name, task=attempt.id, job=attempt.type, error=error_text(error))


async def _within(definition: JobDefinition, work: Any) -> Any:
    timeout_s = definition.options.timeout
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise out_of_time(definition) from error


def out_of_time(definition: JobDefinition) -> AttemptTimeout:
    """The error of an attempt that ran longer than its job allows."""
    limit = f"timeout={definition.options.timeout:g} s"
    return AttemptTimeout(f"the attempt ran longer than {limit} of job {definition.name!r}")


async def _maybe(awaitable: Any) -> None:
    if hasattr(awaitable, "__await__"):
        await awaitable


def _from_now(length_s: float) -> datetime:
    return utc_now() + timedelta(seconds=length_s)
