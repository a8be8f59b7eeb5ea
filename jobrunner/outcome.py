"""Outcomes of an attempt, and the values by which a job steers them.

A job steers by returning or raising `Retry`, `Snooze`, `Fail` or `Cancel`; anything else it returns is its result,
anything else it raises is a failure. The runner turns both into one of the outcomes, and
`worker/report/report_calls.py` turns an outcome into a call. An outcome that is returned, as stations of a pipeline do,
is passed on as it is. (The idea of steering by return value is Oban's.)
"""

from datetime import timedelta
from functools import partial
from typing import Any, get_args

import msgspec

from jobrunner.option_names import checks_options
from jobrunner.retry import seconds

Delay = timedelta | int | float


class Steer(Exception):
    """The outcomes that a job returns or raises to end its attempt."""


@checks_options
class Retry(Steer):
    """Try again in `in_` (default: the job's backoff). Counts as a failed attempt."""

    def __init__(self, reason: str = "", *, in_: Delay | None = None) -> None:
        super().__init__(reason or "the job asked for a retry")
        self.delay_s = None if in_ is None else seconds(in_, option="Retry(in_=…)")


@checks_options
class Snooze(Steer):
    """Run again in `in_`. Spends no attempt and is no failure."""

    def __init__(self, *, in_: Delay) -> None:
        super().__init__("the job snoozed")
        self.delay_s = seconds(in_, option="Snooze(in_=…)")

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), in_=self.delay_s), (), vars(self)


@checks_options
class Fail(Steer):
    """Fails this attempt. With `retry=False` the task is dead at once."""

    def __init__(self, reason: str = "the job failed", *, retry: bool = True) -> None:
        super().__init__(reason)
        self.retry = retry


@checks_options
class Cancel(Steer):
    """Ends the task as cancelled, which is no failure."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


SteeringOutcome = Retry | Snooze | Fail | Cancel
"""The steering values that a job such as `-> int | Snooze` may return besides its result. A union, as type checkers
remove the members of a union, but not subclasses of a base class, from the type of the result."""


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    """Done; `result` is JSON, empty for None."""

    result: bytes = b""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """Failed; retried after `delay_s` (None: the queue's backoff) unless attempts are spent or `retry` is False."""

    error: str
    """The error in one line, then its traceback, if it has one."""
    delay_s: float | None = None
    retry: bool = True
    error_type: str = ""
    """The class with its module; empty where no exception was raised."""
    place: str = ""
    """File and function of the innermost frame of the user's code; empty where no exception was raised."""
    is_unbegun: bool = False
    """Whether it failed as no worker knew the job for too long: the next worker that does not know it waits no more."""


class Snoozed(msgspec.Struct, frozen=True, tag=True):
    """To be run again in `delay_s`; no attempt spent."""

    delay_s: float


class Cancelled(msgspec.Struct, frozen=True, tag=True):
    """Cancelled by the job itself, or on request."""

    reason: str = ""


class Released(msgspec.Struct, frozen=True, tag=True):
    """Released, untouched, to its place in line; no attempt spent."""


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """Not begun: this worker knows no job or station for the task, or (`is_unreadable`) cannot read its payload, as the
    payload store is away or a key is missing. `error` is the text of the error."""

    error: str
    is_unreadable: bool = False


class Deferred(msgspec.Struct, frozen=True, tag=True):
    """Released unbegun, for a worker that knows its job, and not handed out again before `delay_s`; no attempt
    spent."""

    delay_s: float


class Acknowledged(msgspec.Struct, frozen=True, tag=True):
    """Ended without a report: the task was acknowledged before it began (`ack="early"`)."""

    succeeded: bool = True
    error: str = ""
    """As in Failed; empty when the run did not fail."""


class Moved(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The item goes on into another queue of its pipeline, or into its own once more, under the same id."""

    queue: str
    """Full name of the target."""
    payload: bytes | None = None
    """None: unchanged."""
    encoding: str = "json"
    headers: bytes | None = None
    """JSON of all headers; None: unchanged."""
    delay_s: float = 0.0
    priority: int | None = None
    """None: as it was."""
    max_hops: int = 0
    """The number of moves after which an item is dead instead; 0: no limit."""
    waits: bool = True
    """Whether it waits for room in a full target; False: a full target accepts it all the same."""


class FannedOut(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Fan-out: the item ends as succeeded and its children become new items, all in one step.

    Their ids are derived from the item's, so a repeated report makes no second children.
    """

    children: tuple[Moved, ...]


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """Ended by a station without a result: counted as dropped, reported as cancelled."""


Outcome = (
    Succeeded
    | Failed
    | Snoozed
    | Cancelled
    | Released
    | Unknown
    | Deferred
    | Acknowledged
    | Moved
    | FannedOut
    | Dropped
)
OUTCOMES = frozenset(get_args(Outcome))
