"""@job: turns a class or a function into a job. Calling such a function still just calls it; `enqueue` sends it."""

import inspect
import types
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar, get_type_hints, overload

import msgspec

from jobrunner.errors import InvalidName, InvalidOption, UsageError
from jobrunner.formatting import describe
from jobrunner.jobs.build import FunctionJob
from jobrunner.jobs.job import Job, PeriodicJob
from jobrunner.jobs.options import JobOptions, Unique, refuse_unknown, settle
from jobrunner.jobs.params import IMPORT_IT, JobParameters, run_of
from jobrunner.jobs.registry import DEFAULTS, JobDefinition, register
from jobrunner.retry import BackoffPolicy, RetryOn
from jobrunner.settings import Duration, file_settings

if TYPE_CHECKING:
    from jobrunner.due_ticks import CatchUp

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


def values_of(function: Callable[..., Any]) -> type[Job]:
    """A Job with the parameters of the function, whose `run` calls it."""
    name, parameters = _name_and_parameters(function)
    _refuse_generator(name, function)
    if next(iter(parameters), "") in ("self", "cls"):
        raise UsageError(
            f"job {name!r} is a method, and a task has no object to call it on; declare a function that makes the "
            "object, or a class with Job as its base"
        )
    hints = _hints_of(name, function)
    body: dict[str, Any] = {"__annotations__": {}, "__module__": function.__module__, "run": run_of(function)}
    for parameter in parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(
                f"job {name!r}: parameter {parameter} cannot be stored: a task has its parameters by name; "
                + ("remove the / behind it" if parameter.kind is parameter.POSITIONAL_ONLY else _NAME_EACH)
            )
        body["__annotations__"][parameter.name] = hints.get(parameter.name, Any)
        if parameter.default is not parameter.empty:
            body[parameter.name] = _default(parameter.default)
    return types.new_class(name, (Job,), {"kw_only": True}, lambda namespace: namespace.update(body))


def _name_and_parameters(function: Callable[..., Any]) -> tuple[str, Mapping[str, inspect.Parameter]]:
    """The name and parameters of a function. Raises UsageError for a callable without a name, a signature, or
    annotations."""
    name = getattr(function, "__name__", None)
    with suppress(ValueError):  # some functions in C have no signature
        if name is not None and not isinstance(function, partial):
            return name, inspect.signature(function).parameters
    raise UsageError(
        f"@job is for a function, and {describe(function, 80)} is none: write one that calls it, with a type for each "
        "parameter, as in def name(x: int): …"
    )


def _hints_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """The types of the parameters. The type of the result is not read: it may be imported for type checkers alone."""
    with suppress(Exception):  # the code below finds out whether a parameter causes the error
        return get_type_hints(function, include_extras=True)
    parameters = types.FunctionType((lambda: None).__code__, getattr(inspect.unwrap(function), "__globals__", {}))
    try:
        annotations = function.__annotations__
        parameters.__annotations__ = {of: hint for of, hint in annotations.items() if of != "return"}
        return get_type_hints(parameters, include_extras=True)
    except NameError as error:
        raise UsageError(f"job {name!r}: the type of a parameter is not there: {error}; {IMPORT_IT}") from error
    except Exception as error:  # an annotation in quotes is code, which may raise anything
        raise UsageError(f"job {name!r}: the type of a parameter cannot be read: {error}") from error


def _refuse_generator(name: str, function: object) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UsageError(
            f"job {name!r} is a generator, of which a worker would run nothing: a yield is in it; return a list, or "
            "enqueue a task for each value"
        )


def _default(value: Any) -> Any:
    mutable = isinstance(value, (list, dict, set, bytearray)) and value
    return msgspec.field(default_factory=lambda: value.copy()) if mutable else value


J = TypeVar("J", bound=type[Job])
_NAME_EACH = "write each one out; a decorator between @job and the function needs functools.wraps"
_HOOKS = ("before", "after", "on_failure", "on_dead")
_RESERVED = frozenset(name for name in dir(Job) if not name.startswith("__"))


class Declaration:
    """The decorator that `job(...)` returns."""

    def __init__(self, options: dict[str, Any]) -> None:
        refuse_unknown(options)
        self._poll_every: Duration | None = options.get("poll_every")
        self._options = {option: value for option, value in options.items() if option != "poll_every"}

    @overload
    def __call__(self, target: J) -> J: ...  # type: ignore[overload-overlap]  # a class is a callable too
    @overload
    def __call__(self, target: Callable[P, Coroutine[Any, Any, R]]) -> FunctionJob[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, target: Callable[P, R]) -> FunctionJob[P, R, R]: ...

    def __call__(self, target: Any) -> Any:
        if isinstance(target, type):
            return self._declare_class(target)
        if callable(target):
            return self._declare_function(target)
        raise UsageError(f"@job is for a Job class or a function, not for {target!r}")

    def _declare_class(self, target: type) -> type:
        if not issubclass(target, Job):
            raise UsageError(f"@job: {target.__qualname__} is no Job; write class {target.__name__}(Job)")
        _check_run(target)
        definition = self._define(target, target.__qualname__)
        if definition.periodic is None and issubclass(target, PeriodicJob):
            raise InvalidOption(
                f"job {definition.name!r}: class {target.__name__}(PeriodicJob) has no schedule: "
                "give @job every=… or cron=…, or derive it from Job"
            )
        polls = None if self._poll_every is None else self._poll_of(target, definition)
        register(definition)
        target.definition = definition
        if polls is not None:
            declare, function = polls
            declare._declare_function(function)  # noqa: SLF001 - its own class
        return target

    def _poll_of(self, target: type[Job], definition: JobDefinition) -> "tuple[Declaration, Callable[[], Any]]":
        from jobrunner.jobs.polling import poll_function, poll_options  # few programs have polling jobs

        if definition.periodic is not None:
            raise InvalidOption(f"job {definition.name!r}: poll_every with every or cron: give one of them")
        options = poll_options(definition.name, definition.declared.queue, self._poll_every)  # type: ignore[arg-type]
        return Declaration(options), poll_function(target, definition.name)

    def _declare_function(self, function: Callable[..., Any]) -> FunctionJob[..., Any, Any]:
        if self._poll_every is not None:
            name = getattr(function, "__name__", "job")
            raise InvalidOption(f"job {name!r}: poll_every is for a Job class with next_batch(); a function has none")
        values = values_of(function)
        definition = self._define(values, getattr(function, "__qualname__", ""))
        register(definition)
        declared = FunctionJob[..., Any, Any](function, values)
        declared.definition = definition
        return declared

    def _define(self, values: type[Job], qualname: str) -> JobDefinition:
        name, options, periodic = settle(self._options, default_name=values.__name__)
        for parameter in values.__struct_fields__:
            if parameter in _RESERVED:
                raise InvalidName(f"job {name!r}: parameter {parameter!r} hides an attribute of Job; rename it")
        if options.partition_by is not None and options.partition_by not in values.__struct_fields__:
            known = ", ".join(values.__struct_fields__)
            raise InvalidOption(
                f"job {name!r}: partition_by={options.partition_by!r} is none of its parameters {known}"
            )
        if options.unique is not None:
            if periodic is not None:
                raise InvalidOption(f"job {name!r}: a periodic job is kept single by overlap=…, not by unique=…")
            options.unique.check(values.__struct_fields__, name)
        if periodic is not None and (required := _required(values)):
            raise InvalidOption(
                f"job {name!r}: a periodic job runs without arguments: give every parameter a default "
                f"(missing for {', '.join(required)})"
            )
        return JobDefinition(
            name=name,
            origin=f"{values.__module__}:{qualname}",
            declared=options,
            with_defaults=partial(_with_defaults, self._options),
            periodic=periodic,
            parameters=JobParameters(values, name),
            is_async=inspect.iscoroutinefunction(values.run),
            hooks=frozenset(hook for hook in _HOOKS if getattr(values, hook) is not getattr(Job, hook)),
        )


def _with_defaults(given: Mapping[str, Any], declared: JobOptions) -> JobOptions:
    if not DEFAULTS and not file_settings().job_defaults:
        return declared
    from jobrunner.jobs.job_defaults import with_defaults  # most programs do not need it

    return with_defaults(given, declared)


def _check_run(target: type[Job]) -> None:
    """Raises UsageError for a class whose tasks could only fail: without `run`, or with a `run` that takes
    arguments."""
    name, run = target.__qualname__, inspect.getattr_static(target, "run")
    if run is inspect.getattr_static(Job, "run"):
        raise UsageError(f"@job: class {name} has no run(); define def run(self), which does the work")
    if not inspect.isfunction(run):
        return
    _refuse_generator(f"{name}.run", run)
    try:
        inspect.signature(run).bind(None)
    except TypeError:
        raise UsageError(
            f"@job: {name}.run{inspect.signature(run)} cannot be called; write def run(self): the parameters of a job "
            "class are its annotated attributes"
        ) from None
    if inspect.iscoroutinefunction(run):
        return
    for hook in _HOOKS:
        if inspect.iscoroutinefunction(inspect.getattr_static(target, hook)):
            raise UsageError(
                f"@job: {name}.{hook} is a coroutine function, and {name}.run is not, so nothing would await it; write "
                f"def {hook}, or async def run"
            )


def _required(values: type[Job]) -> list[str]:
    """Names of the parameters without a default."""
    names, defaults = values.__struct_fields__, values.__struct_defaults__  # the defaults belong to the last names
    first = len(names) - len(defaults)
    return [name for at, name in enumerate(names) if at < first or defaults[at - first] is msgspec.NODEFAULT]


@overload
def job(target: J, /) -> J: ...  # type: ignore[overload-overlap]  # a class is a callable too
@overload
def job(target: Callable[P, Coroutine[Any, Any, R]], /) -> FunctionJob[P, Coroutine[Any, Any, R], R]: ...
@overload
def job(target: Callable[P, R], /) -> FunctionJob[P, R, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    queue: str | None = None,
    priority: int | None = None,
    max_attempts: int | None = None,
    backoff: BackoffPolicy | None = None,
    retry_on: RetryOn | None = None,
    max_stalled: int | None = None,
    keepalive: Duration | None = None,
    timeout: Duration | None = None,
    ack: str | None = None,
    on_crash: str | None = None,
    result_ttl: Duration | None = None,
    expires_in: Duration | None = None,
    unique: bool | Duration | Unique | None = None,
    partition_by: str | None = None,
    every: Duration | None = None,
    cron: str | None = None,
    tz: str | None = None,
    catch_up: "CatchUp | None" = None,
    overlap: str | None = None,
    jitter: Duration | None = None,
    poll_every: Duration | None = None,
    **unknown: Never,
) -> Declaration: ...
def job(target: Any = None, /, *surplus: Any, **options: Any) -> Any:
    """Declares a job. Decorates a Job class, or a function with annotated parameters; bare, or with options:

    name          the task's type; default: the class or function name
    queue         where its tasks go; default "default"
    priority      0 to 2, higher first; default 1
    max_attempts  tries before the task is dead; default 5, 1 = no retry, 0 = no limit
    backoff       Backoff(base, factor, cap, jitter) or a callable (retry_count, error) -> delay; default: the queue's
    retry_on      error classes that are retried, or a callable (error, attempt) -> bool; default: every error
    max_stalled   leases that may end without a report, as after a crash, before the task is dead; default max_attempts
    keepalive     length of the lease; the worker renews it
    timeout       how long one attempt may run; default: no limit
    ack           "late" (default) or "early": at most once
    on_crash      after the worker was killed meanwhile: "retry" (default) at once, or "wait" until the lease has ended
    result_ttl    how long a finished task stays readable; default 60 s, 0 deletes at once
    expires_in    a task not started by then goes to dead
    partition_by  name of the parameter whose value is the task's partition, for limits and turns of its queue
    unique        True, seconds, or Unique(by, until, ttl, on_clash): no second equal task while the first exists
    every         makes it a periodic job, with this interval; every parameter needs a default
    cron          makes it a periodic job, by a cron expression of five or six fields; every parameter needs a default
    tz            time zone of cron; default UTC
    catch_up      ticks missed while no leader ran: "last" (default) fires one, "none", or up to a number
    overlap       a tick while the task of the last tick still runs: "skip" (default) or "allow"
    jitter        delays each task by up to this time
    poll_every    interval at which one worker calls the class method `next_batch()` and enqueues the returned jobs

    Raises UnknownOption, InvalidOption, InvalidName, and DuplicateJob when the name is taken.
    """
    if surplus or not (target is None or callable(target)):
        passed = ", ".join(map(describe, (target, *surplus)))
        raise UsageError(f"@job({passed}): options have names; write @job(queue=…), @job(), or @job alone")
    declaration = Declaration({option: value for option, value in options.items() if value is not None})
    return declaration if target is None else declaration(target)
