"""One executor out of two: jobs whose `run` is a coroutine go to the event loop, the others to threads or processes."""

from collections.abc import Callable

from jobrunner.attempt import Attempt
from jobrunner.jobs.registry import definition_for
from jobrunner.worker.run.executors.slots import Executor


class DispatchingExecutor:
    """Hands each attempt to the executor of its job or station. The event loop starts with the first coroutine job."""

    def __init__(self, plain: Executor, new_coroutines: Callable[[], Executor]) -> None:
        self._plain = plain
        self._new_coroutines = new_coroutines
        self._coroutines: Executor | None = None

    @property
    def backlog(self) -> int:
        """Attempts not begun."""
        return self._plain.backlog + (self._coroutines.backlog if self._coroutines is not None else 0)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts, in order within each kind."""
        waiting_for_loop = [attempt for attempt in attempts if _is_async(attempt)]
        if not waiting_for_loop:
            self._plain.submit(attempts)
            return
        if self._coroutines is None:
            self._coroutines = self._new_coroutines()
        self._coroutines.submit(waiting_for_loop)
        if len(waiting_for_loop) < len(attempts):
            self._plain.submit([attempt for attempt in attempts if not _is_async(attempt)])

    def nudge(self) -> None:
        """Puts more slots to work."""
        self._plain.nudge()

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
