"""The tasks of peers that register coroutines which take the number alone, as `functions.py` has those of functions."""

import asyncio
import time

from benchmarks.ledger import recorder
from benchmarks.waits import WAIT_S, compute

record = recorder()


async def noop(n: int) -> None:
    record(n)


async def wait(n: int) -> None:
    await asyncio.sleep(WAIT_S)
    record(n)


async def spin(n: int) -> None:
    compute()
    record(n)


async def stamp(n: int) -> None:
    record(time.time_ns() - n)


COROUTINES = {"noop": noop, "wait": wait, "spin": spin, "stamp": stamp}
