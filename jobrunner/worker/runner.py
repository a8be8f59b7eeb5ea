"""Runs one attempt and names its outcome. Nothing a job does or raises leaves this module as an exception."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.clock import utc_now
from jobrunner.codec import encode
from jobrunner.errors import EncryptionMissing, ParameterError, SealError, ServerError, UsageError
from jobrunner.jobs.registry import Definition, definition_for
from jobrunner.jobs.run import Run
from jobrunner.logs import RUNNING, OwnLog
from jobrunner.outcome import (
    OUTCOMES,
    Acknowledged,
    Fail,
    Failed,
    Outcome,
    Released,
    Steer,
    Succeeded,
)
from jobrunner.worker.sealing import opened_attempt
from jobrunner.worker.verdict import after_error, error_text, out_of_time, sendable, shown

_SUCCEEDED = Succeeded()
_log = OwnLog("jobrunner.runner")


class Runner:
    """Turns attempts into outcomes: finds the job or station, builds it from the attempt, runs it with its hooks.

    `is_stopped(token)` tells whether the attempt with that lease token should stop.
    """

    def __init__(self, broker: Broker, keys: Keys, is_stopped: Callable[[str], bool]) -> None:
        self._broker = broker
        self._keys = keys
        self._is_stopped = is_stopped

    def run(self, attempt: Attempt, definition: Definition | None = None) -> Outcome:
        """Runs a job whose `run` is a plain function. `definition`: what runs it, where the caller knows."""
        before = RUNNING.set(attempt)
        try:
            found = self.prepare(attempt, definition)
            if isinstance(found, Failed):
                return found
            definition, job = found
            if definition.options.ack == "late":
                return self._run(attempt, definition, job)
            if not self._acknowledge(attempt):
                return Released()
            return _already_acknowledged(attempt, self._run(attempt, definition, job))
        finally:
            RUNNING.reset(before)

    async def run_async(self, attempt: Attempt) -> Outcome:
        """Runs a job whose `run` is a coroutine function. Raises CancelledError when it is itself cancelled."""
        RUNNING.set(attempt)  # each coroutine has a context of its own
        found = self.prepare(attempt)
        if isinstance(found, Failed):
            return found
        definition, job = found
        if definition.options.ack == "late":
            return await self._run_async(attempt, definition, job)
        if not await asyncio.to_thread(self._acknowledge, attempt):
            return Released()
        return _already_acknowledged(attempt, await self._run_async(attempt, definition, job))

    def timed_out(self, attempt: Attempt, error: BaseException) -> Outcome:
        """The outcome of an attempt that was ended from outside: a timeout or a crash of its process."""
        found = self.prepare(attempt)
        if isinstance(found, Failed):
            return found
        definition, job = found
        outcome = self._after_error(attempt, definition, job, error)
        return outcome if definition.options.ack == "late" else _already_acknowledged(attempt, outcome)

    def prepare(self, attempt: Attempt, definition: Definition | None = None) -> tuple[Definition, Any] | Failed:
        """What runs an attempt, built from it, with its definition; or why that cannot be."""
        if definition is None:
            definition = definition_for(attempt)
            if definition is None:
                return _unknown(attempt)
        if attempt.encoding or self._keys.seal is not None:
            try:
                attempt = opened_attempt(attempt, self._keys)
            except (SealError, EncryptionMissing) as error:
                return Failed(sendable(f"{type(error).__name__}: {error}"), retry=False)
        timeout_s = definition.options.timeout
        run = Run(
            attempt,
            definition.name,
            self._broker,
            self._keys,
            self._is_stopped,
            None if timeout_s is None else _from_now(timeout_s),
        )
        try:
            return definition, definition.build(attempt, run)
        except ParameterError as error:
            return Failed(sendable(f"ParameterError: {error}"), retry=False)
        except Exception as error:  # of a parameter's own __post_init__
            return Failed(error_text(error), retry=False)

    def _run(self, attempt: Attempt, definition: Definition, job: Any) -> Outcome:
        try:
            if definition.hooks and "before" in definition.hooks:
                job.before()
            returned = job.run()
            if returned is None and not definition.hooks:
                return _SUCCEEDED
            outcome = _read_returned(definition, returned)
        except BaseException as error:  # a job's sys.exit() must not end the worker
            return self._after_error(attempt, definition, job, error)
        if "after" in definition.hooks:
            _call_hook("after", attempt, job.after)
        return outcome

    async def _run_async(self, attempt: Attempt, definition: Definition, job: Any) -> Outcome:
        try:
            if "before" in definition.hooks:
                await _settled(job.before())
            outcome = _read_returned(definition, await _within(definition, job.run()))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise
            outcome, hooks = after_error(attempt, definition, error)
            for name in hooks:
                await _await_hook(name, attempt, getattr(job, name), shown(definition, error))
            return outcome
        if "after" in definition.hooks:
            await _await_hook("after", attempt, job.after)
        return outcome

    def _after_error(self, attempt: Attempt, definition: Definition, job: Any, error: BaseException) -> Outcome:
        outcome, hooks = after_error(attempt, definition, error)
        for name in hooks:
            _call_hook(name, attempt, getattr(job, name), shown(definition, error))
        return outcome

    def _acknowledge(self, attempt: Attempt) -> bool:
        report = (attempt.id, attempt.token, 0, "succeeded", b"", attempt.then or b"", attempt.type)
        try:
            return self._broker.run(leases.commit(self._keys.queue(attempt.queue), [report])) == ["ok"]
        except ServerError as error:
            _log.warning(
                "not begun: its early acknowledgement failed", task=attempt.id, job=attempt.type, error=str(error)
            )
            return False


def _unknown(attempt: Attempt) -> Failed:
    what = f"no job {attempt.type!r}" if attempt.type else f"no station of queue {attempt.queue!r}"
    return Failed(f"UnknownJob: this worker knows {what}; load the module that declares it")


def _read_returned(definition: Definition, returned: Any) -> Outcome:
    if returned is None:
        return _SUCCEEDED
    if isinstance(returned, Steer):
        raise returned
    if type(returned) in OUTCOMES:
        return returned  # type: ignore[no-any-return]
    try:
        return Succeeded(encode(returned, what=f"the result of {definition.kind} {definition.name!r}"))
    except UsageError as error:
        raise Fail(str(error), retry=False) from error


def _already_acknowledged(attempt: Attempt, outcome: Outcome) -> Acknowledged:
    if not isinstance(outcome, Succeeded):
        reason = outcome.error.partition("\n")[0] if isinstance(outcome, Failed) else type(outcome).__name__
        _log.error("a task acknowledged early is given up", task=attempt.id, job=attempt.type, error=reason)
    return Acknowledged()


def _call_hook(name: str, attempt: Attempt, hook: Callable[..., Any], *args: Any) -> None:
    try:
        hook(*args)
    except BaseException as error:
        _log.warning("hook failed", hook=name, task=attempt.id, job=attempt.type, error=error_text(error))


async def _await_hook(name: str, attempt: Attempt, hook: Callable[..., Any], *args: Any) -> None:
    try:
        await _settled(hook(*args))
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and _is_cancelled():
            raise
        _log.warning("hook failed", hook=name, task=attempt.id, job=attempt.type, error=error_text(error))


async def _within(definition: Definition, work: Any) -> Any:
    timeout_s = definition.options.timeout
    try:
        async with asyncio.timeout(timeout_s) as limit:
            return await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise out_of_time(definition) from error


async def _settled(returned: Any) -> None:
    """Awaits what a hook returned when it is a coroutine."""
    if hasattr(returned, "__await__"):
        await returned


def _is_cancelled() -> bool:
    """Whether the running coroutine is asked to end from outside, not by an error of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _from_now(length_s: float) -> datetime:
    return utc_now() + timedelta(seconds=length_s)
