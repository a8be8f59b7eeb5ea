"""The options of stations: those of the queue that they serve, and those of attempts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, TypedDict

from jobrunner.client.queue_settings import write_settings
from jobrunner.errors import InvalidOption, PipelineError
from jobrunner.etl.queue_names import full_name
from jobrunner.jobs.options import JobOptions, settle
from jobrunner.option_names import check_options
from jobrunner.retry import Backoff, BackoffPolicy, RetryOn
from jobrunner.settings import Duration, QueueSettings, RateLimit

_OF_ATTEMPTS = ("timeout", "retry_on", "on_crash", "result_ttl", "keepalive")
"""The last one is of the queue, too: an idle worker must poll before the shortest lease ends."""


class QueueOptions(TypedDict, total=False):
    """Options of a queue. Given options are written to the server; the others stay as they are there."""

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
    """Of a station in Python.

    concurrency  items of this station at a time, on all workers together; default: no limit
    timeout      of one attempt
    retry_on     error classes that are tried again, or a callable (error, attempt) -> bool; default: every error
    on_crash     when its worker is killed meanwhile: "retry" (default) at once, or "wait" until its lease has ended
    result_ttl   how long what a sink finished or a station dropped stays readable without history; default 0
    name         of the station in logs; default: that of the function
    """

    concurrency: int
    timeout: Duration
    retry_on: RetryOn
    on_crash: str
    result_ttl: Duration
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StationSettings:
    """Options of one station, checked."""

    name: str
    of_attempts: JobOptions
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For `Queue.configure`: only what was given."""


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
    if settings.get("max_inflight") is not None and settings["max_inflight"] == 0:
        raise InvalidOption(f"concurrency=0 of queue {queue!r}: give at least 1, or leave it out for no limit")
    if "dead_letter_queue" in settings:
        settings["dead_letter_queue"] = full_name(pipeline, settings["dead_letter_queue"])
    try:
        write_settings(settings, queue)
    except InvalidOption as error:
        raise InvalidOption(f"queue {queue!r}: {error}") from error
    return settings


def targets_of(pipeline: str, queue: str, to: object) -> tuple[str, ...]:
    """Full names of what `to` names: one queue or several. Raises PipelineError, InvalidName."""
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
