"""The attempts of an event loop: which have begun, which are to be reported, and the end of attempts that go on after
the `timeout` of their job."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic, perf_counter
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Outcome
from jobrunner.worker.run.error_outcome import out_of_time
from jobrunner.worker.run.watchdog import Alarm, Watchdog

LATE_S = 1.0
"""How long an attempt may clean up after its timeout before it is cancelled again, and then before it is abandoned."""
_log = SafeLogger("jobrunner.executor")


class LoopAttempt:
    """An attempt on an event loop."""

    __slots__ = ("alarm", "answers", "attempt", "definition", "is_late", "task")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.definition: Definition | None = None
        """The alarm of an attempt with a timeout."""
        self.alarm: Alarm | None = None
        self.answers = True
        """Whether the loop has run since the attempt is late."""
        self.is_late = False
        self.task: asyncio.Task[None]

    def has_task(self, task: "asyncio.Task[Any] | None") -> bool:
        """Whether this is the asyncio task of the attempt."""
        return task is not None and getattr(self, "task", None) is task

    def out_of_time(self) -> AttemptTimeout:
        """The error of an attempt with a timeout."""
        assert self.definition is not None
        return out_of_time(self.attempt, self.definition)


class AttemptOwner(Protocol):
    """The executor of an event loop, as its attempts see it. Any thread calls it."""

    def put_back(self, attempt: Attempt) -> None:
        """Takes back an attempt that did not begin, and its slot."""

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """Takes the outcome of an attempt, and its slot."""


class LoopAttempts:
    """The attempts of one event loop: each begins once or is put back, and is reported once. Any thread calls it.

    They are kept outside the loop, as jobs can do anything to the loop. The thread that removes a token, in one atomic
    step, begins the attempt, puts it back, or reports it: a blocked loop may run again while another thread abandons
    its attempts.
    """

    def __init__(self, watch: Watchdog, owner: AttemptOwner) -> None:
        self._watch = watch
        self._owner = owner
        self._held: dict[str, LoopAttempt] = {}
        self._not_begun: set[str] = set()

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, running: LoopAttempt) -> bool:
        """Whether an attempt is not reported yet."""
        return running.attempt.token in self._held

    def add(self, attempt: Attempt) -> LoopAttempt:
        """Adds an attempt that will begin on the loop."""
        running = LoopAttempt(attempt)
        self._not_begun.add(attempt.token)
        self._held[attempt.token] = running
        return running

    def latest_first(self) -> list[LoopAttempt]:
        """All attempts, latest first, so that attempts put back one by one are in order again."""
        return list(self._held.values())[::-1]

    def claim(self, running: LoopAttempt) -> bool:
        """Claims an attempt, to begin it or put it back; False when another thread did so."""
        try:
            self._not_begun.remove(running.attempt.token)
        except KeyError:
            return False
        return True

    def put_back(self, running: LoopAttempt) -> bool:
        """Puts an attempt back, unless it began."""
        if not self.claim(running):
            return False
        del self._held[running.attempt.token]
        self._owner.put_back(running.attempt)
        return True

    def report(self, running: LoopAttempt, outcome: Outcome) -> None:
        """Reports an attempt, once."""
        attempt = running.attempt
        if self._held.pop(attempt.token, None) is None:
            return
        if running.alarm is not None:
            self._watch.disarm(running.alarm)
        attempt.run_s = perf_counter() - attempt.began_s
        self._owner.report(attempt, outcome)


class AttemptLoop(Protocol):
    """The event loop of late attempts."""

    def give_up(self, running: LoopAttempt) -> None:
        """Reports the attempt, which may go on."""

    def call(self, function: Callable[[], object]) -> bool:
        """Has the loop call a function; returns whether the loop is running."""


class LateAttempts:
    """The alarms of attempts with a timeout. asyncio cancels an attempt at its timeout; if it goes on, it is cancelled
    again `LATE_S` later, and abandoned after another `LATE_S`. Alarms ring in the watching thread."""

    def __init__(self, watch: Watchdog, attempts: LoopAttempts, loop: AttemptLoop) -> None:
        self._watch = watch
        self._attempts = attempts
        self._loop = loop

    def arm(self, running: LoopAttempt, timeout_s: float) -> None:
        """Arms the alarm of an attempt that begins and has this timeout."""
        self._alarm(running, timeout_s + LATE_S, self._end_late)

    def _alarm(self, running: LoopAttempt, in_s: float, ring: Callable[[LoopAttempt], object]) -> None:
        running.alarm = Alarm(monotonic() + in_s, partial(ring, running))
        self._watch.arm(running.alarm)

    def _end_late(self, running: LoopAttempt) -> None:
        """Cancels an attempt once more that has not ended `LATE_S` after its timeout: it goes on in spite of the
        cancellation, or was not cancelled because the loop is blocked."""
        if running not in self._attempts:
            return
        running.is_late, running.answers = True, False
        self._loop.call(partial(self._cancel_late, running))
        self._alarm(running, LATE_S, self._give_up_late)

    def _cancel_late(self, running: LoopAttempt) -> None:
        running.answers = True
        running.task.cancel()

    def _give_up_late(self, running: LoopAttempt) -> None:
        if running not in self._attempts:
            return
        attempt = running.attempt
        _log.error(
            "a coroutine runs on behind its timeout and is not waited for any more", queue=attempt.queue,
            task=attempt.id, job=attempt.type, blocked=not running.answers,
        )  # fmt: skip
        self._loop.give_up(running)
