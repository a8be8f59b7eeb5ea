"""The options of one enqueue; the job's options are their defaults.

Options for the server are fields of the task. A task's own timeout and result_ttl, which only the worker needs, travel
in its headers.
"""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypedDict

import msgspec

from jobrunner.client.item import read_headers, write_headers
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.formatting import describe
from jobrunner.option_names import check_options
from jobrunner.retry import positive, seconds
from jobrunner.settings import Duration


class EnqueueKeywords(TypedDict, total=False):
    """The options of one enqueue, as `enqueue`, `using` and `enqueue_many` take them. The job's declaration holds for
    None and for options that are left out.

    in_           delay before the task is due
    at            the aware datetime at which it is due
    priority      0 to 2, higher first
    queue         another queue than that of the job
    id            an id of your own: a repeated id adds no second task
    expires_in    a task not started by then goes to dead
    max_attempts  tries before the task is dead; 1 = no retry, 0 = no limit
    timeout       of one attempt
    result_ttl    how long the finished task stays readable; 0 deletes at once
    headers       strings by name that travel with the task
    wait          how long to wait for room in a full queue, at most
    """

    in_: Duration | None
    at: datetime | float | None
    priority: int | None
    queue: str | None
    id: str | None
    expires_in: Duration | None
    max_attempts: int | None
    timeout: Duration | None
    result_ttl: Duration | None
    headers: Mapping[str, str] | None
    wait: Duration | None


class EnqueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one enqueue as one value; see EnqueueKeywords."""

    in_: Duration | None = None
    at: datetime | float | None = None
    priority: int | None = None
    queue: str | None = None
    id: str | None = None
    expires_in: Duration | None = None
    max_attempts: int | None = None
    timeout: Duration | None = None
    result_ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    wait: Duration | None = None

    @property
    def max_wait(self) -> Duration:
        """The option `wait`; 0 when it is not set."""
        return 0 if self.wait is None else self.wait

    def over(self, base: "EnqueueOptions") -> "EnqueueOptions":
        """These options, with the options of `base` for those not set. Headers are merged."""
        if base is NOW or self is NOW:
            return self if base is NOW else base
        given = {name: value for name in OPTIONS if (value := getattr(self, name)) is not None}
        if "in_" in given or "at" in given:  # either of them sets the due time
            given |= {"in_": self.in_, "at": self.at}
        if isinstance(self.headers, Mapping) and isinstance(base.headers, Mapping):
            given["headers"] = {**base.headers, **self.headers}
        return msgspec.structs.replace(base, **given)


NOW = EnqueueOptions()
OPTIONS = EnqueueOptions.__struct_fields__
"""Names of the options that an enqueue accepts."""


def read_options(given: Mapping[str, Any], where: str, job: Any = None) -> EnqueueOptions:
    """The options of a call, by its object if that is a job. Raises UnknownOption; their values are checked when a task
    is made."""
    if not given:
        return NOW
    try:
        return EnqueueOptions(**given)
    except TypeError:
        for name in given:
            if name not in OPTIONS and name in getattr(job, "__struct_fields__", ()):
                call = f"{type(job).__name__}({name}=…).{where.rpartition('.')[2]}()"
                raise UnknownOption(f"unknown option {name!r} of {where}(); it is a parameter: write {call}") from None
        check_options(given, OPTIONS, f"option of {where}()")
        raise


_OWN: Final = "jobrunner."
"""The prefix of headers with options of one task. Few tasks have such options; fields of their own would be read with
every task that was delayed or failed before."""
_TIMEOUT, _RESULT_TTL = f"{_OWN}timeout", f"{_OWN}result_ttl"
_MARK: Final = f'"{_OWN}'.encode()


def own_headers(chosen: EnqueueOptions) -> bytes | None:
    """The headers of a task with these options, including its own timeout and result_ttl. Raises InvalidOption."""
    headers: dict[str, str] = {}
    if chosen.headers is not None:
        write_headers(chosen.headers)  # checks them
        headers = dict(chosen.headers)
        if taken := next((name for name in headers if name.startswith(_OWN)), None):
            raise InvalidOption(f"header {describe(taken)}: names that begin with {_OWN!r} are reserved; rename it")
    if chosen.timeout is not None:
        headers[_TIMEOUT] = repr(positive(chosen.timeout, "timeout"))
    if chosen.result_ttl is not None:
        headers[_RESULT_TTL] = repr(seconds(chosen.result_ttl, option="result_ttl"))
    return write_headers(headers) if headers else None


def own_timeout(headers: bytes | None) -> float | None:
    """The task's own timeout, in seconds; None without one."""
    return _own_seconds(headers, _TIMEOUT)


def own_result_ttl(headers: bytes | None) -> float | None:
    """The task's own result_ttl, in seconds; None without one."""
    return _own_seconds(headers, _RESULT_TTL)


def without_own(headers: dict[str, str]) -> dict[str, str]:
    """The headers that the program set."""
    return {name: value for name, value in headers.items() if not name.startswith(_OWN)}


def _own_seconds(headers: bytes | None, name: str) -> float | None:
    if not headers or _MARK not in headers:
        return None
    try:
        found = float(read_headers(headers)[name])
    except (KeyError, ValueError):
        return None
    return found if 0 <= found < math.inf else None
