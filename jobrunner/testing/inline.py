"""inline(): runs jobs at once, in the thread that enqueues them, without server and worker.

Jobs run through the worker's own Runner: parameters are encoded and decoded; hooks, steering and `self.task` work.
"""

import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from contextvars import copy_context
from datetime import timedelta
from functools import partial, wraps
from typing import Any, NoReturn, Self, TypeAlias, TypeVar

from jobrunner.attempt import Attempt
from jobrunner.client.current import pinned
from jobrunner.clock import from_ms, unix_ms, utc_now
from jobrunner.errors import TaskFailed, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.declared_queues import declare_configured
from jobrunner.jobs.registry import Definition, find, result_ttl_of
from jobrunner.jobs.running_task import JobRun
from jobrunner.middleware import MiddlewareStack
from jobrunner.outcome import Acknowledged, Cancelled, Fail, Failed, Outcome, Snoozed, Steer, Succeeded, Unknown
from jobrunner.queue_settings import QueueSettings
from jobrunner.retry import is_spent
from jobrunner.task import Task, TaskState
from jobrunner.testing.flows import Begun
from jobrunner.testing.memory import MemoryClient
from jobrunner.testing.memory_task import MemoryTask
from jobrunner.worker.run.error_outcome import cancelled_by_a_job, sole_error
from jobrunner.worker.run.runner import Runner

_LEASE = "1"
_LONGEST_REASON = 200
"""Most characters of a line in `failures`, as on a server."""
_EXPIRED = "expired before it started"
"""The error of a task that expired, as on a server."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
F = TypeVar("F", bound=Callable[..., Any])


class _WithoutParentheses(type):
    """Answers `with inline:`, for which Python says only that a type is no context manager."""

    def __enter__(cls) -> NoReturn:
        raise UsageError("`with inline:` has no parentheses; write `with inline():`")

    def __exit__(cls, *_: object) -> None: ...


class inline(metaclass=_WithoutParentheses):  # noqa: N801  # used like a function
    """While it is entered, or while the function that it decorates runs, `enqueue` runs the job at once.

    One attempt is made, also of a task that is enqueued for later, unless it would expire before. Errors of the job,
    and `Fail`, are raised from `enqueue`. With `propagate=False` they are not, and the handle has the state:
    `scheduled` when a worker would retry, else `dead`. Retry, Snooze and Cancel are no errors.
    """

    def __init__(self, *wrongly: object, propagate: bool = True) -> None:
        if wrongly:
            raise UsageError(f"inline({describe(wrongly[0])}): decorate with @inline(), and name propagate=…")
        self._propagate = propagate
        self._entered: list[ExitStack] = []

    def __enter__(self) -> Self:
        client = _InlineClient(self._propagate)
        with ExitStack() as stack:
            stack.enter_context(pinned(client, client.twin))
            self._entered.append(stack.pop_all())
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.pop().close()

    def __call__(self, function: F) -> F:
        """Decorates a function or a coroutine function. Raises UsageError for a class or a generator: the decorator
        would end before their code runs, and jobs would go to the configured server."""
        is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        if is_generator or inspect.isclass(function):
            what = f"{'generator' if is_generator else 'class'} {function.__qualname__}"
            raise UsageError(f"@inline() on {what}; write `with inline():` in the code that enqueues")

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        @wraps(function)
        async def async_wrapper(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await function(*args, **kwargs)

        return async_wrapper if inspect.iscoroutinefunction(function) else wrapper  # type: ignore[return-value]


_End: TypeAlias = Callable[[], None]
"""Ends a task that ran, after the following steps ran, too: raises the error of the job."""
_Begins: TypeAlias = tuple[Iterator[Begun], _End]
"""The steps of a flow that begin after a task, and the end of the task."""


def _nothing() -> None: ...


class _InlineClient(MemoryClient):
    def __init__(self, propagate: bool) -> None:
        super().__init__("inline()")
        self._propagate = propagate
        declare_configured()

    def take(self, task: Task) -> MemoryTask:
        entry, begun, end = self._run(task)
        self.begin(begun)
        end()
        return entry

    async def take_async(self, task: Task) -> MemoryTask:
        entry, begun, end = await self._run_async(task)
        await self.begin_async(begun)
        end()
        return entry

    def begin(self, begun: Iterable[Begun]) -> None:
        begins: list[_Begins] = [(iter(begun), _nothing)]
        while (task := self._next(begins)) is not None:
            begins.append(self._run(task)[1:])

    async def begin_async(self, begun: Iterable[Begun]) -> None:
        begins: list[_Begins] = [(iter(begun), _nothing)]
        while (task := self._next(begins)) is not None:
            begins.append((await self._run_async(task))[1:])

    def _next(self, begins: list[_Begins]) -> Task | None:
        """The next step of a flow to run: steps after the last one come first. Ends tasks without further steps.

        Not by recursion, as a chain may have more steps than Python's recursion limit.
        """
        while begins:
            begun, end = begins[-1]
            if (step := next(begun, None)) is not None:
                self.give(*step)
                return step[0]
            begins.pop()
            end()
        return None

    def _run(self, task: Task) -> tuple[MemoryTask, Iterator[Begun], _End]:
        entry, kept = super().take(task), self.kept_of(task.queue)
        if entry.expires_unbegun and not kept.is_paused:
            return self._expired(entry)
        if not kept.begin(task.key):
            return entry, iter(()), _nothing
        try:
            runner, attempt = self._begin(entry)
            outcome = _run_to_end(runner, attempt) if _is_async(task) else runner.run(attempt)
        finally:
            kept.end(task.key)
        return self._ended(entry, outcome, runner.error)

    async def _run_async(self, task: Task) -> tuple[MemoryTask, Iterator[Begun], _End]:
        entry, kept = super().take(task), self.kept_of(task.queue)
        if entry.expires_unbegun and not kept.is_paused:
            return self._expired(entry)
        if not kept.begin(task.key):
            return entry, iter(()), _nothing
        try:
            runner, attempt = self._begin(entry)
            outcome = await _run_in_task(runner, attempt) if _is_async(task) else runner.run(attempt)
        finally:
            kept.end(task.key)
        return self._ended(entry, outcome, runner.error)

    def _begin(self, entry: MemoryTask) -> tuple["_NotingRunner", Attempt]:
        entry.state, entry.attempts = TaskState.PENDING, 1
        attempt = _attempt(entry.task, self.usual(entry.task.queue))
        entry.when = from_ms(attempt.deadline_ms)
        return _NotingRunner(self, entry, self._middleware), attempt

    def _ended(
        self, entry: MemoryTask, outcome: Outcome, error: BaseException | None
    ) -> tuple[MemoryTask, Iterator[Begun], _End]:
        """Records the outcome of an attempt."""
        begun: list[Begun] = []
        if (progress := self._memory.progress.pop(self._key(entry.task), None)) is not None:
            entry.fields["progress"] = progress
        _settle(entry, outcome, self.usual(entry.task.queue))
        if entry.state.is_final and not _ends_test(error):
            begun = self.joins.end(entry.task.then, entry.state.value, entry.result or b"")
        return entry, iter(begun), partial(self._end, entry, outcome, error)

    def _expired(self, entry: MemoryTask) -> tuple[MemoryTask, Iterator[Begun], _End]:
        """Records the death of a task that no worker would begin."""
        entry.state, entry.when, entry.error = TaskState.DEAD, utc_now(), _EXPIRED
        begun = self.joins.end(entry.task.then, entry.state.value, b"")
        return entry, iter(begun), partial(self._end, entry, Failed(_EXPIRED), None)

    def _end(self, entry: MemoryTask, outcome: Outcome, error: BaseException | None) -> None:
        if error is not None and _ends_test(error):
            raise error
        steer = None if error is None else sole_error(error)
        if self._propagate and error is not None and (isinstance(steer, Fail) or not isinstance(steer, Steer)):
            raise error
        if self._propagate and isinstance(outcome, Failed) and error is None:
            raise TaskFailed(f"task {entry.task.id} ({entry.task.type}) failed: {outcome.error.partition(chr(10))[0]}")


class _NotingRunner(Runner):
    """The worker's runner, which also keeps the error of the job, and acknowledges without a server."""

    error: BaseException | None = None

    def __init__(self, client: MemoryClient, entry: MemoryTask, middleware: MiddlewareStack | None) -> None:
        super().__init__(client, lambda _: False, middleware=middleware)
        self._entry = entry

    def _acknowledge(self, attempt: Attempt) -> bool:  # noqa: ARG002
        self._entry.state, self._entry.is_kept = TaskState.SUCCEEDED, False
        return True

    def prepare(
        self, attempt: Attempt, definition: Definition | None = None
    ) -> tuple[Definition, Any, JobRun] | Failed | Unknown:
        found = super().prepare(attempt, definition)
        if not isinstance(found, Failed | Unknown):
            known, job, _ = found
            for name in ("before", "run"):
                job.__dict__[name] = self._noting(getattr(job, name), known.is_async)
        return found

    def _noting(self, method: Callable[[], Any], is_async: bool) -> Callable[[], Any]:
        def call() -> Any:
            try:
                returned = method()
            except BaseException as error:
                self.error = error
                raise
            if isinstance(returned, Steer):
                self.error = returned
            return self._await(returned) if is_async and hasattr(returned, "__await__") else returned

        return call

    async def _await(self, returned: Any) -> Any:
        try:
            returned = await returned
        except asyncio.CancelledError:  # a timeout, or the enqueueing task was cancelled
            raise
        except BaseException as error:
            self.error = error
            raise
        if isinstance(returned, Steer):
            self.error = returned
        return returned


def _ends_test(error: BaseException | None) -> bool:
    """Whether the error ends the test run or this test (Ctrl-C, `pytest.fail`), so it is not the job's."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_ends_test, error.exceptions))
    of_job = Exception | SystemExit | GeneratorExit | asyncio.CancelledError
    return error is not None and not isinstance(error, of_job)


def _attempt(task: Task, usual: QueueSettings) -> Attempt:
    keepalive_ms = usual.keepalive * 1000 if task.keepalive_ms is None else task.keepalive_ms
    now_ms = unix_ms()
    return Attempt(
        queue=task.queue, id=task.id, token=_LEASE, deadline_ms=now_ms + keepalive_ms, keepalive_ms=keepalive_ms,
        type=task.type, payload=task.payload, number=1, retry_count=0, enqueue_time_ms=now_ms,
        max_attempts=usual.max_attempts if task.max_attempts is None else task.max_attempts, headers=task.headers,
    )  # fmt: skip


def _settle(entry: MemoryTask, outcome: Outcome, usual: QueueSettings) -> None:
    if isinstance(outcome, Acknowledged):  # the task ended before it ran
        return
    entry.when = utc_now()
    attempt = _attempt(entry.task, usual)
    if isinstance(outcome, Succeeded | Cancelled) and result_ttl_of(attempt) == 0:
        entry.is_kept = False
    if isinstance(outcome, Succeeded):
        entry.state, entry.result = TaskState.SUCCEEDED, outcome.result or None
    elif isinstance(outcome, Cancelled):
        entry.state = TaskState.CANCELLED
    elif isinstance(outcome, Failed | Unknown):
        entry.error, entry.retry_count = outcome.error, 1
        first_line = _CONTROL.sub(" ", outcome.error.partition("\n")[0][:_LONGEST_REASON])
        entry.fields["failures"] = f"{unix_ms()}\t1\tfailed\t\t{first_line}".encode()
        if isinstance(outcome, Unknown):  # no other worker exists that might know the job
            outcome = Failed(outcome.error)
        lives = outcome.retry and not is_spent(1, attempt.max_attempts)
        entry.state = TaskState.SCHEDULED if lives else TaskState.DEAD
        delay_s = usual.backoff.delay(1) if outcome.delay_s is None else outcome.delay_s
        entry.when += timedelta(seconds=delay_s) if lives else timedelta(0)
    elif isinstance(outcome, Snoozed):
        entry.state, entry.attempts = TaskState.SCHEDULED, 0
        entry.when += timedelta(seconds=outcome.delay_s)
    else:
        entry.state, entry.attempts = TaskState.WAITING, 0
    if entry.cancel_requested and entry.waits:
        entry.state, entry.when = TaskState.CANCELLED, utc_now()


def _is_async(task: Task) -> bool:
    definition = find(task.type)
    return definition is not None and definition.is_async


async def _run_in_task(runner: Runner, attempt: Attempt) -> Outcome:
    """Runs a coroutine job in its own asyncio task, as a worker does, so that it has its own context."""
    caller = asyncio.current_task()

    def on_cancel(error: BaseException) -> BaseException:
        if caller is not None and caller.cancelling():
            raise error
        return cancelled_by_a_job(error)

    return await asyncio.get_running_loop().create_task(runner.run_async(attempt, on_cancel))


def _run_to_end(runner: Runner, attempt: Attempt) -> Outcome:
    """Runs a coroutine job for a caller that cannot await: in its own event loop, in another thread if a loop runs
    here."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(runner.run_async(attempt, cancelled_by_a_job))
    outcomes: list[Outcome] = []

    def run() -> None:
        outcomes.append(asyncio.run(runner.run_async(attempt, cancelled_by_a_job)))

    thread = threading.Thread(target=copy_context().run, args=(run,), name="jobrunner-inline")
    thread.start()
    thread.join()
    return outcomes[0]
