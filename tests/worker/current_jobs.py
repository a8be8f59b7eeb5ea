"""Jobs that children of a worker import: they return what they find there."""

import dataclasses
import os
from typing import Any

from jobrunner import Job, current_task, job
from jobrunner.client.current import current_client

hooked: list[str] = []


@job(queue="current", result_ttl=60)
def in_child() -> Any:
    """A function."""
    task = current_task()
    return [task.id, task.queue, task.attempt]


@job(queue="current", result_ttl=60)
async def in_child_awaited() -> Any:
    """A coroutine function."""
    task = current_task()
    return [task.id, task.queue, task.attempt]


@job(queue="current", result_ttl=60)
def options_in_child() -> Any:
    """The settings that its enqueues go by."""
    return {**dataclasses.asdict(current_client().settings), "middleware": []}


@job(queue="current", max_attempts=1)
class Dies(Job):
    """Ends its process; its hook runs in the worker."""

    def run(self) -> None:
        os._exit(3)

    def on_dead(self, error: BaseException) -> None:
        hooked.append(current_task().id)
