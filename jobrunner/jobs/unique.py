"""Uniqueness: which tasks of a job count as alike, and what happens to the second of two."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import msgspec

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.option_names import checks_options
from jobrunner.retry import seconds
from jobrunner.settings import Duration
from jobrunner.task import Lock

_DAY = timedelta(days=1)


@checks_options
@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """While a task of the job holds its lock, another one with the same parameters is not added.

    by        names of the parameters that count; None: all of them
    until     the lock ends when the task is "started" or "finished" (also dead, cancelled or purged), or not before
              it has "expired": at most one in `ttl`, whatever becomes of it (a throttle)
    ttl       the lock ends so long after the task was due, at the latest
    on_clash  "existing": the handle of the task that is there; "raise": DuplicateTask; "replace": the task that is
              there gets the new parameters, priority and due time, unless it has begun; "reschedule": only the new
              due time and priority (a debounce)

    Tasks are alike within one queue, or one pipeline. (The choices on a clash are Oban's and River's.)
    """

    by: Sequence[str] | None = None
    until: Literal["started", "finished", "expired"] = "finished"
    ttl: Duration = _DAY
    on_clash: Literal["existing", "raise", "replace", "reschedule"] = "existing"

    def __post_init__(self) -> None:
        if self.by is not None and not _are_names(self.by):
            raise InvalidOption(f"by={describe(self.by)}: give a list of names of parameters")
        _choose("until", self.until, ("started", "finished", "expired"))
        _choose("on_clash", self.on_clash, ("existing", "raise", "replace", "reschedule"))
        if seconds(self.ttl, option="ttl") <= 0:
            raise InvalidOption(f"ttl={describe(self.ttl)}: give more than 0")

    def check(self, parameters: Sequence[str], job: str) -> None:
        """Raises InvalidOption for a name in `by` that is no parameter of the job."""
        for name in self.by or ():
            if name not in parameters:
                raise InvalidOption(
                    f"job {job!r}: by={describe(name)} is none of its parameters {', '.join(parameters)}"
                )

    def lock(self, job: str, values: msgspec.Struct) -> Lock:
        """The lock of a task of that job with these parameters."""
        chosen = values.__struct_fields__ if self.by is None else self.by
        told = [job, {name: getattr(values, name) for name in chosen}]
        digest = hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()[:32]
        ttl_ms = max(round(seconds(self.ttl, option="ttl") * 1000), 1)
        return Lock(digest=digest, lasts=self.until, ttl_ms=ttl_ms, on_clash=self.on_clash)


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


def _choose(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidOption(f"{option}={describe(value)}: choose one of {', '.join(choices)}")
