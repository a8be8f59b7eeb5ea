"""A station in Python: a function of one item, as the definition that workers run, and the item that it sees."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.client.item import read_headers, read_payload
from jobrunner.errors import ParameterError, PipelineError
from jobrunner.etl.options import StationSettings
from jobrunner.etl.station_outcome import Drop, Link
from jobrunner.jobs.registry import StationDefinition
from jobrunner.jobs.running_task import JobRun


class StationItem:
    """One item at a station. Made for every attempt, so all but the payload is read on demand.

    `payload` is this attempt's own copy: changes in it are passed on only when it is returned.
    """

    __slots__ = ("_headers", "_run", "payload")

    def __init__(self, payload: Any, run: JobRun) -> None:
        self.payload = payload
        self._run = run
        self._headers: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"StationItem({self.id!r}, queue={self.queue!r}, attempt={self.attempt})"

    @property
    def id(self) -> str:
        """The same from the push to the end; items of a fan-out have their own."""
        return self._run.attempt.id

    @property
    def queue(self) -> str:
        """Full name of the queue that it was taken from."""
        return self._run.attempt.queue

    @property
    def attempt(self) -> int:
        """1 on the first try in this queue."""
        return self._run.attempt.number

    @property
    def headers(self) -> dict[str, str]:
        """Strings by name that go with the item; to change them, return To(…, headers=…)."""
        if self._headers is None:
            self._headers = read_headers(self._run.attempt.headers)
        return self._headers

    @property
    def enqueue_time(self) -> datetime:
        """When it was first pushed, into whatever queue."""
        return self._run.attempt.enqueue_time

    @property
    def deadline(self) -> datetime:
        """When the attempt has to be over: the end of its timeout, or of its lease, which the worker renews."""
        return self._run.deadline or self._run.attempt.deadline

    @property
    def log(self) -> Any:
        """A structlog logger bound to station, item and attempt."""
        return self._run.log

    @property
    def cancelled(self) -> bool:
        """Whether the station should stop: someone cancelled the item, or this attempt lost its lease."""
        return self._run.cancelled

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Shows how far this attempt has come."""
        self._run.progress(done, total, note)


StationFunction = Callable[[StationItem], Any]


@dataclass(frozen=True, slots=True)
class _Visit:
    """One item at a station."""

    function: StationFunction
    link: Link
    item: StationItem
    attempt: Attempt

    def run(self) -> Any:
        """The outcome of the attempt."""
        try:
            return self.link.outcome(self.function(self.item), self.attempt)
        except Drop as dropped:
            return self.link.outcome(dropped, self.attempt)


class _AsyncVisit(_Visit):
    """The same for a coroutine function, or an async generator of a fan-out."""

    __slots__ = ()

    async def run(self) -> Any:
        """The outcome of the attempt."""
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
