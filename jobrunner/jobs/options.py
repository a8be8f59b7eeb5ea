"""The options of `@job`, checked at declaration, and uniqueness: which tasks of a job count as equal."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from jobrunner.broker.keys import check_name, split_queue
from jobrunner.codec import to_equal_json
from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.option_names import check_options, checks_options
from jobrunner.retry import Backoff, BackoffPolicy, RetryOn, check_retry_on, lease_s, positive, seconds
from jobrunner.settings import DEFAULT_RESULT_TTL_S, Duration, check_whole
from jobrunner.task import Lock, check_priority

if TYPE_CHECKING:
    from jobrunner.due_ticks import CatchUp
    from jobrunner.schedule import Schedule

_DAY = timedelta(days=1)


@checks_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """Uniqueness: while a task of the job holds its lock, another task with the same parameters is not added.

    by        names of the parameters that count; None: all of them
    until     the lock ends when the task is "started" or "finished" (also dead, cancelled or purged), or only when
              it has "expired": at most one task per `ttl`, whatever its outcome (a throttle)
    ttl       the longest time that the lock lasts after the task was due
    on_clash  "existing": returns a handle of the present task; "raise": DuplicateTask; "replace": the present task
              gets the new parameters, priority and due time, unless it has begun; "reschedule": only the new due
              time, priority and `expires_in` (a debounce)

    Tasks are compared within one queue, or one pipeline. (The choices on a clash are Oban's and River's.)
    """

    by: Sequence[str] | None = None
    until: Literal["started", "finished", "expired"] = "finished"
    ttl: Duration = _DAY
    on_clash: Literal["existing", "raise", "replace", "reschedule"] = "existing"

    def __post_init__(self) -> None:
        if self.by is not None and not _are_names(self.by):
            raise InvalidOption(f"by={describe(self.by)}: give a list of names of parameters")
        _choose_what("until", self.until, ("started", "finished", "expired"))
        _choose_what("on_clash", self.on_clash, ("existing", "raise", "replace", "reschedule"))
        if seconds(self.ttl, option="ttl") <= 0:
            raise InvalidOption(f"ttl={describe(self.ttl)}: give more than 0")

    def check(self, parameters: Sequence[str], job: str) -> None:
        """Raises InvalidOption for a name in `by` that is no parameter of the job."""
        for name in self.by or ():
            if name not in parameters:
                raise InvalidOption(
                    f"job {job!r}: by={describe(name)} is none of its parameters {', '.join(parameters)}"
                )

    def lock(self, job: str, values: msgspec.Struct, partition_by: str | None = None) -> Lock:
        """The lock of a task of that job with these parameters, one of which may be its partition key."""
        chosen = values.__struct_fields__ if self.by is None else self.by
        described = [job, {name: getattr(values, name) for name in chosen}]
        digest = hashlib.sha256(to_equal_json(described)).hexdigest()[:32]
        ttl_ms = max(round(seconds(self.ttl, option="ttl") * 1000), 1)
        return Lock(
            digest=digest, lasts=self.until, ttl_ms=ttl_ms, on_clash=self.on_clash, covers_key=partition_by in chosen
        )


def read_unique(given: Any) -> Unique | None:
    """The option `unique` of a job: True, seconds, a timedelta or a Unique. Raises InvalidOption."""
    if given is None or given is False:
        return None
    if given is True:
        return Unique()
    if isinstance(given, Unique):
        return given
    if isinstance(given, (int, float, timedelta)):
        return Unique(ttl=given)
    raise InvalidOption(f"unique={describe(given)}: give True, seconds, or Unique(…)")


def _are_names(given: object) -> bool:
    if not isinstance(given, Sequence) or isinstance(given, str):
        return False
    return all(isinstance(name, str) for name in given)


def _choose_what(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{option}={describe(value)}: choose one of {', '.join(choices)}")


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a job's tasks. Times in seconds; None means the setting of the queue, or no limit."""

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


class PeriodicOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule options of a periodic job."""

    schedule: "Schedule"
    catch_up: "CatchUp" = "last"
    overlap: str = "skip"
    jitter: float = 0.0


_PERIODIC = ("every", "cron", "tz", "catch_up", "overlap", "jitter")
_KNOWN = ("name", *JobOptions.__struct_fields__, *_PERIODIC, "poll_every")


def refuse_unknown(given: Mapping[str, Any]) -> None:
    """Raises UnknownOption for names that are no options of @job."""
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
    backoff = given.get("backoff", Backoff())
    if isinstance(backoff, type) or not (isinstance(backoff, Backoff) or callable(backoff)):
        described = describe(backoff)
        raise InvalidOption(f"backoff={described}: give Backoff(...) or a callable (retry_count, error) -> delay")
    for option in ("timeout", "expires_in"):
        if option in given:
            given[option] = positive(given[option], option)
    if "keepalive" in given:
        given["keepalive"] = lease_s(given["keepalive"])
    given["unique"] = read_unique(given.get("unique"))
    given["partition_by"] = _parameter(given.get("partition_by"))
    if "result_ttl" in given:
        given["result_ttl"] = seconds(given["result_ttl"], option="result_ttl")
    return JobOptions(**given)


def _periodic_options(given: dict[str, Any]) -> PeriodicOptions | None:
    if not given:
        return None
    from jobrunner.due_ticks import parse_catch_up, parse_overlap  # most programs declare no periodic job
    from jobrunner.schedule import schedule_of

    if ("every" in given) == ("cron" in given):
        raise InvalidOption(f"options {', '.join(given)}: a periodic job takes either every=… or cron=…")
    return PeriodicOptions(
        schedule=schedule_of(given.get("every"), given.get("cron"), given.get("tz")),
        catch_up=parse_catch_up(given.get("catch_up", "last")),
        overlap=parse_overlap(given.get("overlap", "skip")),
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
