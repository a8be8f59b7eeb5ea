"""Records what is enqueued instead of sending it, and asserts on it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobrunner.client.current import pinned
from jobrunner.client.item import read_headers
from jobrunner.clock import from_ms
from jobrunner.errors import UsageError
from jobrunner.jobs.registry import lookup
from jobrunner.task import Task
from jobrunner.testing.memory import MemoryClient, MemoryTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedTask:
    """A task as it would have been sent. `job` is the name of its job; `params` are as the job would read them."""

    id: str
    job: str
    params: Mapping[str, Any]
    queue: str
    priority: int
    in_: timedelta | None
    at: datetime | None
    headers: Mapping[str, str]

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        when = f" in {self.in_}" if self.in_ else f" at {self.at}" if self.at else ""
        return f"{self.job}({given}) into {self.queue!r}{when}"


class Enqueued:
    """The recorder. A sequence of EnqueuedTask in the order of enqueueing; nothing is sent while it records.

    `job` in its methods is a job class, a function declared with @job, or a job's name.
    """

    def __init__(self) -> None:
        self._tasks: list[EnqueuedTask] = []

    @contextmanager
    def recording(self) -> Iterator["Enqueued"]:
        """Records until the block ends."""
        client = _Recorder(self._tasks)
        with pinned(client, client.twin):
            yield self

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[EnqueuedTask]:
        return iter(self._tasks)

    def __getitem__(self, position: int) -> EnqueuedTask:
        return self._tasks[position]

    def __repr__(self) -> str:
        return "enqueued: " + ("; ".join(str(task) for task in self._tasks) or "nothing")

    def of(self, job: Any, **params: Any) -> list[EnqueuedTask]:
        """The tasks of one job, those only that have these parameters."""
        name = _name_of(job)
        return [task for task in self._tasks if task.job == name and params.items() <= task.params.items()]

    def one(self, job: Any, **params: Any) -> EnqueuedTask:
        """The only task of a job with these parameters. Raises AssertionError when there is none, or another."""
        found = self.of(job, **params)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} tasks of {_shown(job, params)}, 1 was expected; {self!r}")
        return found[0]

    def none(self, job: Any = None, **params: Any) -> None:
        """Raises AssertionError when a task of the job (of any job) was enqueued with these parameters."""
        found = self._tasks if job is None else self.of(job, **params)
        if found:
            wanted = "no task" if job is None else f"no task of {_shown(job, params)}"
            raise AssertionError(f"{wanted} was expected; {self!r}")

    def clear(self) -> None:
        """Forgets what was recorded so far."""
        self._tasks.clear()


class _Recorder(MemoryClient):
    def __init__(self, tasks: list[EnqueuedTask]) -> None:
        super().__init__("the fixture `enqueued`")
        self._tasks = tasks

    def take(self, task: Task) -> MemoryTask:
        entry = super().take(task)
        self._tasks.append(_recorded(task))
        return entry


def _recorded(task: Task) -> EnqueuedTask:
    values = lookup(task.type).parameters.read(task.payload)
    return EnqueuedTask(
        id=task.id,
        job=task.type,
        params={name: getattr(values, name) for name in values.__struct_fields__},
        queue=task.queue,
        priority=1 if task.priority is None else task.priority,
        in_=None if task.delay_ms is None else timedelta(milliseconds=task.delay_ms),
        at=None if task.at_ms is None else from_ms(task.at_ms),
        headers=read_headers(task.headers),
    )


def _name_of(job: Any) -> str:
    if isinstance(job, str):
        return lookup(job).name
    definition = getattr(job, "definition", None)
    if definition is None:
        raise UsageError(f"{job!r} is no job; give a class or function declared with @job, or a job's name")
    return str(definition.name)


def _shown(job: Any, params: Mapping[str, Any]) -> str:
    return f"{_name_of(job)}({', '.join(f'{name}={value!r}' for name, value in params.items())})"
