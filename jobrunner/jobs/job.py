"""Job: a declaration with typed parameters and a `run`."""

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, Unpack, overload

import msgspec

from jobrunner.client.current import current_client
from jobrunner.client.loop_clients import current_async_client
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.errors import UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.build import BoundCall, aenqueue_calls, build_task, definition_of, enqueue_calls
from jobrunner.jobs.enqueue_options import EnqueueKeywords, EnqueueOptions, read_options
from jobrunner.jobs.params import ParametersMeta
from jobrunner.jobs.registry import JobDefinition
from jobrunner.jobs.running_task import JobRun, Metadata, RunningTask
from jobrunner.option_names import checks_options, no_attribute

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class HasRun(Protocol[R_co]):
    """A job, as type checkers see it: its result is the return value of `run`."""

    def run(self) -> R_co: ...


class HasAsyncRun(Protocol[R_co]):
    """A coroutine job: its result is the value of the awaited `run`."""

    def run(self) -> Coroutine[Any, Any, R_co]: ...


class JobWithOptions(Generic[R]):
    """A job class with options for the tasks enqueued through it. Made by `using` of the class.

    Parameters are checked when it is called. For a type checker to see them, too, write `SendMail(to=…).using(…)`.
    """

    def __init__(self, job: "type[Any]", options: EnqueueOptions) -> None:
        self._job = job
        self._options = options

    def __repr__(self) -> str:
        return f"<job class {self._job.__name__} with options>"

    def bind(self, *args: Any, **kwargs: Any) -> BoundCall[R]:
        """The job with these parameters, for `enqueue_many` and flows. Raises ParameterError when they do not fit."""
        job = self._job(*args, **kwargs)
        return BoundCall(definition_of(type(job)), job, self._options)

    def using(self, **options: Unpack[EnqueueKeywords]) -> "JobWithOptions[R]":
        """The job with these options, added to its present options."""
        return JobWithOptions(self._job, read_options(options, "using").over(self._options))

    def enqueue(self, *args: Any, **kwargs: Any) -> TaskHandle[R]:
        """Sends the job with these parameters as a task. Raises the errors of Job.enqueue."""
        return self.bind(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: Any, **kwargs: Any) -> AsyncTaskHandle[R]:
        """`enqueue` for asyncio."""
        return await self.bind(*args, **kwargs).aenqueue()

    def enqueue_many(
        self, jobs: "Iterable[Job | BoundCall[Any]]", **options: Unpack[EnqueueKeywords]
    ) -> list[TaskHandle[R]]:
        """As Job.enqueue_many."""
        chosen = read_options(options, "enqueue_many").over(self._options)
        return enqueue_calls(self._job.__name__, jobs, chosen, is_class=True)

    async def aenqueue_many(
        self, jobs: "Iterable[Job | BoundCall[Any]]", **options: Unpack[EnqueueKeywords]
    ) -> list[AsyncTaskHandle[R]]:
        """`enqueue_many` for asyncio."""
        chosen = read_options(options, "aenqueue_many").over(self._options)
        return await aenqueue_calls(self._job.__name__, jobs, chosen, is_class=True)


def _not_made(method: str, job: object, given: tuple[Any, ...]) -> UsageError:
    if isinstance(job, Job):
        return UsageError(
            f"{method}({describe(given[0])}): options have names, as in {method}(in_=60); parameters go into "
            f"{type(job).__name__}(…)"
        )
    return UsageError(
        f"{method}() is called on a job class: make the job first, with its parameters, as SendMail(to=…).{method}()"
    )


class _Using(Protocol[R_co]):
    def __call__(self, **options: Unpack[EnqueueKeywords]) -> R_co: ...


class _UsingOfClassOrInstance:
    """`using` of a job class returns a JobWithOptions, `using` of an instance the call with its parameters."""

    @overload
    def __get__(self, job: None, owner: type[HasAsyncRun[R]]) -> _Using[JobWithOptions[R]]: ...
    @overload
    def __get__(self, job: None, owner: type[HasRun[R]]) -> _Using[JobWithOptions[R]]: ...
    @overload
    def __get__(self, job: HasAsyncRun[R], owner: Any) -> _Using[BoundCall[R]]: ...
    @overload
    def __get__(self, job: HasRun[R], owner: Any) -> _Using[BoundCall[R]]: ...

    def __get__(self, job: Any, owner: Any) -> Any:
        def using(**options: Unpack[EnqueueKeywords]) -> Any:
            """The job with options, those of `enqueue`, for the tasks enqueued through the returned object.

            `SendMail.using(in_=60).enqueue(to="ada")`, or `SendMail(to="ada").using(in_=60).enqueue()`; also as a step
            of a flow. Raises UnknownOption, InvalidOption, NaiveDatetime.
            """
            chosen = read_options(options, "Job.using")
            if job is None:
                return JobWithOptions[Any](owner, chosen)
            return BoundCall[Any](definition_of(owner), job, chosen)

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
        """Runs after `run` returned; an error is logged and changes nothing."""

    def on_failure(self, error: BaseException) -> None:
        """Runs after every failed attempt; an error is logged and changes nothing."""

    def on_dead(self, error: BaseException) -> None:
        """Runs when the task becomes dead, after `on_failure`; an error is logged and changes nothing.

        Not run when the last lease of a task ended without a report: no worker holds the task then.
        """

    @property
    def task(self) -> RunningTask:
        """The task of this run: id, attempt, deadline, headers, results from its flow."""
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
        """Publishes the progress of this run."""
        self._run.progress(done, total, note)

    if not TYPE_CHECKING:  # a type checker would accept any attribute

        def __getattr__(self, name):
            raise no_attribute(self, f"job {type(self).__name__}(…)", name)

    @property
    def _run(self) -> JobRun:
        try:
            return self.__dict__["_current"]  # type: ignore[no-any-return]
        except KeyError:
            name = type(self).__name__
            raise UsageError(f"{name} is not being run by a worker; task, log, ... exist in run()") from None

    @overload
    def enqueue(self: HasAsyncRun[R], **options: Unpack[EnqueueKeywords]) -> TaskHandle[R]: ...
    @overload
    def enqueue(self: HasRun[R], **options: Unpack[EnqueueKeywords]) -> TaskHandle[R]: ...
    def enqueue(self: Any = None, *wrongly: Any, **options: Unpack[EnqueueKeywords]) -> TaskHandle[Any]:
        """Sends this job as a task: now, `in_` a while, or `at` an aware datetime. Returns a handle on it.

        The options are those of EnqueueKeywords: in_, at, priority, queue, id, expires_in, max_attempts, timeout,
        result_ttl, headers, wait.

        A full queue raises QueueFull, with `wait` after that time without room. Raises ParameterError, InvalidOption,
        NaiveDatetime, PayloadTooLarge, ServerError; then nothing was sent (except with OutcomeUnknown, after which the
        same `id` may be sent again without doubling the task).
        """
        if wrongly or not isinstance(self, Job):
            raise _not_made("enqueue", self, wrongly)
        chosen = read_options(options, "Job.enqueue", self)
        return current_client().enqueue(build_task(definition_of(type(self)), self, chosen), wait=chosen.max_wait)

    @overload
    async def aenqueue(self: HasAsyncRun[R], **options: Unpack[EnqueueKeywords]) -> AsyncTaskHandle[R]: ...
    @overload
    async def aenqueue(self: HasRun[R], **options: Unpack[EnqueueKeywords]) -> AsyncTaskHandle[R]: ...
    async def aenqueue(self: Any = None, *wrongly: Any, **options: Unpack[EnqueueKeywords]) -> AsyncTaskHandle[Any]:
        """`enqueue` for asyncio."""
        if wrongly or not isinstance(self, Job):
            raise _not_made("aenqueue", self, wrongly)
        chosen = read_options(options, "Job.aenqueue", self)
        task = build_task(definition_of(type(self)), self, chosen)
        return await current_async_client().enqueue(task, wait=chosen.max_wait)

    using = _UsingOfClassOrInstance()
    """The job with options for the tasks enqueued through the returned object, as `using` of a function job:
    `SendMail.using(in_=60).enqueue(to="ada")`, or `SendMail(to="ada").using(in_=60).enqueue()`. Both may be steps of
    flows: `chain(SendMail(to="ada").using(queue="slow"), …)`."""

    @overload
    @classmethod
    def enqueue_many(
        cls, jobs: Iterable[HasAsyncRun[R] | BoundCall[R]], **options: Unpack[EnqueueKeywords]
    ) -> list[TaskHandle[R]]: ...
    @overload
    @classmethod
    def enqueue_many(
        cls, jobs: Iterable[HasRun[R] | BoundCall[R]], **options: Unpack[EnqueueKeywords]
    ) -> list[TaskHandle[R]]: ...
    @overload
    @classmethod
    def enqueue_many(
        cls, jobs: "Iterable[Job | BoundCall[Any]]", **options: Unpack[EnqueueKeywords]
    ) -> list[TaskHandle[Any]]: ...
    @classmethod
    def enqueue_many(cls, jobs: Iterable[Any], **options: Unpack[EnqueueKeywords]) -> list[TaskHandle[Any]]:
        """Sends many jobs in batches of up to 1 000 and 1 MiB, one round trip each. All are checked first.

        `options` hold for all jobs without options of their own, by `using`. `wait` is the time that each batch waits
        for room in full queues.
        """
        chosen = read_options(options, "Job.enqueue_many")
        return enqueue_calls(cls.__name__, jobs, chosen, is_class=True)

    @overload
    @classmethod
    async def aenqueue_many(
        cls, jobs: Iterable[HasAsyncRun[R] | BoundCall[R]], **options: Unpack[EnqueueKeywords]
    ) -> list[AsyncTaskHandle[R]]: ...
    @overload
    @classmethod
    async def aenqueue_many(
        cls, jobs: Iterable[HasRun[R] | BoundCall[R]], **options: Unpack[EnqueueKeywords]
    ) -> list[AsyncTaskHandle[R]]: ...
    @overload
    @classmethod
    async def aenqueue_many(
        cls, jobs: "Iterable[Job | BoundCall[Any]]", **options: Unpack[EnqueueKeywords]
    ) -> list[AsyncTaskHandle[Any]]: ...
    @classmethod
    async def aenqueue_many(cls, jobs: Iterable[Any], **options: Unpack[EnqueueKeywords]) -> list[AsyncTaskHandle[Any]]:
        """`enqueue_many` for asyncio."""
        chosen = read_options(options, "Job.aenqueue_many")
        return await aenqueue_calls(cls.__name__, jobs, chosen, is_class=True)


class PeriodicJob(Job):
    """Base of job classes that run on a schedule: without `every=…` or `cron=…` they cannot be declared.

    A schedule makes any class or function periodic; this base is for readers, and for `isinstance`.
    """
