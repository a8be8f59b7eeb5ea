"""From a job with its parameters to the task that is sent, or to the definition that a periodic job publishes."""

import hashlib
import inspect
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec
from msgspec.structs import replace

from jobrunner.broker.keys import check_own_id, split_queue
from jobrunner.client.current import current_client
from jobrunner.client.item import LONGEST_KEY
from jobrunner.client.loop_clients import current_async_client
from jobrunner.client.outgoing import sending_of
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.codec import to_equal_json
from jobrunner.encryption.cipher import PayloadEncryption
from jobrunner.errors import InvalidOption, ParameterError, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.enqueue_options import (
    NOW,
    EnqueueKeywords,
    EnqueueOptions,
    own_headers,
    own_result_ttl,
    read_options,
)
from jobrunner.jobs.registry import JobDefinition, kept_s
from jobrunner.option_names import no_attribute
from jobrunner.retry import positive, seconds, whole_ms
from jobrunner.settings import Duration, check_whole
from jobrunner.task import Task, check_priority, due, new_id

if TYPE_CHECKING:
    from jobrunner.periodic import PeriodicDefinition

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class BoundCall(Generic[R]):
    """A job with its parameters and options, to be enqueued, alone or by `enqueue_many`, or to be a step of a flow."""

    def __init__(self, definition: JobDefinition, values: Any, options: EnqueueOptions = NOW) -> None:
        self.definition = definition
        self.values = values
        self.options = options

    def __repr__(self) -> str:
        return f"<call of job {self.definition.name!r}>"

    if not TYPE_CHECKING:  # a type checker would accept any attribute and operand

        def __getattr__(self, name):
            raise no_attribute(self, f"{type(self).__name__!r} object", name)

        def __or__(self, other):
            raise UsageError(f"{self!r} | {describe(other)}: write chain(…, …) for steps one after the other")

    def task(self, options: EnqueueOptions = NOW) -> Task:
        """The task of this call; its own options override `options`. Raises the errors of a wrong parameter or
        option."""
        return build_task(self.definition, self.values, self.options.over(options))

    def using(self, **options: Unpack[EnqueueKeywords]) -> "BoundCall[R]":
        """The same call with these options, beside those that it has."""
        return self._with(options, "using")

    def enqueue(self, **options: Unpack[EnqueueKeywords]) -> TaskHandle[R]:
        """Sends it as a task; these options are added to those that it has. Errors as in Job.enqueue."""
        call = self._with(options, "enqueue") if options else self
        return current_client().enqueue(call.task(), wait=call.options.max_wait)

    async def aenqueue(self, **options: Unpack[EnqueueKeywords]) -> AsyncTaskHandle[R]:
        """The same for asyncio."""
        call = self._with(options, "aenqueue") if options else self
        return await current_async_client().enqueue(call.task(), wait=call.options.max_wait)

    def _with(self, options: EnqueueKeywords, method: str) -> "BoundCall[R]":
        return BoundCall(self.definition, self.values, read_options(options, method).over(self.options))


class FunctionJob(Generic[P, C, R]):
    """A function declared with @job. `C` is what calling it returns, `R` the result of its tasks."""

    definition: JobDefinition

    def __init__(self, function: Callable[P, C], values: type[msgspec.Struct], options: EnqueueOptions = NOW) -> None:
        self._function = function
        self._values = values
        self._options = options
        self._positional = tuple(
            name
            for name, parameter in inspect.signature(function).parameters.items()
            if parameter.kind is not parameter.KEYWORD_ONLY
        )
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "job")
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)
        self.__wrapped__ = function
        mark = getattr(inspect, "markcoroutinefunction", None)  # of Python 3.12
        if mark is not None and inspect.iscoroutinefunction(function):
            mark(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Calls the function here and now."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.definition.name!r}>"

    def __reduce__(self) -> str:
        """By its name, as a function: a pool of processes may be given a job to call."""
        return self.__qualname__

    @property
    def _is_coroutine(self) -> object:
        """What `asyncio.iscoroutinefunction` looks for: a framework that is given a coroutine function awaits it."""
        from asyncio import coroutines

        return getattr(coroutines, "_is_coroutine", None) if inspect.iscoroutinefunction(self._function) else None

    if not TYPE_CHECKING:  # a type checker would take any attribute for known

        def __getattr__(self, name):
            raise no_attribute(self, f"job {self.__dict__.get('__name__', 'function')!r}", name)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """The call with these arguments, for `enqueue_many` and flows. Raises ParameterError when they do not fit."""
        named = dict(zip(self._positional, args, strict=False))
        if len(args) > len(named) or not named.keys().isdisjoint(kwargs):
            shown = f"{self.__name__}{inspect.signature(self._function)}"
            raise ParameterError(f"{self.__name__}(…): arguments given twice or too many; it is {shown}")
        return BoundCall(self.definition, self._values(**named, **kwargs), self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R]:
        """Sends the function with these arguments as a task. Errors as in Job.enqueue."""
        return self.bind(*args, **kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> AsyncTaskHandle[R]:
        """The same for asyncio."""
        return await self.bind(*args, **kwargs).aenqueue()

    def enqueue_many(self, calls: Iterable[BoundCall[R]], **options: Unpack[EnqueueKeywords]) -> list[TaskHandle[R]]:
        """Sends many calls in batches of up to 1 000 and 1 MiB. All are checked before the first is sent.

        `options` are those of all calls that do not have their own.
        """
        chosen = read_options(options, "enqueue_many").over(self._options)
        return enqueue_calls(self.__name__, calls, chosen)

    async def aenqueue_many(
        self, calls: Iterable[BoundCall[R]], **options: Unpack[EnqueueKeywords]
    ) -> list[AsyncTaskHandle[R]]:
        """The same for asyncio."""
        chosen = read_options(options, "aenqueue_many").over(self._options)
        return await aenqueue_calls(self.__name__, calls, chosen)

    def using(self, **options: Unpack[EnqueueKeywords]) -> "FunctionJob[P, C, R]":
        """The same job with these options for the tasks enqueued through what is returned (see EnqueueKeywords)."""
        chosen = FunctionJob[P, C, R](
            self._function, self._values, read_options(options, "using").over(self._options)
        )
        chosen.definition = self.definition
        return chosen


def definition_of(job: type) -> JobDefinition:
    """The definition of a job class. Raises UsageError for one that is not declared."""
    found: JobDefinition | None = vars(job).get("definition")  # a subclass has it by inheritance and is not declared
    if found is None:
        raise UsageError(f"{job.__qualname__} is not declared; put @job(...) above the class")
    return found


def enqueue_calls(
    job: str, calls: Iterable[Any], options: EnqueueOptions, *, is_class: bool = False
) -> list[TaskHandle[Any]]:
    """Sends jobs and calls, with these options where they have none of their own. Before any is sent, raises UsageError
    for what is neither, and the errors of wrong parameters and options."""
    tasks, wait = _tasks_of(job, calls, options, is_class=is_class)
    return current_client().enqueue_many(tasks, wait=wait)


async def aenqueue_calls(
    job: str, calls: Iterable[Any], options: EnqueueOptions, *, is_class: bool = False
) -> list[AsyncTaskHandle[Any]]:
    """The same for asyncio."""
    tasks, wait = _tasks_of(job, calls, options, is_class=is_class)
    return await current_async_client().enqueue_many(tasks, wait=wait)


def _tasks_of(
    job: str, calls: Iterable[Any], options: EnqueueOptions, *, is_class: bool
) -> tuple[list[Task], float]:
    """The tasks, and the longest time that one of them may wait for room: they are sent together."""
    if options.id is not None:
        raise InvalidOption(
            f"id={describe(options.id)}: enqueue_many sends many tasks; give each its own, in using(id=…) of each call"
        )
    if isinstance(calls, (str, bytes, msgspec.Struct, BoundCall)) or not isinstance(calls, Iterable):
        raise UsageError(f"{job}.enqueue_many({describe(calls)}): give a list, or another iterable, of calls")
    tasks: list[Task] = []
    waits: list[Duration] = []
    kind, definition = None, None
    for call in calls:
        if definition is not None and type(call) is kind:  # as the one before, as most are
            tasks.append(build_task(definition, call, options))
        elif isinstance(call, BoundCall):
            tasks.append(call.task(options))
            if call.options.wait is not None:
                waits.append(call.options.wait)
        elif isinstance(call, msgspec.Struct) and hasattr(type(call), "definition"):
            kind, definition = type(call), definition_of(type(call))
            tasks.append(build_task(definition, call, options))
        else:
            raise UsageError(_no_call(job, is_class, call, len(tasks)))
    if len(waits) < len(tasks):
        waits.append(options.max_wait)
    return tasks, max([seconds(wait, option="wait") for wait in waits], default=0.0)


def _no_call(job: str, is_class: bool, given: object, position: int) -> str:
    given_as = ", ".join(map(describe, given)) if isinstance(given, (tuple, list)) else "…"
    owner = job
    if isinstance(given, FunctionJob):
        job, given_as, is_class = given.__name__, "…", False
    remedy = f"{job}(…)" if is_class else f"{job}.bind({given_as})"
    return f"{owner}.enqueue_many([…]): item {position} is {describe(given)}, which is no call of a job; write {remedy}"


def build_task(definition: JobDefinition, values: Any, chosen: EnqueueOptions) -> Task:
    """The task of a job with these parameters. Raises the errors of a wrong parameter, option or name."""
    options = definition.declared  # for all jobs there is no queue, partition or lock; the template has the rest
    payload, read = definition.parameters.write_and_read(values)
    # Of what is read, so that they are the same for two tasks whose jobs read the same.
    key = None if options.partition_by is None else key_of(getattr(read, options.partition_by))
    lock = None if options.unique is None else options.unique.lock(definition.name, read, options.partition_by)
    template = definition.template
    if chosen is NOW:
        return replace(template, id=new_id(template.id), payload=payload, key=key, lock=lock)
    queue = chosen.queue if chosen.queue is not None else options.queue
    delay_ms, at_ms = due(chosen.in_, chosen.at)
    priority = check_priority(chosen.priority)
    max_attempts, expires_in_ms = template.max_attempts, template.expires_in_ms
    if chosen.max_attempts is not None:
        max_attempts = check_whole(chosen.max_attempts, "max_attempts", minimum=0)
    if chosen.expires_in is not None:
        expires_in_ms = whole_ms(positive(chosen.expires_in, "expires_in"))
    headers = own_headers(chosen)
    own_ttl = own_result_ttl(headers)
    return replace(
        template,
        id=new_id(_tag_of(queue)) if chosen.id is None else check_own_id(chosen.id, _tag_of(queue)),
        queue=queue,
        payload=payload,
        priority=template.priority if priority is None else priority,
        delay_ms=delay_ms,
        at_ms=at_ms,
        max_attempts=max_attempts,
        expires_in_ms=expires_in_ms,
        headers=headers,
        key=key,
        lock=lock,
        kept_s=0.0 if chosen.id is not None else template.kept_s if own_ttl is None else kept_s(own_ttl),
        sending="" if chosen.id is None else sending_of(queue, chosen.id),
    )


def key_of(value: Any) -> str | None:
    """The value of a parameter as the key of its task: text, or JSON, or the digest of what is long. None is no key."""
    if value is None:
        return None
    text = value if isinstance(value, str) else to_equal_json(value).decode()
    return text if 1 <= len(text) <= LONGEST_KEY else hashlib.sha256(text.encode()).hexdigest()


def _tag_of(queue: object) -> str:
    return _tag_of_name(queue) if isinstance(queue, str) else split_queue(queue)[0]


@lru_cache(maxsize=1024)
def _tag_of_name(queue: str) -> str:
    return split_queue(queue)[0]


def published(jobs: Iterable[JobDefinition], encryption: PayloadEncryption | None = None) -> dict[str, bytes]:
    """Periodic jobs by name, as they are published; with keys, signed."""
    found: dict[str, bytes] = {}
    for job in jobs:
        definition = define(job)
        if encryption is not None:
            definition.signature = encryption.sign_parameters(definition.payload, definition.signed_context)
        found[job.name] = msgspec.json.encode(definition)
    return found


def define(job: JobDefinition) -> "PeriodicDefinition":
    """The definition of a periodic job. It leaves out parameters with a `default_factory`, for which each heartbeat
    would publish another definition; the worker that runs the task calls the factory."""
    from jobrunner.periodic import OF_ITS_TASKS, PeriodicDefinition  # a program that only enqueues defines none

    periodic = job.periodic
    assert periodic is not None
    values = job.parameters.read(b"{}")
    task = build_task(job, values, NOW)
    return PeriodicDefinition(
        name=job.name,
        queue=task.queue,
        schedule=periodic.schedule.spec(),
        payload=job.parameters.write_fixed(values, kept=job.declared.partition_by),
        catch_up=periodic.catch_up,
        overlap=periodic.overlap,
        jitter=periodic.jitter,
        **{option: getattr(task, option) for option in OF_ITS_TASKS},
    )
