"""Shared by the tests of rows about limits, histories and moves: child processes, counts, a clock's answers."""

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import redis

from jobrunner import Client, Lease, Queue
from jobrunner.errors import LeaseError
from tests.acceptance.row_children import Child

Audit = Callable[..., dict[str, int]]
Start = Callable[..., Child]
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
SLACK_S = 10.0
"""Seconds that a busy machine may add to a span of time before the test fails."""


def states(**counts: int) -> dict[str, int]:
    """The result of `counts` and `audit`, with zeros for all states that are not passed."""
    return {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0} | counts


def take(queue: Queue, **options: Any) -> Lease:
    """The only lease that there is to be had."""
    (lease,) = queue.reserve(100, **options)
    return lease


def server_ms(raw: redis.Redis) -> float:
    """The server's clock."""
    seconds, microseconds = raw.time()
    return seconds * 1000 + microseconds / 1000


def crowd(told: Connection, url: str, prefix: str, queue: str, seed: int) -> None:
    """Connects, says so, waits for a word; then reserves by threes, renews, reports and forgets at random.

    The next message ends that; it then sends the number of leases. Leases that it does not report are short.
    """
    chance = random.Random(seed)
    held: list[Lease] = []
    got = 0
    with Client(url, prefix) as client:
        source = client.queue(queue)
        source.counts()
        told.send("ready")
        told.recv()
        while not told.poll():
            is_brief = chance.random() < 0.1
            found = source.reserve(3, keepalive=0.02 if is_brief else 30)
            got += len(found)
            if not is_brief:
                held += found
            with suppress(LeaseError):
                if held:
                    _report_somehow(chance, held)
    told.send(got)


def _report_somehow(chance: random.Random, held: list[Lease]) -> None:
    way = chance.random()
    if way < 0.2:
        held[0].extend()
        return
    lease = held.pop(0)
    if way < 0.3:
        lease.release()
    elif way < 0.4:
        lease.rollback(delay=0)
    else:
        lease.commit()


def take_on_demand(told: Connection, url: str, prefix: str, queue: str) -> None:
    """For each (n, calls, now_ms or None) that it receives, reserves n tasks `calls` times and sends their ids back."""
    now = b""

    with Client(url, prefix, now_ms=lambda: now) as client:
        source = client.queue(queue)
        while True:
            n, calls, now_ms = told.recv()
            now = b"" if now_ms is None else repr(now_ms).encode()
            told.send([lease.id for _ in range(calls) for lease in source.reserve(n, keepalive=3600)])


def hold(told: Connection, url: str, prefix: str, queue: str, n: int) -> None:
    """Reserves n, sends their ids, and waits for its end."""
    with Client(url, prefix) as client:
        told.send([lease.id for lease in client.queue(queue).reserve(n)])
        told.recv()


def pop_all(told: Connection, url: str, prefix: str, queue: str, n: int) -> None:
    """Connects, reports that, waits for a message, then pops n at a time until nothing is left; sends the payloads."""
    with Client(url, prefix) as client:
        source = client.queue(queue)
        source.counts()
        told.send("ready")
        told.recv()
        while found := source.pop(n):
            told.send([item.payload for item in found])
        told.send([])


def move_all(told: Connection, url: str, prefix: str, source: str, to: str) -> None:
    """Reserves one at a time and moves it, until it is killed."""
    with Client(url, prefix) as client:
        queue = client.queue(source)
        while True:
            for lease in queue.reserve(keepalive=0.2, wait=1):
                with suppress(LeaseError):
                    lease.move(to, payload=[*lease.payload, "moved"])


def reserve_and_die(told: Connection, url: str, prefix: str, queue: str) -> None:
    """Takes an item, sends its attempt, and kills its own process."""
    with Client(url, prefix) as client:
        told.send([lease.attempts for lease in client.queue(queue).reserve(wait=20)])
    os.kill(os.getpid(), signal.SIGKILL)
