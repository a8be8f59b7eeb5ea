"""Jobs that children of a worker import, with a middleware that goes to the child."""

import os
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jobrunner import Job, configure, current_task, job

if sys.argv[0].endswith("child.py"):  # as the module of an application does, which names the server of its developers
    configure("unix:///no-server", "another")

tenant: ContextVar[str] = ContextVar("tenant", default="public")


class Tenant:
    """Carries the tenant from the enqueue to the job."""

    def on_enqueue(self, task: Any, next: Any) -> Any:
        task.headers["tenant"] = tenant.get()
        return next(task)

    def around(self, run: Any, next: Any) -> Any:
        before = tenant.set(run.headers["tenant"])
        try:
            yield next(run)
        finally:
            tenant.reset(before)


@job(name="stacked.child", queue="children", result_ttl=60)
def in_child() -> str:
    """The tenant, in a function."""
    return tenant.get()


@job(name="stacked.child-awaited", queue="children", result_ttl=60)
async def in_child_awaited() -> str:
    """The tenant, in a coroutine function."""
    return tenant.get()


class Errors:
    """Appends the errors that it sees to a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def around(self, run: Any, next: Any) -> Any:
        try:
            yield next(run)
        except Exception as error:
            with Path(self.path).open("a") as file:
                file.write(f"{run.job} {type(error).__name__}\n")
            raise


died: list[str] = []
"""The errors that hooks of this process saw."""


class Dies(Job):
    """Notes how its tasks died."""

    def on_dead(self, error: BaseException) -> None:
        died.append(f"{type(self).__name__} {type(error).__name__}")


@job(queue="dying", max_attempts=1, timeout=0.5)
class Hangs(Dies):
    def run(self) -> None:
        time.sleep(60)


@job(queue="dying", max_attempts=1)
class Crashes(Dies):
    def run(self) -> None:
        os._exit(3)


@job(queue="dying", max_attempts=1)
class Raises(Dies):
    def run(self) -> None:
        raise ValueError


@job(name="stacked.enqueues", queue="children", result_ttl=60)
def enqueues() -> Any:
    """Uses the server inside of the job: its number of runs, and the id of a task that it enqueues."""
    return [current_task().metadata.increment("runs"), in_child.enqueue().id]
