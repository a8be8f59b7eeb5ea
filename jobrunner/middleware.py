"""Where tracing hooks in: one slot, empty until `jobrunner.tracing.instrument` fills it.

What must hold: while it is empty, what is traced pays one look at the slot for each call that enqueues and for each
attempt, and what fills it is not imported; and nothing that a tracer does or raises changes what becomes of a task.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from jobrunner.task import Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol, TypeVar

    from jobrunner.attempt import Attempt
    from jobrunner.outcome import Outcome

    T = TypeVar("T")

    class Tracer(Protocol):
        """What watches tasks on their way. `traceparent` is the header of W3C Trace Context."""

        def sending(self, tasks: Sequence[Task]) -> AbstractContextManager[Sequence[Task]]:
            """Around sending tasks: gives them with a traceparent each, but for those that have one."""

        def run(self, attempt: Attempt, work: Callable[[Attempt], Outcome]) -> Outcome:
            """Around an attempt in this thread."""

        async def run_async(self, attempt: Attempt, work: Callable[[Attempt], Awaitable[Outcome]]) -> Outcome:
            """Around an attempt in this coroutine."""

        def run_batch(self, queue: str, batch: str, size: int, headers: Callable[[], Sequence[bytes | None]],
                      work: Callable[[], T]) -> T:  # fmt: skip
            """Around a batch of so many items; `headers` reads those of some of them. It may return an error."""

        def current(self) -> str:
            """The traceparent of what runs here; empty when nothing does."""

        def within(self, traceparent: str) -> AbstractContextManager[object]:
            """Makes what another process runs the parent of what this one traces meanwhile."""


class Tracepoint:
    """The slot."""

    __slots__ = ("tracer",)

    def __init__(self) -> None:
        self.tracer: Tracer | None = None


TRACEPOINT = Tracepoint()


def sending(tasks: Sequence[Task]) -> AbstractContextManager[Sequence[Task]]:
    """The tasks as they are to be sent, around sending them."""
    tracer = TRACEPOINT.tracer
    return nullcontext(tasks) if tracer is None else tracer.sending(tasks)
