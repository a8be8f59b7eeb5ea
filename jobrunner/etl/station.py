"""Stations in Python: their options, the definition that workers run, and the item that a station receives.

Every station has the options of its queue, so stations on Spark have them, too.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any, TypedDict

from jobrunner.attempt import Attempt
from jobrunner.broker.shards import whole_queue
from jobrunner.client.item import read_headers, read_payload
from jobrunner.client.settings_hash import write_settings
from jobrunner.errors import InvalidOption, ParameterError, PipelineError
from jobrunner.etl.graph import full_name
from jobrunner.etl.station_outcome import LARGEST_SPREAD, Drop, Link
from jobrunner.jobs.declared_queues import check_partitions
from jobrunner.jobs.options import JobOptions, settle
from jobrunner.jobs.registry import StationDefinition
from jobrunner.jobs.running_task import JobRun
from jobrunner.option_names import check_options
from jobrunner.queue_settings import QueueSettings, RateLimit
from jobrunner.retry import Backoff, BackoffPolicy, RetryOn
from jobrunner.settings import Duration, check_whole

_OF_ATTEMPTS = ("timeout", "retry_on", "on_crash", "result_ttl", "keepalive")
"""The last option is also one of the queue: an idle worker must poll before the shortest lease ends."""


class QueueOptions(TypedDict, total=False):
    """Options of a queue. Declared options are published as those of `queue(…)`; the others stay as they are."""

    keepalive: Duration
    max_attempts: int
    backoff: BackoffPolicy
    dead_ttl: Duration
    dead_max: int
    dead_letter_queue: str
    rate: RateLimit
    max_inflight_per_partition: int
    rate_per_partition: RateLimit
    fair: bool
    max_size: int
    expires_in: Duration
    history: Duration
    history_max: int


class StationOptions(QueueOptions, total=False):
    """Options of a station in Python.

    concurrency  most items of this station at a time, on all workers together; default: no limit
    timeout      how long one attempt may run
    retry_on     error classes that are retried, or a callable (error, attempt) -> bool; default: every error
    on_crash     after the worker was killed meanwhile: "retry" (default) at once, or "wait" until the lease has ended
    result_ttl   how long items that a sink finished or a station dropped stay readable without history; default 0
    name         name of the station in logs; default: the function's name
    """

    concurrency: int
    timeout: Duration
    retry_on: RetryOn
    on_crash: str
    result_ttl: Duration
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StationSettings:
    """The checked options of one station."""

    name: str
    of_attempts: JobOptions
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options for `Queue.configure`: only the declared options."""


def settle_queue(
    pipeline: str, queue: str, given: Mapping[str, Any], *, explicit: Sequence[str] = ()
) -> dict[str, Any]:
    """The settings of a queue, for `Queue.configure`. Raises UnknownOption, InvalidOption, PipelineError.

    `explicit` are the other options of the called function, which an error may suggest.
    """
    known = [known.name for known in fields(QueueSettings) if known.name != "max_inflight"]
    check_options(given, [*known, *explicit], f"option of queue {queue!r}")
    return _settings(pipeline, queue, given)


def check_station(given: Iterable[str], what: str, explicit: Sequence[str]) -> None:
    """Raises UnknownOption for an unknown option of a station or sink; `explicit` as in settle_queue."""
    of_queue = [known.name for known in fields(QueueSettings) if known.name != "max_inflight"]
    own = ("timeout", "retry_on", "on_crash", "result_ttl", "concurrency", "name")
    check_options(given, [*of_queue, *own, *explicit], f"option of {what}")


def settle_station(
    pipeline: str, queue: str, given: Mapping[str, Any], *, default_name: str, what: str, explicit: Sequence[str] = ()
) -> StationSettings:
    """The options of a station or sink (`what`). Raises UnknownOption, InvalidOption, InvalidName, PipelineError."""
    of_queue = [known.name for known in fields(QueueSettings) if known.name != "max_inflight"]
    check_station(given, what, explicit)
    given = {option: value for option, value in given.items() if value is not None}
    of_attempts = {option: given[option] for option in _OF_ATTEMPTS if option in given}
    if callable(given.get("backoff")) and not isinstance(given["backoff"], Backoff):
        of_attempts["backoff"] = given.pop("backoff")  # a callable cannot be stored on the server
    name, options, _ = settle(
        {"result_ttl": timedelta(0), **of_attempts, "queue": queue}, default_name=given.pop("name", default_name)
    )
    settings = {option: value for option, value in given.items() if option in of_queue}
    if "concurrency" in given:
        settings["max_inflight"] = given["concurrency"]
    return StationSettings(name=name, of_attempts=options, settings=_settings(pipeline, queue, settings))


def _settings(pipeline: str, queue: str, given: Mapping[str, Any]) -> dict[str, Any]:
    settings = {option: value for option, value in given.items() if value is not None}
    check_partitions(settings, f"queue {queue!r}", f"pipeline.queue({queue.partition('/')[2]!r})")
    if "dead_letter_queue" in settings:
        settings["dead_letter_queue"] = full_name(pipeline, settings["dead_letter_queue"])
    try:
        if "max_inflight" in settings:
            check_whole(settings["max_inflight"], "concurrency", minimum=1)
        write_settings(settings, queue)
    except InvalidOption as error:
        raise InvalidOption(f"queue {queue!r}: {error}") from error
    return settings


def targets_of(pipeline: str, queue: str, to: object) -> tuple[str, ...]:
    """The full names of the queue or queues in `to`. Raises PipelineError, InvalidName."""
    names = (to,) if isinstance(to, str) else to
    if not isinstance(names, (tuple, list)) or not names:
        raise PipelineError(
            f"station of queue {queue.partition('/')[2]!r}: to={to!r} leads nowhere; give the name of a queue or "
            "several, or declare the end of the line with sink(…)"
        )
    targets = tuple(full_name(pipeline, name) for name in names)
    if len(set(targets)) < len(targets):
        raise PipelineError(f"station of queue {queue.partition('/')[2]!r}: to={to!r} names a queue twice")
    return targets


class StationItem:
    """One item at a station. Made for every attempt, so everything except the payload is read on demand.

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
        """The id, the same from the push to the end; items of a fan-out have their own."""
        return self._run.attempt.id

    @property
    def queue(self) -> str:
        """Full name of the queue that the item was taken from, without its partition."""
        return whole_queue(self._run.attempt.queue)

    @property
    def attempt(self) -> int:
        """The number of the attempt in this queue: 1 for the first."""
        return self._run.attempt.number

    @property
    def headers(self) -> dict[str, str]:
        """Strings by name that go with the item; to change them, return To(…, headers=…)."""
        if self._headers is None:
            self._headers = read_headers(self._run.attempt.headers)
        return self._headers

    @property
    def enqueue_time(self) -> datetime:
        """The time at which the item was first pushed, into any queue."""
        return self._run.attempt.enqueue_time

    @property
    def deadline(self) -> datetime:
        """The time by which the attempt has to end: the end of its timeout, or of its lease, which the worker
        renews."""
        return self._run.deadline or self._run.attempt.deadline

    @property
    def log(self) -> Any:
        """A structlog logger bound to station, item and attempt."""
        return self._run.log

    @property
    def cancelled(self) -> bool:
        """Whether the station should stop: the item was cancelled, or this attempt lost its lease."""
        return self._run.cancelled

    def progress(self, done: float, total: float, note: str = "") -> None:
        """Publishes the progress of this attempt."""
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
    """One item at a station that is a coroutine function, or an async generator of a fan-out."""

    __slots__ = ()

    async def run(self) -> Any:
        """The outcome of the attempt."""
        try:
            returned: Any = self.function(self.item)
            found = await _first_of(returned) if inspect.isasyncgen(returned) else await returned
            return self.link.outcome(found, self.attempt)
        except Drop as dropped:
            return self.link.outcome(dropped, self.attempt)


async def _first_of(values: AsyncGenerator[Any, Any]) -> list[Any]:
    """The yielded values, up to one more than a fan-out may make."""
    found: list[Any] = []
    async with aclosing(values):
        async for one in values:
            found.append(one)
            if len(found) > LARGEST_SPREAD:
                break
    return found


def define_station(function: StationFunction, link: Link, settled: StationSettings) -> StationDefinition:
    """The definition of a station. Raises PipelineError for a function that cannot be called with one item."""
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
    )


def check_function(
    function: object, queue: str, arguments: tuple[str, ...], *, may_yield: bool = False, may_await: bool = True
) -> None:
    """Raises PipelineError unless `function` can be called with these positional arguments, and the call runs it."""
    shown = f"({', '.join(arguments)})"
    if not callable(function) or isinstance(function, type):
        raise PipelineError(f"station of queue {queue!r} is {function!r}; put the decorator above a function {shown}")
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        name = getattr(function, "__name__", "it")
        raise PipelineError(f"station {name!r} of queue {queue!r} is called as {name}{shown}: {error}") from error
    if not may_yield and (inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)):
        raise PipelineError(
            f"the function of queue {queue!r} is a generator: a yield is in it. Only a station in Python that is "
            "declared with fan_out=True makes an item of each value; else return one"
        )
    if not may_await and inspect.iscoroutinefunction(function):
        raise PipelineError(f"the function of queue {queue!r} is async, and on Spark nothing awaits it: write def")


def origin_of(function: Any) -> str:
    """module:qualified name."""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"


def name_of(function: Any, default: str) -> str:
    """The name of a function if it is a valid name of a station, else `default`."""
    name = getattr(function, "__name__", default)
    return name if name.replace("_", "").isalnum() and name.isascii() else default
