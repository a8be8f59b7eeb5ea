"""Processes that fill queues with the package's own bulk calls, so that many are there before anything happens.

Each writes what was acknowledged to a file of its own, in the order of its calls.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jobrunner import Client
from jobrunner.client.client import broker_of, keys_of
from jobrunner.task import Task, new_id
from tests.acceptance.forks import forks

BATCH = 1000


def load_scheduled(url: str, prefix: str, loader: int, file: Path, dues: "range | list[int]", now_ms: int) -> None:
    """Enqueues a task of the job `Work` for each due time, by a clock stopped at `now_ms`, before all of them."""
    with Client(url, prefix, now_ms=lambda: b"%d" % now_ms) as client, file.open("w") as said:
        for first in range(0, len(dues), BATCH):
            some = dues[first : first + BATCH]
            tasks = [
                Task(id=new_id("t"), queue="t", type="Work", payload=b"{}", at_ms=due, keepalive_ms=20_000)
                for due in some
            ]
            client.enqueue_many(tasks)
            said.writelines(f"{due} {loader} {task.id}\n" for due, task in zip(some, tasks, strict=True))


def load_waiting(url: str, prefix: str, loader: int, file: Path, names: list[str], each: int, bytes_each: int) -> None:
    """Pushes `each` payloads of this size, in bytes, into each of the queues."""
    payload = b"x" * bytes_each
    with Client(url, prefix) as client, file.open("w") as said:
        for name in names:
            queue = client.queue(name)
            pushed = sum(
                len(queue.push_many([payload] * min(BATCH, each - first))) for first in range(0, each, BATCH)
            )
            said.write(f"{name} {loader} {pushed}\n")


def spread_upkeep(url: str, prefix: str, queue: str, until: Path, said: Path) -> None:
    """Promotes until a file appears, as the leader's maintenance does, and reports how many tasks it moved."""
    from jobrunner.broker.calls import queues

    os.nice(5)  # the load of the test itself must not hold the server up
    moved = 0
    with Client(url, prefix) as client:
        while not until.exists():
            moved += broker_of(client).run(queues.upkeep(keys_of(client).queue(queue))).moved
    said.write_text(str(moved))


def run_beside(target: Callable[..., None], calls: list[tuple[Any, ...]]) -> Iterator[None]:
    """Starts a process for each call; yields until all have ended well."""
    processes = [forks().Process(target=target, args=call, daemon=True) for call in calls]
    for process in processes:
        process.start()
    try:
        while any(process.is_alive() for process in processes):
            yield
        if failed := [process.exitcode for process in processes if process.exitcode]:
            raise RuntimeError(f"{len(failed)} processes of the test ended with {failed}")
    finally:
        for process in processes:
            process.kill()
            process.join()
