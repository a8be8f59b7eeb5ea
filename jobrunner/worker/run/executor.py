"""Passes attempts from the fetcher to an executor, and outcomes back. Lock-free: deques are atomic.

`ThreadExecutor` runs attempts on threads: all slots take from one backlog, so no task waits behind a long task.
`DispatchingExecutor` combines two executors: jobs whose `run` is a coroutine go to the event loop, others to threads.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from itertools import count
from typing import Protocol

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition, definition_for, timeout_of
from jobrunner.logs import SafeLogger
from jobrunner.observers import OBSERVERS, observed
from jobrunner.outcome import Outcome
from jobrunner.worker.report.report_calls import Report
from jobrunner.worker.run.error_outcome import failed, out_of_time
from jobrunner.worker.run.runner import Runner
from jobrunner.worker.run.watchdog import Guard, Watchdog

SHORT_S = 0.0005
_log = SafeLogger("jobrunner.executor")
RunAttempt = Callable[[Attempt], Outcome]


class Slots(Protocol):
    """Makes the functions with which the threads of an executor run attempts."""

    def new_run(self) -> RunAttempt:
        """The function for one more thread."""

    def end(self, run: RunAttempt) -> None:
        """Releases the function of a thread that ends."""

    def close(self) -> None:
        """Ends attempts that can be ended; these are released."""


class FinishedAttempts:
    """Outcomes for the fetcher. Wakes the fetcher as soon as `notify_at` of them wait, not before: with prefetched
    tasks a turn of the fetcher for each task would cost more than the tasks."""

    def __init__(self, wake: Callable[[], object] = lambda: None) -> None:
        self._reports: deque[Report] = deque()
        self.wake = wake
        self._is_told = False
        self.notify_at = 1

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        """Adds an outcome. Called by executors."""
        self._reports.append((attempt, outcome))
        if not self._is_told and len(self._reports) >= self.notify_at:
            self._is_told = True
            self.wake()

    def add_all(self, attempts: list[Attempt], outcome: Outcome) -> None:
        """Adds the same outcome for several attempts. Called by the fetcher."""
        self._reports.extend((attempt, outcome) for attempt in attempts)

    def drain(self) -> list[Report]:
        """Removes and returns all outcomes so far. Called by the fetcher."""
        self._is_told = False  # first: outcomes added from here on may wake the fetcher again
        reports = []
        take = self._reports.popleft
        try:
            while True:
                reports.append(take())
        except IndexError:
            return reports

    def copy(self) -> Sequence[Report]:
        """The outcomes that were not drained yet. Any thread may call it."""
        return self._reports.copy()

    def __len__(self) -> int:
        return len(self._reports)


CANNOT_START = "tasks cannot begin and are handed back"
START_HINT = (
    "it tries again each second; raise the limit of file descriptors (ulimit -n) or of threads and processes "
    "(ulimit -u)"
)


class CannotStartError(Exception):
    """No thread, process or event loop can be started for attempts: no thread or file descriptor is free."""

    def __init__(self, attempts: list[Attempt], cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.attempts = attempts
        """The attempts that the executor did not take; it has all others."""


class Executor(Protocol):
    """Runs attempts. `backlog` is the number of submitted attempts that have not begun."""

    @property
    def backlog(self) -> int: ...

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, in order. Raises CannotStartError with the attempts that it does not take."""

    def nudge(self) -> None:
        """Puts more slots to work. Called when the backlog does not shrink."""

    def problem(self) -> str:
        """Why attempts do not go on, for an operator; '' while they do. Called at each heartbeat."""

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""

    def close(self) -> None:
        """Begins nothing more and ends running attempts that can be ended: coroutines and processes, not threads."""


def emptied(backlog: deque[Attempt]) -> list[Attempt]:
    """Empties a backlog, oldest attempt first, also while threads take from it."""
    taken = []
    try:
        while True:
            taken.append(backlog.popleft())
    except IndexError:
        return taken


class ThreadExecutor:
    """`concurrency` threads. A parked thread waits on a lock of its own; `submit` wakes as many threads as it needs.

    Tasks shorter than the cost of waking a thread are left to few threads: more would only take turns on the
    interpreter lock. When the backlog does not shrink all the same, `nudge` wakes another thread.
    """

    def __init__(self, concurrency: int, slots: Slots, finished: FinishedAttempts) -> None:
        self._backlog: deque[Attempt] = deque()
        self._parked: deque[threading.Lock] = deque()
        self._finished = finished
        self._slots = slots
        self._closed = False
        self._typical_s = 1.0
        self._context = copy_context()
        self._numbers = count()
        for _ in range(concurrency):
            self._start_thread()

    @property
    def backlog(self) -> int:
        """The number of attempts not begun."""
        return len(self._backlog)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts and wakes threads for them."""
        self._backlog.extend(attempts)
        wanted = 1 if self._typical_s < SHORT_S else len(attempts)
        for _ in range(min(wanted, len(self._parked))):
            self.nudge()

    def nudge(self) -> None:
        """Wakes one parked thread, if there is one."""
        with suppress(IndexError):
            self._parked.popleft().release()

    def problem(self) -> str:
        """Nothing: a thread that hangs holds up only its own attempt."""
        return ""

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""
        return emptied(self._backlog)

    def close(self) -> None:
        """Ends the threads, each after its running attempt."""
        self._closed = True
        self._slots.close()
        while self._parked:
            self.nudge()

    def _start_thread(self) -> None:
        name = f"jobrunner-slot-{next(self._numbers)}"  # jobs run in the context in which the executor was made
        threading.Thread(target=self._context.copy().run, args=(self._work,), name=name, daemon=True).start()

    def _work(self) -> None:
        run = self._slots.new_run()
        take, add = self._backlog.popleft, self._finished.add
        parking = threading.Lock()
        parking.acquire()
        while not self._closed:
            try:
                attempt = take()
            except IndexError:
                if not self._park(parking, run):
                    return
                continue
            began = perf_counter()
            attempt.began_s = began
            outcome = _outcome_of(run, attempt)
            attempt.run_s = ran = perf_counter() - began
            add(attempt, outcome)
            self._typical_s += (ran - self._typical_s) * 0.05

    def _park(self, parking: threading.Lock, run: RunAttempt) -> bool:
        """Waits for work; returns whether the thread goes on."""
        self._parked.append(parking)
        if self._backlog or self._closed:  # added before this thread was in the list of parked threads
            try:
                self._parked.remove(parking)
            except ValueError:
                parking.acquire()  # another thread is waking this one already
            return True
        return self._waits_on(parking, run)

    def _waits_on(self, parking: threading.Lock, _run: RunAttempt) -> bool:
        parking.acquire()
        return True


def _outcome_of(run: RunAttempt, attempt: Attempt) -> Outcome:
    try:
        return observed(run)(attempt) if OBSERVERS else run(attempt)
    except BaseException as error:  # the slot must live, and the task must be reported
        _log.exception("an attempt could not be run", queue=attempt.queue, task=attempt.id, job=attempt.type)
        return failed(error)


class Deadlines:
    """Runs attempts on threads; attempts with a timeout run under a guard."""

    def __init__(self, runner: Runner, watch: Watchdog) -> None:
        self._runner = runner
        self._watch = watch

    def new_run(self) -> RunAttempt:
        """The function that runs an attempt in the calling thread, within the timeout of its job."""
        return self._run

    def end(self, run: RunAttempt) -> None:
        """Does nothing: all threads share one function."""

    def close(self) -> None:
        """Ends the watching thread; jobs on threads cannot be ended."""
        self._watch.close()

    def _run(self, attempt: Attempt) -> Outcome:
        definition = definition_for(attempt)
        if definition is None or (definition.options.timeout is None and attempt.headers is None):
            return self._runner.run(attempt, definition)
        timeout_s = timeout_of(attempt, definition)
        if timeout_s is None:
            return self._runner.run(attempt, definition)
        return self._run_guarded(attempt, definition, timeout_s)

    def _run_guarded(self, attempt: Attempt, definition: Definition, timeout_s: float) -> Outcome:
        guard = Guard(monotonic() + timeout_s)

        def is_late() -> bool:
            if not guard.fired and monotonic() < guard.ends:  # a job with the interpreter lock delays the watch, too
                return False
            self._watch.disarm(guard)  # an error that was not delivered must not hit the hooks
            return True

        try:
            self._watch.arm(guard)
            outcome = self._runner.run(attempt, definition, is_late)
            self._watch.disarm(guard)
        except AttemptTimeout:  # raised before the job began, or between its end and the disarming
            self._watch.disarm(guard)
            return self._runner.timed_out(attempt, out_of_time(attempt, definition))
        return outcome


class DispatchingExecutor:
    """Hands each attempt to the executor of its job or station. The event loop starts with the first coroutine job."""

    def __init__(self, plain: Executor, new_coroutines: Callable[[], Executor]) -> None:
        self._plain = plain
        self._new_coroutines = new_coroutines
        self._coroutines: Executor | None = None

    @property
    def backlog(self) -> int:
        """The number of attempts not begun."""
        return self._plain.backlog + (self._coroutines.backlog if self._coroutines is not None else 0)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, in order within each kind. Raises CannotStartError when no event loop runs or can be started;
        attempts for threads have been taken then."""
        waiting_for_loop = [attempt for attempt in attempts if _is_async(attempt)]
        if not waiting_for_loop:
            self._plain.submit(attempts)
            return
        try:
            if self._coroutines is None:
                self._coroutines = self._new_coroutines()
            self._coroutines.submit(waiting_for_loop)
        except Exception as error:
            raise CannotStartError(waiting_for_loop, error) from error
        finally:
            if len(waiting_for_loop) < len(attempts):
                self._plain.submit([attempt for attempt in attempts if not _is_async(attempt)])

    def nudge(self) -> None:
        """Puts more slots to work."""
        self._plain.nudge()

    def problem(self) -> str:
        """What blocks the event loop; threads block only themselves."""
        return "" if self._coroutines is None else self._coroutines.problem()

    def take_back(self) -> list[Attempt]:
        """Returns the attempts that have not begun, and forgets them."""
        taken = self._plain.take_back()
        return taken if self._coroutines is None else taken + self._coroutines.take_back()

    def close(self) -> None:
        """Begins nothing more."""
        self._plain.close()
        if self._coroutines is not None:
            self._coroutines.close()


def _is_async(attempt: Attempt) -> bool:
    definition = definition_for(attempt)
    return definition is not None and definition.is_async
