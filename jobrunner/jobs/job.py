"""Job: a declaration with typed parameters and a `run`."""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, overload

import msgspec

from jobrunner.client.current import current_async_client, current_client
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.errors import UsageError
from jobrunner.jobs.build import BoundCall, build_task
from jobrunner.jobs.options import NOW, EnqueueOptions
from jobrunner.jobs.params import ParametersMeta
from jobrunner.jobs.registry import JobDefinition
from jobrunner.jobs.running_task import JobRun, Metadata, RunningTask
from jobrunner.option_names import checks_options, no_attribute
from jobrunner.settings import Duration

T_co = TypeVar("T_co", covariant=True)


class JobWithOptions:
    """A job class with options for the tasks enqueued through it. Made by `using` of the class.

    Parameters are checked when it is called. For a type checker to see them, too, write `SendMail(to=…).using(…)`.
    """

    def __init__(self, job: "type[Job]", options: EnqueueOptions) -> None:
        self._job = job
        self._options = options

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall[Any]:
        """The job with these parameters, for `enqueue_many` and flows. Raises ParameterError when they do not fit."""
        job = self._job(*args, **kwargs)
        return BoundCall(definition_of(type(job)), job, self._options)

    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Sends the job with these parameters as a task. Errors as in Job.enqueue."""
        return self.bind(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: Any, **kwargs: Any) -> AsyncTaskHandle[Any]:
        """The same for asyncio."""
        return await self.bind(*args, **kwargs).aenqueue()

    def enqueue_many(self, jobs: "Iterable[Job]") -> list[TaskHandle[Any]]:
        """Sends many jobs in batches of up to 1 000 and 1 MiB. All are checked before the first is sent."""
        tasks = [build_task(definition_of(type(job)), job, self._options) for job in jobs]
        return current_client().enqueue_many(tasks, wait=self._options.wait)


class _Using(Protocol[T_co]):
    def __call__(
        self,
        *,
        in_: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002
        wait: Duration = 0,
    ) -> T_co: ...


def _read_using(
    *,
    in_: Duration | None = None,
    at: datetime | float | None = None,
    priority: int | None = None,
    queue: str | None = None,
    id: str | None = None,  # noqa: A002
    wait: Duration = 0,
) -> EnqueueOptions:
    return EnqueueOptions(in_=in_, at=at, priority=priority, queue=queue, id=id, wait=wait)


_read_using.__qualname__ = "Job.using"  # the name that errors show
_read_using = checks_options(_read_using)


class _UsingOfClassOrInstance:
    """`using` of a job class gives a JobWithOptions, that of an instance the call with its parameters."""

    @overload
    def __get__(self, job: None, owner: "type[Job]") -> _Using[JobWithOptions]: ...
    @overload
    def __get__(self, job: "Job", owner: Any) -> _Using[BoundCall[Any]]: ...

    def __get__(self, job: Any, owner: Any) -> Any:
        def using(**given: Any) -> Any:
            options = _read_using(**given)
            if job is None:
                return JobWithOptions(owner, options)
            return BoundCall(definition_of(owner), job, options)

        return using


class Job(msgspec.Struct, metaclass=ParametersMeta, dict=True):
    """Base of job classes. Annotated attributes are the parameters; `run` does the work and returns a JSON value.

    `run` may be `async def`. It steers by returning or raising Retry, Snooze, Fail or Cancel.
    """

    definition: ClassVar[JobDefinition | None] = None

    def run(self) -> Any:
        """The work. Defined by every job."""
        raise NotImplementedError(f"job {type(self).__name__} has no run()")

    def before(self) -> None:
        """Runs before `run`; an error fails the attempt."""

    def after(self) -> None:
        """Runs after a `run` that returned; an error is logged and changes nothing."""

    def on_failure(self, error: BaseException) -> None:
        """Runs after every failed attempt; an error is logged and changes nothing."""

    def on_dead(self, error: BaseException) -> None:
        """Runs when the task becomes dead, after `on_failure`; an error is logged and changes nothing.

        Not run when the last lease of a task ended without a report: no worker holds the task then.
        """

    @property
    def task(self) -> RunningTask:
        """The task of this run: id, attempt, deadline, headers, what a flow gave it."""
        return self._run.task

    @property
    def log(self) -> Any:
        """A structlog logger bound to this run."""
        return self._run.log

    @property
    def metadata(self) -> Metadata:
        """A hash shared by all runs of this job: get, set, atomic increment."""
        return self._run.metadata

    @property
    def cancelled(self) -> bool:
        """Whether this run should stop: cancelled, timed out, or its lease was lost."""
        return self._run.cancelled

    @checks_options
    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows how far this run has come."""
        self._run.progress(done, total, note)

    if not TYPE_CHECKING:  # a type checker would take any attribute for known

        def __getattr__(self, name):
            raise no_attribute(self, f"job {type(self).__name__}(…)", name)

    @property
    def _run(self) -> JobRun:
        try:
            return self.__dict__["_current"]  # type: ignore[no-any-return]
        except KeyError:
            name = type(self).__name__
            raise UsageError(f"{name} is not being run by a worker; task, log, ... exist in run()") from None

    @checks_options
    def enqueue(
        self,
        *,
        in_: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002
        wait: Duration = 0,
    ) -> TaskHandle[Any]:
        """Sends this job as a task: now, `in_` a while, or `at` an aware datetime. Returns a handle on it.

        A full queue raises QueueFull, with `wait` when there was no room for so long. Raises ParameterError,
        InvalidOption, NaiveDatetime, PayloadTooLarge, ServerError; then nothing was sent (but for OutcomeUnknown, after
        which the same `id` may be sent again without doubling the task).
        """
        options = EnqueueOptions(in_=in_, at=at, priority=priority, queue=queue, id=id)
        return current_client().enqueue(build_task(definition_of(type(self)), self, options), wait=wait)

    @checks_options
    async def aenqueue(
        self,
        *,
        in_: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002
        wait: Duration = 0,
    ) -> AsyncTaskHandle[Any]:
        """The same for asyncio."""
        options = EnqueueOptions(in_=in_, at=at, priority=priority, queue=queue, id=id)
        return await current_async_client().enqueue(build_task(definition_of(type(self)), self, options), wait=wait)

    using = _UsingOfClassOrInstance()
    """The same job with options for the tasks enqueued through what is returned, as `using` of a function job:
    `SendMail.using(in_=60).enqueue(to="ada")`, or `SendMail(to="ada").using(in_=60).enqueue()`. Both may be steps of
    flows: `chain(SendMail(to="ada").using(queue="slow"), …)`."""

    @classmethod
    @checks_options
    def enqueue_many(cls, jobs: "Iterable[Job]", *, wait: Duration = 0) -> list[TaskHandle[Any]]:
        """Sends many jobs in batches of up to 1 000 and 1 MiB, one round trip each. All are checked before.

        Each batch waits so long for room in full queues.
        """
        tasks = [build_task(definition_of(type(job)), job, NOW) for job in jobs]
        return current_client().enqueue_many(tasks, wait=wait)


class PeriodicJob(Job):
    """Marks a job class as one that runs on a schedule: without `every=…` or `cron=…` it cannot be declared.

    A schedule makes any class or function periodic; this base is for readers, and for `isinstance`.
    """


def definition_of(job: type[Job]) -> JobDefinition:
    """The definition of a job class. Raises UsageError for one that is not declared."""
    if job.definition is None or job.definition.origin != f"{job.__module__}:{job.__qualname__}":
        raise UsageError(f"{job.__qualname__} is not declared; put @job(...) above the class")
    return job.definition
