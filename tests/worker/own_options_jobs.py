"""Jobs that also children of a worker import: each goes on until its attempt is ended."""

import asyncio
import time

from jobrunner import job


@job(name="own.spin", queue="own", result_ttl=60)
def spin() -> None:
    """A function that runs for longer than any test."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        pass


@job(name="own.rest", queue="own", timeout=60)
async def rest() -> None:
    """A coroutine function that waits for longer than any test."""
    await asyncio.sleep(60)


@job(name="own.stubborn", queue="own", timeout=0.1, max_attempts=1)
async def stubborn(how: str) -> str:
    """A coroutine function that catches the end of its time, or never lets the loop notice it."""
    try:
        if how == "awaits":
            await asyncio.sleep(60)
        else:
            ends = time.monotonic() + 0.2
            while time.monotonic() < ends:
                pass
    except BaseException:
        pass
    return "done"
