"""Ends a coroutine that blocks its event loop for longer than its job's `timeout`.

asyncio cannot do that: the cancellation of a task is delivered by the loop, which does not turn.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

from jobrunner.clock import monotonic
from jobrunner.errors import AttemptTimeout
from jobrunner.outcome import Outcome
from jobrunner.worker.run.executors.watchdog import Guard, Watchdog


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
