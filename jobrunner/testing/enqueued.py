"""Records enqueued tasks instead of sending them, and has assertions on them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jobrunner.client.current import pinned
from jobrunner.client.item import read_headers
from jobrunner.client.operations.flow import Flow
from jobrunner.clock import from_ms
from jobrunner.errors import UsageError
from jobrunner.jobs.enqueue_options import without_own
from jobrunner.jobs.registry import lookup
from jobrunner.join import Join
from jobrunner.option_names import check_names
from jobrunner.task import Task
from jobrunner.testing.memory import MemoryClient
from jobrunner.testing.memory_task import MemoryTask


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedTask:
    """A task as it would have been sent. `job` is the name of its job; `params` are its decoded parameters."""

    id: str
    job: str
    params: Mapping[str, Any]
    queue: str
    priority: int
    in_: timedelta | None
    at: datetime | None
    headers: Mapping[str, str]
    starts: str = ""
    """When a task of a flow begins: "after" for a step after successful steps, "on_complete", "on_success" or "on_dead"
    for a callback; empty for a task that begins at once."""

    def __str__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.params.items())
        when = f" in {self.in_}" if self.in_ else f" at {self.at}" if self.at else ""
        return f"{self.job}({given}) into {self.queue!r}{when}{f' {self.starts}' if self.starts else ''}"


class Enqueued:
    """Records tasks: a sequence of EnqueuedTask in the order of enqueueing. No task is sent while it records.

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

    def of(self, job: Any, /, **params: Any) -> list[EnqueuedTask]:
        """The tasks of one job that have these parameters. Raises UnknownOption for a name that is not a parameter of
        the job."""
        name = _name_of(job)
        check_names(params, lookup(name).parameters.struct.__struct_fields__, f"parameter of job {name!r}")
        return [task for task in self._tasks if task.job == name and params.items() <= task.params.items()]

    def one(self, job: Any, /, **params: Any) -> EnqueuedTask:
        """The only task of a job with these parameters. Raises AssertionError when there is no such task, or more than
        one."""
        found = self.of(job, **params)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} tasks of {_shown(job, params)}, 1 was expected; {self!r}")
        return found[0]

    def none(self, job: Any = None, /, **params: Any) -> None:
        """Raises AssertionError when a task of the job was enqueued with these parameters; without a job, when any task
        was. Raises UsageError for parameters without a job."""
        if job is None and params:
            raise UsageError(f"none({', '.join(params)}=…) names no job; give it first, as none(SendMail, address=…)")
        found = self._tasks if job is None else self.of(job, **params)
        if found:
            wanted = "no task" if job is None else f"no task of {_shown(job, params)}"
            raise AssertionError(f"{wanted} was expected; {self!r}")

    def clear(self) -> None:
        """Removes all recorded tasks."""
        self._tasks.clear()


class _Recorder(MemoryClient):
    def __init__(self, tasks: list[EnqueuedTask]) -> None:
        super().__init__("the fixture `enqueued`")
        self._tasks = tasks
        self._later: list[EnqueuedTask] = []
        self._ahead: set[str] = set()
        """Ids of steps that were recorded with their flow, so not again when they begin."""

    def take(self, task: Task) -> MemoryTask:
        entry = super().take(task)
        if task.id not in self._ahead:
            self._tasks.append(_recorded(task))
        return entry

    def put_instead(self, holder: MemoryTask, task: Task) -> None:
        super().put_instead(holder, task)
        for at, recorded in enumerate(self._tasks):
            if (recorded.id, recorded.queue) == (holder.task.id, holder.task.queue):
                self._tasks[at] = _recorded(holder.task)

    def joining(self, flow: Flow) -> Flow:
        flow = super().joining(flow)
        held = {join.task.id: (join.task, _starts(join)) for join in flow.joins if join.task is not None}
        steps = [task.id for task in flow.steps if task.id in held]
        self._later = [_recorded(*held[task_id]) for task_id in dict.fromkeys([*steps, *held])]
        return flow

    def flow_taken(self) -> None:
        begun = {task.id for task in self._tasks}  # after an empty group
        ahead = [task for task in self._later if task.id not in begun]
        self._tasks += ahead
        self._ahead.update(task.id for task in ahead)


def _starts(join: Join) -> str:
    return f"on_{join.rule}" if join.flow else "after"


def _recorded(task: Task, starts: str = "") -> EnqueuedTask:
    values = lookup(task.type).parameters.read(task.payload)
    return EnqueuedTask(
        id=task.id,
        job=task.type,
        params={name: getattr(values, name) for name in values.__struct_fields__},
        queue=task.queue,
        priority=1 if task.priority is None else task.priority,
        in_=None if task.delay_ms is None else timedelta(milliseconds=task.delay_ms),
        at=None if task.at_ms is None else from_ms(task.at_ms),
        headers=without_own(read_headers(task.headers)),
        starts=starts,
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
