"""Observers of a whole process: this package's own instrumentation (jobrunner/tracing, jobrunner/soak).

Observers see more than middleware: the send of a whole batch, and attempts from the worker's side, with their outcomes
and also when a child process died. Without observers, an enqueue and an attempt only check once that there are none.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing import Protocol

    from jobrunner.attempt import Attempt
    from jobrunner.outcome import Outcome
    from jobrunner.task import Task

    T = TypeVar("T")

    class Observer(Protocol):
        """Observes tasks. `traceparent` is the header of W3C Trace Context."""

        def sending(self, tasks: Sequence[Task]) -> AbstractContextManager[Sequence[Task]]:
            """Context of sending tasks; it may add headers to them."""

        def run(self, attempt: Attempt, work: Callable[[Attempt], Outcome]) -> Outcome:
            """Runs an attempt in this thread, by calling `work`."""

        async def run_async(self, attempt: Attempt, work: Callable[[Attempt], Awaitable[Outcome]]) -> Outcome:
            """Runs an attempt in this coroutine, by awaiting `work`."""

        def run_batch(self, queue: str, batch: str, size: int, headers: Callable[[], Sequence[bytes | None]],
                      work: Callable[[], T]) -> T:  # fmt: skip
            """Runs a batch of `size` items; `headers` reads the headers of some of them. The result may be an error."""

        def current(self) -> str:
            """The traceparent of the current span; empty without a span."""

        def within(self, traceparent: str, headers: bytes | None) -> AbstractContextManager[object]:
            """Makes a span of another process, of a task with these headers, the parent of the spans that this process
            traces meanwhile."""


OBSERVERS: "list[Observer]" = []
"""The observers of this process, outermost first."""


def observed(run: "Callable[[Attempt], Outcome]") -> "Callable[[Attempt], Outcome]":
    """Wraps the function that runs an attempt in all observers."""
    for observer in reversed(OBSERVERS):
        run = partial(observer.run, work=run)
    return run


def observed_async(run: "Callable[[Attempt], Awaitable[Outcome]]") -> "Callable[[Attempt], Awaitable[Outcome]]":
    """Wraps the coroutine function that runs an attempt in all observers."""
    for observer in reversed(OBSERVERS):
        run = partial(observer.run_async, work=run)
    return run


def observed_batch(
    queue: str, batch: str, size: int, headers: "Callable[[], Sequence[bytes | None]]", work: "Callable[[], T]"
) -> "T":
    """Runs a batch within all observers."""
    for observer in reversed(OBSERVERS):
        work = partial(observer.run_batch, queue, batch, size, headers, work)
    return work()


def current_traceparent() -> str:
    """The traceparent of the current span, for a child process; empty when nothing is traced."""
    return next((found for observer in OBSERVERS if (found := observer.current())), "")
