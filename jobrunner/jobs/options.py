"""The options of `@job`, settled and checked at declaration."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from jobrunner.broker.keys import check_name, split_queue
from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.jobs.unique import Unique, read_unique
from jobrunner.option_names import check_options
from jobrunner.queue_settings import DEFAULT_RESULT_TTL_S
from jobrunner.retry import Backoff, BackoffPolicy, RetryOn, check_retry_on, seconds
from jobrunner.schedule import CatchUp, Cron, Every, Schedule, parse_catch_up
from jobrunner.settings import check_whole
from jobrunner.task import check_priority


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """How the tasks of a job are treated. Times in seconds; None means: as the queue says, or without limit."""

    queue: str = "default"
    priority: int | None = None
    max_attempts: int | None = None
    backoff: BackoffPolicy | None = None
    retry_on: RetryOn | None = None
    max_stalled: int | None = None
    keepalive: float | None = None
    timeout: float | None = None
    ack: str = "late"
    on_crash: str = "retry"
    result_ttl: float = DEFAULT_RESULT_TTL_S
    expires_in: float | None = None
    unique: Unique | None = None
    partition_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeriodicOptions:
    """When a periodic job fires."""

    schedule: Schedule
    catch_up: CatchUp = "last"
    overlap: str = "skip"
    jitter: float = 0.0


_PERIODIC = ("every", "cron", "tz", "catch_up", "overlap", "jitter")
_KNOWN = ("name", *(known.name for known in fields(JobOptions)), *_PERIODIC)


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raises UnknownOption for what is no option of @job."""
    check_options(given, _KNOWN, "option of @job")


def settle(given: Mapping[str, Any], *, default_name: str) -> tuple[str, JobOptions, PeriodicOptions | None]:
    """(name, options, periodic options or None). Raises InvalidOption or InvalidName."""
    given = {name: value for name, value in given.items() if value is not None}
    name = check_name(given.get("name", default_name), "job name")
    plain = {option: given[option] for option in given if option not in (*_PERIODIC, "name")}
    return name, _job_options(plain), _periodic_options({o: given[o] for o in _PERIODIC if o in given})


def _job_options(given: dict[str, Any]) -> JobOptions:
    if "queue" in given:
        split_queue(given["queue"])
    check_priority(given.get("priority"))
    for option in ("max_attempts", "max_stalled"):
        if option in given:
            check_whole(given[option], option, minimum=0)
    if "retry_on" in given:
        check_retry_on(given["retry_on"])
    _choose(given, "ack", late="after the run", early="before it: at most once")
    _choose(given, "on_crash", retry="at once when its worker died", wait="until its lease has ended")
    if not (isinstance(given.get("backoff", Backoff()), Backoff) or callable(given["backoff"])):
        told = describe(given["backoff"])
        raise InvalidOption(f"backoff={told}: give Backoff(...) or a callable (retry_count, error) -> delay")
    for option in ("keepalive", "timeout", "expires_in"):
        if option in given:
            given[option] = _positive(given[option], option)
    given["unique"] = read_unique(given.get("unique"))
    given["partition_by"] = _parameter(given.get("partition_by"))
    if "result_ttl" in given:
        given["result_ttl"] = seconds(given["result_ttl"], option="result_ttl")
    return JobOptions(**given)


def _periodic_options(given: dict[str, Any]) -> PeriodicOptions | None:
    if not given:
        return None
    if ("every" in given) == ("cron" in given):
        raise InvalidOption(f"options {', '.join(given)}: a periodic job takes either every=… or cron=…")
    if "tz" in given and "every" in given:
        raise InvalidOption(f"tz={describe(given['tz'])} goes with cron=…; every=… has no time zone")
    schedule = Every(given["every"]) if "every" in given else Cron(given["cron"], given.get("tz", "UTC"))
    if given.get("overlap", "skip") not in ("skip", "allow"):
        raise InvalidOption(f"overlap={describe(given['overlap'])}: choose 'skip' or 'allow'")
    return PeriodicOptions(
        schedule=schedule,
        catch_up=parse_catch_up(given.get("catch_up", "last")),
        overlap=given.get("overlap", "skip"),
        jitter=seconds(given.get("jitter", 0), option="jitter"),
    )


def _choose(given: dict[str, Any], option: str, **choices: str) -> None:
    if option in given and given[option] not in tuple(choices):  # a list has no hash to look up
        known = " or ".join(f"{choice!r} ({meaning})" for choice, meaning in choices.items())
        raise InvalidOption(f"{option}={describe(given[option])}: choose {known}")


def _parameter(name: object) -> str | None:
    if name is None or isinstance(name, str):
        return name
    raise InvalidOption(f"partition_by={describe(name)}: give the name of a parameter")


def _positive(value: object, option: str) -> float:
    length_s = seconds(value, option=option)
    if length_s <= 0:
        raise InvalidOption(f"{option}={describe(value)}: give more than 0")
    return length_s
