"""Runs an attempt and determines its outcome. Invariant: no exception of a job leaves this module."""

from collections.abc import Callable
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec.structs import replace

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leases
from jobrunner.client.client import Client, broker_of, encryption_of, keys_of
from jobrunner.clock import utc_now
from jobrunner.codec import NULL, to_json, write_result
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.encryption.envelope import is_stored
from jobrunner.errors import (
    NO_ANSWER,
    EncryptionError,
    EncryptionKeyMissing,
    EncryptionMissing,
    ParameterError,
    PayloadStoreError,
    PayloadStoreUnavailable,
    ResultTooLarge,
    ServerError,
    UsageError,
)
from jobrunner.jobs.progress_notes import ProgressNotes
from jobrunner.jobs.registry import Definition, definition_for, timeout_of
from jobrunner.jobs.running_task import JobRun
from jobrunner.logs import RUNNING, SafeLogger
from jobrunner.middleware import MiddlewareStack
from jobrunner.outcome import OUTCOMES, Fail, Failed, Moved, Outcome, Released, Steer, Succeeded, Unknown
from jobrunner.payload_store.stored_payloads import without_store
from jobrunner.worker import process_guard
from jobrunner.worker.run.error_outcome import (
    OnCancel,
    after_error,
    already_acknowledged,
    cause_of,
    error_text,
    failed,
    out_of_time,
    pass_on_cancellation,
    refused,
    shown,
    unknown_job,
    unreadable_here,
)

_SUCCEEDED = Succeeded()
Begin = Callable[[Attempt], object]
IsLate = Callable[[], bool] | None
_log = SafeLogger("jobrunner.runner")


def nothing(_attempt: Attempt) -> None:
    """The default `begin`: does nothing."""


class Runner:
    """Runs attempts: finds the job or station, builds it from the attempt, runs it with its hooks, returns the outcome.

    `is_stopped(token)` returns whether the attempt with that lease token should stop. `begin` is called with each
    attempt right before the first user code runs for it: as late as possible, as a task that has not begun spends no
    attempt. `hasty` is a broker that tries each call once, for notes of progress.
    """

    def __init__(
        self,
        client: Client,
        is_stopped: Callable[[str], bool],
        begin: Begin = nothing,
        middleware: MiddlewareStack | None = None,
        hasty: Broker | None = None,
    ) -> None:
        self._broker = broker_of(client)
        self._notes = ProgressNotes(hasty or self._broker)
        self._keys = keys_of(client)
        self._encryption = encryption_of(client)
        self._is_stopped = is_stopped
        self._pid = process_guard.PID
        self._result_limit = client.settings.result_limit
        self._begin = begin
        self._middleware = middleware

    def run(self, attempt: Attempt, definition: Definition | None = None, is_late: IsLate = None) -> Outcome:
        """Runs a job whose `run` is a plain function. `definition`: its job or station, if the caller knows it.
        `is_late`: whether a job that returned had exceeded its timeout, as the job may have caught the timeout's error.

        The job runs in a separate context, as a coroutine does: the next task on this thread, perhaps of another
        tenant, must not find context variables that this task set."""
        return copy_context().run(self._run_here, attempt, definition, is_late)

    def _run_here(self, attempt: Attempt, definition: Definition | None, is_late: IsLate) -> Outcome:
        found = self.prepare(attempt, definition)
        if not isinstance(found, tuple):
            return found
        definition, job, run = found
        if run.after is not None and run.must_be_proved and (unproved := _unproved(run)):
            return unproved
        if definition.options.ack == "late":
            outcome = self._run(attempt, definition, job, run, is_late)
            run.wait_for_notes()
            return outcome
        if not self._acknowledge(attempt):
            return Released()
        run.is_acknowledged = True
        return already_acknowledged(attempt, self._run(attempt, definition, job, run, is_late))

    async def run_async(self, attempt: Attempt, on_cancel: OnCancel = pass_on_cancellation) -> Outcome:
        """Runs a job whose `run` is a coroutine function. When this coroutine is cancelled, `on_cancel` decides whether
        the cancellation is a failure or is raised."""
        import asyncio  # here and below: a worker of threads does not need it

        before = RUNNING.get()
        try:
            if not is_stored(attempt.encoding):
                found = self.prepare(attempt)
            else:  # in a thread, as a payload store may be slow
                found = await asyncio.to_thread(self.prepare, attempt)
                RUNNING.set(found[2] if isinstance(found, tuple) else before)
            if not isinstance(found, tuple):
                return found
            definition, job, run = found
            if run.must_be_proved and (unproved := await asyncio.to_thread(_unproved, run)):
                return unproved
            if definition.options.ack == "late":
                outcome = await self._run_async(attempt, definition, job, run, on_cancel)
                await run.notes_written()
                return outcome
            if not await asyncio.to_thread(self._acknowledge, attempt):
                return Released()
            run.is_acknowledged = True
            return already_acknowledged(attempt, await self._run_async(attempt, definition, job, run, on_cancel))
        finally:
            RUNNING.set(before)

    def timed_out(self, attempt: Attempt, error: BaseException) -> Outcome:
        """Returns the outcome of an attempt that was ended from outside: by a timeout or a crash of its process."""
        return copy_context().run(self._timed_out_here, attempt, error)

    def _timed_out_here(self, attempt: Attempt, error: BaseException) -> Outcome:
        found = self.prepare(attempt)
        if isinstance(found, Unknown):  # the job was known, so its payload is unreadable now: no hook can run
            return self.give_up(attempt, error)
        if not isinstance(found, tuple):
            return found
        definition, job, _ = found
        outcome = _after_hooks(attempt, definition, job, error)
        return outcome if definition.options.ack == "late" else already_acknowledged(attempt, outcome)

    def give_up(self, attempt: Attempt, error: BaseException) -> Outcome:
        """Returns the outcome of an abandoned attempt. Runs no hook: the attempt may still run."""
        definition = definition_for(attempt)
        if definition is None:
            return unknown_job(attempt)
        outcome, _ = after_error(attempt, definition, error)
        return outcome if definition.options.ack == "late" else already_acknowledged(attempt, outcome)

    def prepare(
        self, attempt: Attempt, definition: Definition | None = None
    ) -> tuple[Definition, Any, JobRun] | Failed | Unknown:
        """Returns the definition of an attempt, the object built from it, and its run, which becomes the current run;
        or the outcome of an attempt that cannot run."""
        if definition is None:
            definition = definition_for(attempt)
            if definition is None:
                return unknown_job(attempt)
        timeout_s = definition.options.timeout if attempt.headers is None else timeout_of(attempt, definition)
        ends = None if timeout_s is None else utc_now() + timedelta(seconds=timeout_s)
        run = JobRun(attempt, definition.name, self._broker, self._keys, self._notes, self._is_stopped, ends)
        RUNNING.set(run)
        held = attempt
        if attempt.encoding or self._encryption is not None:
            try:
                attempt = run.decrypt(self._encryption)
            except (EncryptionKeyMissing, EncryptionMissing, PayloadStoreUnavailable) as error:
                return unreadable_here(error)
            except (EncryptionError, PayloadStoreError) as error:
                return refused(error)
        try:
            if definition.may_run_code_early:
                self._begin(held)
            return definition, definition.build(attempt, run), run
        except ParameterError as error:
            return refused(error)
        except Exception as error:  # raised by a parameter's own __post_init__
            return failed(error, retry=False)

    def _run(self, attempt: Attempt, definition: Definition, job: Any, run: JobRun, is_late: IsLate) -> Outcome:
        try:
            self._begin(attempt)
            work = partial(_before_and_run, job, self._pid) if "before" in definition.hooks else job.run
            if self._middleware is None:
                returned = work()
            else:
                returned = self._middleware.around(_described(definition), run.task, work)
            if self._pid != process_guard.PID:
                process_guard.leave_fork(self._pid)
            if is_late is not None and is_late():
                raise out_of_time(attempt, definition)
            if returned is None and not definition.hooks:
                return _SUCCEEDED
            outcome = _read_returned(definition, returned, self._result_limit)
            if attempt.encoding and is_stored(attempt.encoding):
                outcome = _with_payload(outcome, run, self._encryption)
        except BaseException as error:  # a job's sys.exit() must not end the worker
            process_guard.leave_fork(self._pid, error)
            return _after_hooks(attempt, definition, job, error)
        if "after" in definition.hooks:
            _call_hook("after", attempt, job.after)
        return outcome

    async def _run_async(
        self, attempt: Attempt, definition: Definition, job: Any, run: JobRun, on_cancel: OnCancel
    ) -> Outcome:
        try:
            self._begin(attempt)
            if self._middleware is None:
                returned = await _work_async(attempt, definition, job)
            else:
                work = partial(_work_async, attempt, definition, job)
                returned = await self._middleware.around_async(_described(definition), run.task, work)
            process_guard.leave_fork(self._pid)
            outcome = _read_returned(definition, returned, self._result_limit)
            if attempt.encoding and is_stored(attempt.encoding):
                outcome = _with_payload(outcome, run, self._encryption)
        except BaseException as raised:
            process_guard.leave_fork(self._pid, raised)
            error = cause_of(raised, on_cancel)
            outcome, hooks = after_error(attempt, definition, error)
            for name in hooks:
                await _await_hook(name, attempt, on_cancel, getattr(job, name), shown(attempt, definition, error))
            return outcome
        if "after" in definition.hooks:
            await _await_hook("after", attempt, on_cancel, job.after)
        return outcome

    def _acknowledge(self, attempt: Attempt) -> bool:
        report = (attempt.id, attempt.token, 0, "succeeded", b"", attempt.then or b"", attempt.type)
        try:
            (verdict,) = self._broker.run(leases.commit(self._keys.queue(attempt.queue), [report]))
        except ServerError as error:
            reason = str(error)
        else:
            if verdict != "unknown":
                return verdict == "ok"
            # The task is not begun in this case either: its lease may have ended, and another worker may have run it.
            reason = "the reply was lost; most likely it was taken, and the task has ended without a run"
        _log.warning("not begun: its early acknowledgement failed", task=attempt.id, job=attempt.type, error=reason)
        return False


def _unproved(run: JobRun) -> Failed | Released | Unknown | None:
    """The outcome of an encrypted step of a flow whose received results do not prove that the steps before it succeeded
    (None if they do). Without this check, a job that never reads them would run as soon as it is put in line. The step
    has not begun, so a missing key or a server that is away spends no attempt."""
    try:
        run.received()
    except EncryptionKeyMissing as error:  # another worker may have the key that encrypted the results
        return unreadable_here(error)
    except NO_ANSWER:
        return Released()
    except EncryptionError as error:
        return refused(error)
    except Fail as error:
        return failed(error, retry=error.retry)
    except Exception as error:  # the server refuses, or the lease is lost
        return failed(error)
    return None


def _before_and_run(job: Any, pid: int) -> Any:
    job.before()
    process_guard.leave_fork(pid)
    return job.run()


def _read_returned(definition: Definition, returned: Any, limit: int) -> Outcome:
    if returned is None:
        return _SUCCEEDED
    if isinstance(returned, Steer):
        raise returned
    if type(returned) in OUTCOMES:
        return returned  # type: ignore[no-any-return]
    try:
        raw = to_json(returned)
    except (TypeError, ValueError, RecursionError):
        raw = NULL
    if len(raw) <= limit and NULL not in raw:  # else the result may be invalid: write_result raises the reason
        return Succeeded(raw)
    try:
        return Succeeded(write_result(returned, limit, what=f"the result of {definition.kind} {definition.name!r}"))
    except UsageError as error:  # no retry: the job has done its work, and would return the same result again
        name = "ResultTooLarge: " if isinstance(error, ResultTooLarge) else ""
        raise Fail(f"{name}{error}", retry=False) from error


def _with_payload(outcome: Outcome, run: JobRun, encryption: PayloadEncryption | None) -> Outcome:
    """Adds the payload to a move that keeps it and must encrypt it again: reports do not read the payload store."""
    if not isinstance(outcome, Moved) or outcome.payload is not None or without_store(encryption) is None:
        return outcome
    kept = run.attempt
    return replace(outcome, payload=kept.payload or b"", encoding=(kept.encoding or b"").decode())


def _after_hooks(attempt: Attempt, definition: Definition, job: Any, error: BaseException) -> Outcome:
    """Calls the hooks for an error, and returns its outcome."""
    outcome, hooks = after_error(attempt, definition, error)
    for name in hooks:
        _call_hook(name, attempt, getattr(job, name), shown(attempt, definition, error))
    return outcome


def _call_hook(name: str, attempt: Attempt, hook: Callable[..., Any], *args: Any) -> None:
    try:
        returned = hook(*args)
        if hasattr(returned, "__await__"):  # a hook of a coroutine job whose process, and event loop, has ended
            import asyncio

            asyncio.run(_settled(returned))
    except BaseException as error:
        _log.warning("hook failed", hook=name, task=attempt.id, job=attempt.type, error=error_text(error))


async def _await_hook(
    name: str, attempt: Attempt, on_cancel: OnCancel, hook: Callable[..., Any], *args: Any
) -> None:
    try:
        await _settled(hook(*args))
    except BaseException as raised:
        error = cause_of(raised, on_cancel)
        _log.warning("hook failed", hook=name, task=attempt.id, job=attempt.type, error=error_text(error))


def _described(definition: Definition) -> str:
    """The job's kind and name, for messages of its middleware."""
    return f"{definition.kind} {definition.name!r}"


async def _work_async(attempt: Attempt, definition: Definition, job: Any) -> Any:
    if "before" in definition.hooks:
        await _settled(job.before())
    return await _within(attempt, definition, job.run())


async def _within(attempt: Attempt, definition: Definition, work: Any) -> Any:
    import asyncio

    timeout_s = timeout_of(attempt, definition)
    try:
        async with asyncio.timeout(timeout_s) as limit:
            returned = await work
    except TimeoutError as error:
        if not limit.expired():
            raise
        cancelled = error.__context__ or error  # with the line at which the job waited
        raise out_of_time(attempt, definition).with_traceback(cancelled.__traceback__) from None
    ends = limit.when()  # the job may have caught the cancellation, or blocked the loop so that it never came
    if limit.expired() or (ends is not None and asyncio.get_running_loop().time() > ends):
        raise out_of_time(attempt, definition)
    return returned


async def _settled(returned: Any) -> None:
    """Awaits the return value of a hook if it is awaitable."""
    if hasattr(returned, "__await__"):
        await returned
