"""The settings of a queue and their defaults, for Python and for the scripts."""

import re
from dataclasses import dataclass, field
from typing import TypedDict

import msgspec

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.option_names import checks_options
from jobrunner.retry import Backoff, seconds
from jobrunner.settings import DEFAULT_RESULT_TTL_S, Duration, check_whole

DEFAULT_HISTORY_S = 7 * 86400.0
"""The age limit of a history that has only `history_max`."""
_RATE = re.compile(r"([0-9]{1,15})/([0-9]{0,9})([smh])")
_UNIT_LETTERS = {"s": "SECONDS", "m": "MINUTES", "h": "HOURS"}
_UNITS_S = {"SECONDS": 1, "MINUTES": 60, "HOURS": 3600}


@checks_options
@dataclass(frozen=True, slots=True, init=False)
class RateLimit:
    """A token bucket: at most `max_tokens` at once, and an empty bucket is full again after the interval.

    Tokens flow continuously, so RateLimit(15, per=timedelta(hours=1)) gives one token each 240 s. `per` is a timedelta
    or seconds, whole seconds; `interval` and `interval_unit` express the same in two parts (the dequeuing settings of
    the Moab queue). Without either the interval is a second. Raises InvalidOption for both together, and for values
    that are not positive.
    """

    max_tokens: int
    """The most tasks that are handed out at once, and per interval in the long run."""
    interval: int = 1
    """The number of units in the interval."""
    interval_unit: str = "SECONDS"
    """SECONDS, MINUTES or HOURS."""

    def __init__(
        self,
        max_tokens: int,
        *,
        per: Duration | msgspec.UnsetType = msgspec.UNSET,
        interval: int | msgspec.UnsetType = msgspec.UNSET,
        interval_unit: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        if per is not msgspec.UNSET:
            if interval is not msgspec.UNSET or interval_unit is not msgspec.UNSET:
                raise InvalidOption(f"per={describe(per)} beside interval or interval_unit: give per alone")
            interval, interval_unit = _in_units(per)
        interval = 1 if interval is msgspec.UNSET else interval
        interval_unit = "SECONDS" if interval_unit is msgspec.UNSET else interval_unit
        if not isinstance(interval_unit, str) or interval_unit not in _UNITS_S:
            raise InvalidOption(f"interval_unit={describe(interval_unit)}: choose one of {', '.join(_UNITS_S)}")
        object.__setattr__(self, "max_tokens", check_whole(max_tokens, "max_tokens", minimum=1))
        object.__setattr__(self, "interval", check_whole(interval, "interval", minimum=1))
        object.__setattr__(self, "interval_unit", interval_unit)

    @property
    def seconds(self) -> int:
        """The time in which an empty bucket becomes full."""
        return self.interval * _UNITS_S[self.interval_unit]


def rate_of_text(text: str) -> RateLimit:
    """Parses a limit such as `1000/1s`, `2000/1m` or `15/h` of options and files. Raises InvalidOption."""
    found = _RATE.fullmatch(text.strip().lower())
    tokens, interval = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    if found is None or not tokens or not interval:
        raise InvalidOption(
            f"{describe(text)} is no rate; write tasks/interval, such as 1000/1s, 2000/1m or 15/h (whole numbers from "
            "1, of up to 15 and 9 digits; s, m, h)"
        )
    return RateLimit(max_tokens=tokens, interval=interval, interval_unit=_UNIT_LETTERS[found[3]])


def short_rate(rate: RateLimit) -> str:
    """A limit in the form of commands: 15/1h."""
    return f"{rate.max_tokens}/{rate.interval}{rate.interval_unit[0].lower()}"


def _in_units(per: object) -> tuple[int, str]:
    """(interval, unit) of a whole number of seconds, in the largest unit that fits. Raises InvalidOption."""
    length_s = seconds(per, option="per", minimum=1)
    if not length_s.is_integer():
        raise InvalidOption(f"per={describe(per)}: give whole seconds; 5 in half a second is RateLimit(10, per=1)")
    unit = next(unit for unit in ("HOURS", "MINUTES", "SECONDS") if length_s % _UNITS_S[unit] == 0)
    return int(length_s) // _UNITS_S[unit], unit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """The settings of `q.configure`. Times in seconds. Scripts get these defaults from here (see `lua_defaults`)."""

    keepalive: float = 30.0
    """Length of a lease, up to a year, unless the task or the reserve call sets another; a worker renews it."""
    max_attempts: int = 5
    """The number of attempts after which a task is dead, unless the task has its own; 0: no limit."""
    backoff: Backoff = field(default_factory=Backoff)
    """The delay of a failed task before its retry, unless its job has its own backoff."""
    dead_ttl: float = 30 * 86400.0
    """How long dead tasks are kept; 0: they are deleted at once."""
    dead_max: int = 0
    """The most dead tasks that are kept, the newest; 0: no limit."""
    dead_letter_queue: str | None = None
    """The queue of the same pipeline that gets tasks that would be dead in this queue."""
    max_inflight: int = 0
    """The most leases at a time, of all workers; 0: no limit."""
    rate: RateLimit | None = None
    """A token bucket over all tasks that are handed out."""
    max_inflight_per_partition: int = 0
    """The most leases at a time with one partition key (`partition_by` of @job, `partition` of Item); 0: no limit."""
    rate_per_partition: RateLimit | None = None
    """A token bucket for each partition key."""
    fair: bool = False
    """Whether partition keys take turns, so that the backlog of one key delays no other; each key keeps its order."""
    max_size: int | None = None
    """The most waiting and scheduled tasks; more are refused with QueueFull."""
    expires_in: float | None = None
    """How long after its enqueue a task may begin; later it is dead, unless the task has its own limit. A retry, a task
    whose lease ended, and a released task count as begun: this limit ends none of them. A move drops an item's own
    limit; the limit of its next queue holds there, counted from the item's push."""
    history: float | None = None
    """How long finished tasks stay readable and can be replayed."""
    history_max: int | None = None
    """The most finished tasks that are kept; without `history`, for a week at most."""
    partitions: int = 1
    """The number of slots, and so nodes of a cluster, over which the queue is spread; 1: it is in one slot. See
    docs/queues.md."""


class DeclarableSettings(TypedDict, total=False):
    """The settings that both `configure` and a declaration take."""

    keepalive: Duration | None
    max_attempts: int | None
    backoff: Backoff | None
    dead_ttl: Duration | None
    dead_max: int | None
    max_inflight: int | None
    rate: RateLimit | None
    max_inflight_per_partition: int | None
    rate_per_partition: RateLimit | None
    fair: bool | None
    max_size: int | None
    expires_in: Duration | None
    history: Duration | None
    history_max: int | None


class SettingKeywords(DeclarableSettings, total=False):
    """The settings of a queue, as `configure` takes them; None restores the default."""

    dead_letter_queue: str | None
    partitions: int | None


def lua_defaults() -> dict[str, str]:
    """The defaults that scripts use, by their names in the scripts."""
    queue = QueueSettings()
    defaults = {
        "DEFAULT_MAX_ATTEMPTS": queue.max_attempts,
        "DEFAULT_KEEPALIVE_MS": queue.keepalive * 1000,
        "DEFAULT_DEAD_TTL_MS": queue.dead_ttl * 1000,
        "DEFAULT_DEAD_MAX": queue.dead_max,
        "DEFAULT_RESULT_TTL_MS": DEFAULT_RESULT_TTL_S * 1000,
        "DEFAULT_HISTORY_MS": DEFAULT_HISTORY_S * 1000,
    }
    return {word: f"{value:.0f}" for word, value in defaults.items()}
