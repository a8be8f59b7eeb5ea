"""The beginning and the end of an event loop whose jobs may do anything to it."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger

_FAREWELL_S = 1.0
_FAREWELLS = 5
_log = SafeLogger("jobrunner.executor")


def new_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop where that is installed, else of asyncio."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: Any = uvloop.new_event_loop()
    return loop  # type: ignore[no-any-return]


def cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels the tasks of a loop that has stopped, and lets them end within a second."""
    ends = monotonic() + _FAREWELL_S
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    for _ in range(_FAREWELLS):  # a job may stop the loop again
        left_s = ends - monotonic()
        if left_s <= 0 or all(task.done() for task in tasks):
            return
        run_briefly(loop, _all_ended(tasks, left_s))


def run_briefly(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Runs a loop that has stopped until this has ended; its errors are logged."""
    try:
        loop.run_until_complete(work)
    except BaseException as error:  # whatever jobs left behind in the loop, the attempts are reported
        work.close()
        _log.warning("an event loop did not end as it should", error=repr(error))


async def _all_ended(tasks: "set[asyncio.Task[Any]]", timeout_s: float) -> None:
    await asyncio.wait(tasks, timeout=timeout_s)
