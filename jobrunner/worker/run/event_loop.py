"""An event loop in a thread of its own, and the attempts that run on it.

Jobs can do anything to the loop they run on: cancel its tasks, stop it, raise SystemExit through it, block it. None of
that may leave an attempt without a report, so this module keeps the attempts outside the loop. No task of the loop
belongs to the worker itself: a job that cancels all tasks would cancel it, too.
"""

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import AttemptCrashed, AttemptTimeout
from jobrunner.forks import call_in_forks
from jobrunner.formatting import duration
from jobrunner.jobs.registry import definition_for, timeout_of
from jobrunner.logs import SafeLogger
from jobrunner.observers import OBSERVERS, observed_async
from jobrunner.outcome import Outcome
from jobrunner.tracebacks import is_of_library
from jobrunner.worker import process_guard
from jobrunner.worker.run.error_outcome import OnCancel, cancelled_by_a_job, failed
from jobrunner.worker.run.loop_attempts import LATE_S, AttemptOwner, LateAttempts, LoopAttempt, LoopAttempts
from jobrunner.worker.run.watchdog import Alarm, StepTimeouts, Watchdog

_BLOCKED_S = 10.0
_SILENT_S = 5.0
"""A loop that has not run for this long is reported as blocked."""
_FAREWELL_S = 1.0
_FAREWELLS = 5
_UNBLOCK_HINT = "await asyncio.to_thread(…) for calls that block, or write the job as def instead of async def"
_log = SafeLogger("jobrunner.executor")


class LoopExecutor(AttemptOwner, Protocol):
    """The executor of an event loop: the source of attempts and the target of outcomes."""

    def take(self, loop: "EventLoop") -> Attempt | None:
        """Takes the next attempt and a slot; None without an attempt, without a free slot, or for a replaced loop."""

    def run(self, attempt: Attempt, on_cancel: OnCancel) -> Awaitable[Outcome]:
        """Runs an attempt."""

    def give_up(self, attempt: Attempt, error: BaseException) -> Outcome:
        """The outcome of an abandoned attempt. Runs no hook."""

    def replace(self, loop: "EventLoop") -> None:
        """Starts another event loop for all further attempts. Raises OSError or RuntimeError when none can be
        started."""

    def begin_more(self) -> None:
        """Has the current event loop take attempts."""

    def blocks(self, is_blocked: bool) -> None:
        """Takes a slot for a replaced thread that cannot be ended, or gives it back."""


class EventLoop:
    """One event loop, uvloop where it is installed. Its life:

    1. begins attempts while the executor has attempts and slots for them;
    2. reports each attempt once, whatever happens to its task and to the loop;
    3. is replaced when it ended or is blocked: running attempts of an ended loop fail, attempts without a timeout on a
       blocked loop may still end within `_BLOCKED_S`, and attempts that had not begun on either begin on the next loop;
    4. ends when the executor closes; attempts that it cancels then are released, not reported.
    """

    def __init__(self, executor: LoopExecutor, watch: Watchdog) -> None:
        self._executor = executor
        self._watch = watch
        self._attempts = LoopAttempts(watch, executor)
        self._timeouts = LateAttempts(watch, self._attempts, self)
        self._crash: AttemptCrashed | None = None
        self._is_closing = False
        self._pid = process_guard.PID
        call_in_forks(self._end_fork)
        self._is_replaced = False
        self._blocked: list[Alarm] = []
        """The alarm that ends the attempts of a blocked loop; empty while the loop is not blocked."""
        self._asked_s: float | None = None
        """When `problem` asked the loop to run; None once it did."""
        self._has_warned = False
        self._loop = _new_loop()
        self._context = copy_context()  # jobs run in the context in which the executor was made
        self._thread = threading.Thread(target=self._serve, name="jobrunner-coroutines", daemon=True)

    def start(self) -> None:
        """Starts its thread. Raises RuntimeError when the system allows no more threads."""
        try:
            self._thread.start()
        except RuntimeError:
            self._loop.close()  # else its descriptors would be kept
            raise

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def problem(self) -> str:
        """The job that has kept the loop from running since an earlier call, and for how long; '' while the loop runs.

        Logs it once. One thread calls it, every few seconds: a job without a timeout may block the loop for ever, and
        then nothing else reports it.
        """
        if self._is_replaced or self._is_closing:
            return ""
        if self._asked_s is None:
            self._has_warned = False
            self._asked_s = monotonic()
            self.call(self._answer)
            return ""
        silent_s = monotonic() - self._asked_s
        if silent_s < _SILENT_S:
            return ""
        task = asyncio.current_task(self._loop)
        running = next((one for one in self._attempts.latest_first() if one.has_task(task)), None)
        job, task_id = ("", "") if running is None else (running.attempt.type, running.attempt.id)
        place = _place_in(self._thread)
        if not self._has_warned:
            self._has_warned = True
            _log.warning("a job blocks the event loop: all coroutine jobs of this worker wait", job=job, task=task_id,
                         place=place, hint=_UNBLOCK_HINT)  # fmt: skip
        which = f"job {job!r}, task {task_id}," if job else "a job"
        return f"{which} blocks the event loop for {duration(silent_s)}, at {place}: all coroutine jobs wait"

    def _answer(self) -> None:
        self._asked_s = None

    def begin_more(self) -> None:
        """Begins attempts in the thread of the loop."""
        self.call(self._begin)

    def close(self) -> None:
        """Begins nothing more, cancels running attempts, and ends soon."""
        self._is_closing = True
        self.call(self._loop.stop)

    def join(self, timeout_s: float) -> None:
        """Waits for its end."""
        self._thread.join(timeout_s)

    def _begin(self) -> None:
        while not self._is_closing and (attempt := self._executor.take(self)) is not None:
            running = self._attempts.add(attempt)
            running.task = self._loop.create_task(self._run(running), context=self._context.copy())
            running.task.add_done_callback(partial(self._after_task, running))

    async def _run(self, running: LoopAttempt) -> None:
        attempt = running.attempt
        if not self._attempts.claim(running):
            return
        attempt.began_s = perf_counter()
        on_cancel = partial(self._on_cancel, running)
        run = partial(self._executor.run, on_cancel=on_cancel)
        work: Any = observed_async(run)(attempt) if OBSERVERS else run(attempt)
        definition = definition_for(attempt)
        if definition is not None and (timeout_s := timeout_of(attempt, definition)) is not None:
            running.definition = definition
            self._timeouts.arm(running, timeout_s)
            work = StepTimeouts(work, self._watch, monotonic() + timeout_s + LATE_S)
        try:
            outcome = await work
        except asyncio.CancelledError as error:
            outcome = failed(on_cancel(error))
        except AttemptTimeout:
            outcome = self._executor.give_up(attempt, running.out_of_time())
        except BaseException as error:  # the task must be reported
            _log.exception("an attempt could not be run", queue=attempt.queue, task=attempt.id, job=attempt.type)
            outcome = failed(error)
        self._attempts.report(running, outcome)
        self._begin()

    def _on_cancel(self, running: LoopAttempt, error: BaseException) -> BaseException:
        """The cause of the cancellation of an attempt's task. Raises the error when the worker is closing: the attempt
        is released then, not reported."""
        if self._is_closing:
            raise error
        if self._crash is not None:
            return self._crash
        if running.is_late:
            return running.out_of_time().with_traceback(error.__traceback__)
        return cancelled_by_a_job(error)

    def give_up(self, running: LoopAttempt) -> None:
        """Reports an attempt that goes on after its timeout. When it blocks the loop, another loop takes over. Called
        by the watching thread."""
        self._attempts.report(running, self._executor.give_up(running.attempt, running.out_of_time()))
        if running.answers:
            self._executor.begin_more()
        else:
            self._leave_blocked()

    def call(self, function: Callable[[], object]) -> bool:
        """Has the loop call a function; returns whether the loop is running. Any thread may call it."""
        try:
            self._loop.call_soon_threadsafe(function)
        except (OSError, RuntimeError):  # it ended, or a job closed its descriptors: its thread handles that
            return False
        return True

    def _after_task(self, running: LoopAttempt, task: "asyncio.Task[None]") -> None:
        """Reports an attempt whose task ended without a report: it was cancelled before its first step, or after its
        last."""
        error = None if task.cancelled() else task.exception()
        if running in self._attempts and not self._is_closing and not self._attempts.put_back(running):
            cause = self._on_cancel(running, asyncio.CancelledError()) if error is None else error
            self._attempts.report(running, self._executor.give_up(running.attempt, cause))
        if self._is_replaced:
            self._executor.begin_more()
            if not self._attempts and self._crash is None:
                self._loop.stop()
        else:
            self._begin()

    def _leave_blocked(self) -> None:
        if self._is_replaced or self._is_closing:
            return
        self._is_replaced = True
        _log.error("a job blocks the event loop; another takes over", tasks=len(self._attempts))
        patience = Alarm(monotonic() + _BLOCKED_S, self._give_up_blocked)
        self._watch.arm(patience)
        self._executor.blocks(True)
        self._blocked.append(patience)
        self._take_over()
        for waiting in self._attempts.latest_first():
            self._attempts.put_back(waiting)
        self._executor.begin_more()
        if not self.call(self._after_block):
            self._unblock()

    def _end_fork(self) -> None:
        """Called in a process that a job on this loop forked: the copies of other attempts must not run on in it."""
        for name in ("_ready", "_scheduled"):  # attributes of asyncio's loops; uvloop has none
            with suppress(AttributeError):
                getattr(self._loop, name).clear()
        with suppress(Exception):
            self._loop.stop()

    def _after_block(self) -> None:
        self._unblock()
        if self._crash is not None or not self._attempts:
            self._loop.stop()

    def _unblock(self) -> None:
        with suppress(IndexError):
            self._watch.disarm(self._blocked.pop())
            self._executor.blocks(False)
            self._executor.begin_more()

    def _give_up_blocked(self) -> None:
        """Abandons the attempts without a timeout on a blocked loop. Called by the watching thread."""
        self._crash = AttemptCrashed(f"another job blocked the event loop of the attempt for {_BLOCKED_S:g} s")
        self._report_rest(self._crash)

    def _report_rest(self, crash: AttemptCrashed) -> None:
        for running in self._attempts.latest_first():
            if not self._attempts.put_back(running):
                self._attempts.report(running, self._executor.give_up(running.attempt, crash))
        self._executor.begin_more()

    def _serve(self) -> None:
        how = "ended"
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.call_soon(self._begin)
            self._loop.run_forever()
            how = "was stopped by a job"
        except BaseException as error:  # SystemExit from a task that a job started, or a closed descriptor
            how = f"ended with {type(error).__name__}: {error}"
        finally:
            self._leave(how)

    def _leave(self, how: str) -> None:
        process_guard.leave_fork(self._pid)
        crashed = not self._is_closing and (self._attempts or not self._is_replaced)
        if crashed:
            self._crash = AttemptCrashed(f"the event loop of the attempt {how}")
            _log.error("the event loop ended; another takes over", error=how, tasks=len(self._attempts))
            self._is_replaced = True
            self._take_over()
        _cancel_all(self._loop)
        if crashed and self._crash is not None:
            self._report_rest(self._crash)
        for farewell in (self._loop.shutdown_asyncgens, self._loop.shutdown_default_executor):
            _run_briefly(self._loop, farewell())
        self._loop.close()
        self._unblock()

    def _take_over(self) -> None:
        try:
            self._executor.replace(self)
        except (OSError, RuntimeError) as error:  # no descriptor or thread is free: the next attempts try again
            _log.error("no event loop can be started", error=str(error))


def _place_in(thread: threading.Thread) -> str:
    """File, line and function that a thread executes: its innermost frame outside of this package and of the standard
    library."""
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - there is no other way to look at a thread
    while frame is not None and is_of_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{'/'.join(Path(frame.f_code.co_filename).parts[-2:])}:{frame.f_lineno} ({frame.f_code.co_name})"


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where it is installed, else of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: Any = uvloop.new_event_loop()
    return loop  # type: ignore[no-any-return]


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the tasks of a loop that has stopped, and lets them end within a second."""
    ends = monotonic() + _FAREWELL_S
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    for _ in range(_FAREWELLS):  # a job may stop the loop again
        left_s = ends - monotonic()
        if left_s <= 0 or all(task.done() for task in tasks):
            return
        _run_briefly(loop, asyncio.wait(tasks, timeout=left_s))


def _run_briefly(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, object]) -> None:
    """Runs a stopped loop until the coroutine `work` has ended; its errors are logged."""
    try:
        loop.run_until_complete(work)
    except BaseException as error:  # jobs may have left anything in the loop; their attempts are reported
        work.close()
        _log.warning("an event loop did not end as it should", error=repr(error))
