"""Ends coroutines that go on behind the `timeout` of their job, or that block their event loop for longer.

asyncio alone cannot do the latter: the cancellation of a task is delivered by the loop, which does not turn.
"""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Protocol

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.jobs.registry import Definition
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Outcome
from jobrunner.worker.run.error_outcome import out_of_time
from jobrunner.worker.run.executors.watchdog import Alarm, Guard, Watchdog

LATE_S = 1.0
"""How long an attempt that is out of time may clean up before it is ended in a harder way, twice."""
_log = SafeLogger("jobrunner.executor")


class LoopAttempt:
    """An attempt on an event loop."""

    __slots__ = ("alarm", "answers", "attempt", "definition", "is_late", "task")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.definition: Definition | None = None
        """Of one with a timeout."""
        self.alarm: Alarm | None = None
        self.answers = True
        """Whether the loop turned since the attempt is late."""
        self.is_late = False
        self.task: asyncio.Task[None]

    def out_of_time(self) -> AttemptTimeout:
        """The error of an attempt with a timeout."""
        assert self.definition is not None
        return out_of_time(self.definition)


class AttemptLoop(Protocol):
    """The event loop of late attempts."""

    def runs(self, running: LoopAttempt) -> bool:
        """Whether the attempt is not reported yet."""

    def give_up(self, running: LoopAttempt) -> None:
        """Reports the attempt, which may go on."""

    def call(self, function: Callable[[], object]) -> bool:
        """Has a function called by the loop; returns whether the loop is there."""


class LateAttempts:
    """The alarms of attempts with a timeout. asyncio cancels an attempt at its timeout; if it goes on, it is cancelled
    again `LATE_S` later, and given up after another `LATE_S`. Alarms ring in the watching thread."""

    def __init__(self, watch: Watchdog, loop: AttemptLoop) -> None:
        self._watch = watch
        self._loop = loop

    def arm(self, running: LoopAttempt, timeout_s: float) -> None:
        """An attempt begins that has so much time."""
        self._alarm(running, timeout_s + LATE_S, self._end_late)

    def _alarm(self, running: LoopAttempt, in_s: float, ring: Callable[[LoopAttempt], object]) -> None:
        running.alarm = Alarm(monotonic() + in_s, partial(ring, running))
        self._watch.arm(running.alarm)

    def _end_late(self, running: LoopAttempt) -> None:
        """It was cancelled a second ago, when its time was over, and has not ended. Either it goes on in spite of that,
        or it was not cancelled as something blocks the loop."""
        if not self._loop.runs(running):
            return
        running.is_late, running.answers = True, False
        self._loop.call(partial(self._cancel_late, running))
        self._alarm(running, LATE_S, self._give_up_late)

    def _cancel_late(self, running: LoopAttempt) -> None:
        running.answers = True
        running.task.cancel()

    def _give_up_late(self, running: LoopAttempt) -> None:
        if not self._loop.runs(running):
            return
        attempt = running.attempt
        _log.error(
            "a coroutine runs on behind its timeout and is not waited for any more", queue=attempt.queue,
            task=attempt.id, job=attempt.type, blocked=not running.answers,
        )  # fmt: skip
        self._loop.give_up(running)


class StepTimeouts:
    """Awaits what runs an attempt, each step of it under a guard: a step that goes on behind the end of its time, as
    it never awaits, blocks the loop, and gets an AttemptTimeout."""

    def __init__(self, work: Any, watch: Watchdog, ends: float) -> None:
        self._work = work
        self._watch = watch
        self._ends = ends

    def __await__(self) -> Generator[Any, Any, Outcome]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                awaited = self._guarded(step)
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome
            except AttemptTimeout as error:
                if getattr(self._work, "cr_frame", None) is None:
                    raise
                step = partial(steps.throw, error)  # it fell behind the end of the step
                continue
            try:
                sent = yield awaited
                step = partial(steps.send, sent)
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:
                step = partial(steps.throw, error)

    def _guarded(self, step: Callable[[], Any]) -> Any:
        guard = Guard(self._ends)
        if guard.ends <= monotonic():  # it cleans up: the alarm sees to it
            return step()
        self._watch.arm(guard)
        try:
            return step()
        finally:
            self._watch.disarm(guard)
