"""A station in Python: a function of one item, as the definition that workers run."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_payload
from jobrunner.errors import ParameterError, PipelineError
from jobrunner.etl.item import StationItem
from jobrunner.etl.options import StationSettings
from jobrunner.etl.station_outcome import Drop, Link
from jobrunner.jobs.registry import StationDefinition
from jobrunner.jobs.running_task import JobRun

StationFunction = Callable[[StationItem], Any]


@dataclass(frozen=True, slots=True)
class _Visit:
    """One item at a station."""

    function: StationFunction
    link: Link
    item: StationItem
    attempt: Attempt

    def run(self) -> Any:
        """What becomes of the item."""
        try:
            return self.link.outcome(self.function(self.item), self.attempt)
        except Drop as dropped:
            return self.link.outcome(dropped, self.attempt)


class _AsyncVisit(_Visit):
    """The same for a coroutine function, or an async generator of a fan-out."""

    __slots__ = ()

    async def run(self) -> Any:
        """What becomes of the item."""
        try:
            returned = self.function(self.item)
            found = [one async for one in returned] if inspect.isasyncgen(returned) else await returned
            return self.link.outcome(found, self.attempt)
        except Drop as dropped:
            return self.link.outcome(dropped, self.attempt)


def define_station(function: StationFunction, link: Link, settled: StationSettings) -> StationDefinition:
    """The definition of a station. Raises PipelineError for what cannot be called with one item."""
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    visit = _AsyncVisit if is_async else _Visit

    def build(attempt: Attempt, run: JobRun) -> _Visit:
        try:
            payload = read_payload(attempt.payload, attempt.encoding)
        except (ValueError, RecursionError) as error:
            raise ParameterError(
                f"station {link.queue!r} cannot read the payload of item {attempt.id}: {error}"
            ) from error
        return visit(function, link, StationItem(payload, run), attempt)

    return StationDefinition(
        name=settled.name,
        origin=origin_of(function),
        queue=link.queue,
        options=settled.of_attempts,
        build=build,
        is_async=is_async,
        settings=settled.settings,
        doc=inspect.cleandoc(function.__doc__ or ""),
    )


def check_function(function: object, queue: str, arguments: tuple[str, ...]) -> None:
    """Raises PipelineError unless `function` can be called with these positional arguments."""
    shown = f"({', '.join(arguments)})"
    if not callable(function) or isinstance(function, type):
        raise PipelineError(f"station of queue {queue!r} is {function!r}; put the decorator above a function {shown}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", "it")
        raise PipelineError(f"station {name!r} of queue {queue!r} is called as {name}{shown}: {error}") from error


def origin_of(function: Any) -> str:
    """module:qualified name."""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"
