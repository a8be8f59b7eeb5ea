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
