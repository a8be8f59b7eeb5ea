"""The producer's side of every contender: `APP one|many|paced TASK N`, in a process of its own.

`one` enqueues the tasks 0 to N - 1 with a call for each, `many` in the contender's best bulk way; both print the
seconds that this took, without the start. `paced` enqueues N single tasks whose number is the instant of the call,
by `time.time_ns()`, with pauses in which a worker falls idle again. TASK is noop, wait, spin or stamp.

`APP wide TASK N WIDTH` enqueues as `one` does, by WIDTH callers of one client at a time: threads where the client
blocks, coroutines where it is one of asyncio.

`APP due TASK N FIRST_NS GAP_NS` enqueues single tasks by the clock, whose number is the instant at which each is due,
and prints how many it sent until the time for all N was over: it never sends more often than that, and at once when it
is behind.

Only the standard library is used: contenders import this from environments of their own.
"""

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

_PAUSE_S = (0.02, 0.04)


def serve(send: Callable[[str, int], object], send_many: Callable[[str, Sequence[int]], object]) -> None:
    """For a client that blocks: `send(task, number)` and `send_many(task, numbers)`."""
    way, task, count, *times = _asked()
    if way == "due":
        sent = 0
        for due in due_instants(count, *times):
            send(task, due)
            sent += 1
        print(sent)
        return
    started = time.perf_counter()
    if way == "paced":
        for pause in _pauses(count):
            send(task, time.time_ns())
            time.sleep(pause)
    elif way == "many":
        send_many(task, range(count))
    elif way == "wide":
        _in_threads(send, task, count, *times)
    else:
        for number in range(count):
            send(task, number)
    print(time.perf_counter() - started)


async def serve_async(
    send: Callable[[str, int], Awaitable[object]], send_many: Callable[[str, Sequence[int]], Awaitable[object]]
) -> None:
    """For a client of asyncio, which is connected before this is called."""
    way, task, count, *times = _asked()
    if way == "due":
        sent = 0
        for due in due_instants(count, *times):
            await send(task, due)
            sent += 1
        print(sent)
        return
    started = time.perf_counter()
    if way == "paced":
        for pause in _pauses(count):
            await send(task, time.time_ns())
            await asyncio.sleep(pause)
    elif way == "many":
        await send_many(task, range(count))
    elif way == "wide":
        await _in_coroutines(send, task, count, *times)
    else:
        for number in range(count):
            await send(task, number)
    print(time.perf_counter() - started)


def _in_threads(send: Callable[[str, int], object], task: str, count: int, width: int) -> None:
    def caller(first: int) -> None:
        for number in range(first, count, width):
            send(task, number)

    with ThreadPoolExecutor(width) as threads:
        for done in [threads.submit(caller, first) for first in range(width)]:
            done.result()


async def _in_coroutines(send: Callable[[str, int], Awaitable[object]], task: str, count: int, width: int) -> None:
    async def caller(first: int) -> None:
        for number in range(first, count, width):
            await send(task, number)

    await asyncio.gather(*(caller(first) for first in range(width)))


def so_many_at_once(
    send: Callable[[str, int], Coroutine[Any, Any, object]], width: int
) -> Callable[[str, Sequence[int]], Awaitable[object]]:
    """Bulk enqueueing for an asyncio client without a bulk call: `width` calls at once."""

    async def send_many(task: str, numbers: Sequence[int]) -> None:
        for start in range(0, len(numbers), width):
            await asyncio.gather(*(send(task, number) for number in numbers[start : start + width]))

    return send_many


def one_after_another(send: Callable[[str, int], object]) -> Callable[[str, Sequence[int]], object]:
    """Bulk enqueueing for a blocking client without a bulk call."""

    def send_many(task: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            send(task, number)

    return send_many


def due_instants(count: int, first_ns: int, gap_ns: int) -> Iterator[int]:
    """Yields each instant when it has come; a past instant at once, and none after the time for all is over.

    It blocks also in an asyncio client: uvloop's own sleep is precise to whole milliseconds, and no other task runs.
    """
    end = first_ns + count * gap_ns
    for due in range(first_ns, end, gap_ns):
        early_ns = due - time.time_ns()
        if early_ns > 0:
            time.sleep(early_ns / 1e9)
        elif due - early_ns >= end:
            return
        yield due


def _asked() -> tuple[Any, ...]:
    way, task, *numbers = sys.argv[1:]
    if way not in ("one", "many", "wide", "paced", "due"):
        raise SystemExit(f"{way!r}: choose one, many, wide, paced or due")
    return way, task, *map(int, numbers)


def _pauses(count: int) -> list[float]:
    chance = random.Random(7)
    return [chance.uniform(*_PAUSE_S) for _ in range(count)]
