"""Functions as jobs: calling one still just calls it; `enqueue` sends it."""

import inspect
import types
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints

import msgspec

from jobrunner.client.current import current_client
from jobrunner.client.task_handle import AsyncTaskHandle, TaskHandle
from jobrunner.errors import ParameterError, UsageError
from jobrunner.jobs.build import NOW, BoundCall, EnqueueOptions
from jobrunner.jobs.job import Job
from jobrunner.jobs.registry import JobDefinition
from jobrunner.option_names import checks_options
from jobrunner.settings import Duration

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class FunctionJob(Generic[P, C, R]):
    """A function declared with @job. `C` is what calling it returns, `R` the result of its tasks."""

    definition: JobDefinition

    def __init__(self, function: Callable[P, C], values: type[Job], options: EnqueueOptions = NOW) -> None:
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

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        """Calls the function here and now."""
        return self._function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<job {self.definition.name!r}>"

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

    def enqueue_many(self, calls: Iterable[BoundCall[R]]) -> list[TaskHandle[R]]:
        """Sends many calls in batches of up to 1 000 and 1 MiB. All are checked before the first is sent."""
        return current_client().enqueue_many([call.task(self._options) for call in calls], wait=self._options.wait)

    @checks_options
    def using(
        self,
        *,
        in_: Duration | None = None,
        at: datetime | float | None = None,
        priority: int | None = None,
        queue: str | None = None,
        id: str | None = None,  # noqa: A002
        wait: Duration = 0,
    ) -> "FunctionJob[P, C, R]":
        """The same job with options for the tasks enqueued through what is returned."""
        chosen = FunctionJob[P, C, R](
            self._function,
            self._values,
            EnqueueOptions(in_=in_, at=at, priority=priority, queue=queue, id=id, wait=wait),
        )
        chosen.definition = self.definition
        return chosen


def values_of(function: Callable[..., Any]) -> type[Job]:
    """A Job whose parameters are those of the function, and whose `run` calls it."""
    name = getattr(function, "__name__", "job")
    hints = get_type_hints(function, include_extras=True)
    body: dict[str, Any] = {"__annotations__": {}, "__module__": function.__module__, "run": _runner(function)}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"job {name!r}: parameter {parameter} cannot be stored; name each parameter")
        body["__annotations__"][parameter.name] = hints.get(parameter.name, Any)
        if parameter.default is not parameter.empty:
            body[parameter.name] = _default(parameter.default)
    return types.new_class(name, (Job,), {"kw_only": True}, lambda namespace: namespace.update(body))


def _default(value: Any) -> Any:
    mutable = isinstance(value, (list, dict, set, bytearray)) and value
    return msgspec.field(default_factory=lambda: value.copy()) if mutable else value


def _runner(function: Callable[..., Any]) -> Callable[[Any], Any]:
    names = tuple(inspect.signature(function).parameters)

    def run(self: Any) -> Any:
        return function(**{name: getattr(self, name) for name in names})

    async def run_async(self: Any) -> Any:
        return await function(**{name: getattr(self, name) for name in names})

    return run_async if inspect.iscoroutinefunction(function) else run
