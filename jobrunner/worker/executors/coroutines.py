"""Attempts as coroutines on one event loop in a thread of its own."""

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.clock import perf_counter
from jobrunner.logs import OwnLog
from jobrunner.outcome import Failed, Outcome
from jobrunner.tracepoint import TRACEPOINT
from jobrunner.worker.executors.handover import Finished
from jobrunner.worker.verdict import error_text

_FAREWELL_S = 1.0
_log = OwnLog("jobrunner.executor")


class CoroutineExecutor:
    """At most `concurrency` coroutines at a time. Uses uvloop when it is installed."""

    def __init__(self, concurrency: int, run: Callable[[Attempt], Awaitable[Outcome]], finished: Finished) -> None:
        self._backlog: deque[Attempt] = deque()
        self._free = concurrency
        self._run = run
        self._finished = finished
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop = _new_loop()
        self._context = copy_context()  # jobs see what is current where the executor was made
        self._thread = threading.Thread(target=self._serve, name="jobrunner-coroutines", daemon=True)
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Attempts not begun."""
        return len(self._backlog)

    def submit(self, attempts: list[Attempt]) -> None:
        """Takes attempts."""
        self._backlog.extend(attempts)
        if not self._closed:
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
        """Begins nothing more, cancels what runs, and ends the event loop soon."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._wind_up)
            self._thread.join(_FAREWELL_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _begin(self) -> None:
        while self._free > 0 and not self._closed:
            try:
                attempt = self._backlog.popleft()
            except IndexError:
                return
            self._free -= 1
            task = self._loop.create_task(self._run_one(attempt), context=self._context.copy())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run_one(self, attempt: Attempt) -> None:
        attempt.began_s = perf_counter()
        try:
            tracer = TRACEPOINT.tracer
            outcome = await (self._run(attempt) if tracer is None else tracer.run_async(attempt, self._run))
        except asyncio.CancelledError:
            raise  # only close() cancels; the attempt is handed back, not reported
        except BaseException as error:  # the task must be reported
            _log.exception("an attempt could not be run", queue=attempt.queue, task=attempt.id, job=attempt.type)
            outcome = Failed(error_text(error))
        attempt.run_s = perf_counter() - attempt.began_s
        self._free += 1
        self._finished.add(attempt, outcome)
        if self._backlog:
            self._begin()

    def _wind_up(self) -> None:
        running = set(self._tasks)
        for task in running:
            task.cancel()
        farewell = self._loop.create_task(_all_ended(running))
        farewell.add_done_callback(lambda _: self._loop.stop())


async def _all_ended(running: set[asyncio.Task[None]]) -> None:
    if running:
        await asyncio.wait(running, timeout=_FAREWELL_S)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: Any = uvloop.new_event_loop()
    return loop  # type: ignore[no-any-return]
