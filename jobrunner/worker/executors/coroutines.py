"""Attempts as coroutines on one event loop in a thread of its own."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.outcome import Outcome
from jobrunner.worker.executors.handover import Finished


class CoroutineExecutor:
    """At most `concurrency` coroutines at a time. Uses uvloop when it is installed."""

    def __init__(self, concurrency: int, run: Callable[[Attempt], Awaitable[Outcome]], finished: Finished) -> None:
        self._backlog: deque[Attempt] = deque()
        self._free = concurrency
        self._run = run
        self._finished = finished
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = _new_loop()
        threading.Thread(target=self._serve, name="jobrunner-coroutines", daemon=True).start()

    @property
    def backlog(self) -> int:
        """Attempts not begun."""
        return len(self._backlog)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts."""
        self._backlog.extend(attempts)
        self._loop.call_soon_threadsafe(self._begin)

    def nudge(self) -> None:
        """Nothing to do: every free slot is taken at once."""

    def take_back(self) -> list[Attempt]:
        """Hands back what was not begun."""
        taken = []
        try:
            while True:
                taken.append(self._backlog.popleft())
        except IndexError:
            return taken

    def close(self) -> None:
        """Begins nothing more."""
        self._free = -(10**9)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _begin(self) -> None:
        while self._free > 0:
            try:
                attempt = self._backlog.popleft()
            except IndexError:
                return
            self._free -= 1
            task = self._loop.create_task(self._run_one(attempt))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_one(self, attempt: Attempt) -> None:
        outcome = await self._run(attempt)
        self._free += 1
        self._finished.add(attempt, outcome)
        if self._backlog:
            self._begin()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: Any = uvloop.new_event_loop()
    return loop  # type: ignore[no-any-return]
