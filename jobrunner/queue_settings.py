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

    Tokens flow continuously, so RateLimit(15, per=timedelta(hours=1)) gives one each 240 s. `per` is a timedelta or
    seconds, whole ones; `interval` and `interval_unit` say the same in two parts (the dequeuing settings of the Moab
    queue). Without either the interval is a second. Raises InvalidOption for both, and for what is zero or negative.
    """

    max_tokens: int
    """The most that is handed out at once, and within an interval in the long run."""
    interval: int = 1
    """How many units the interval has."""
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
    """The limit of `1000/1s`, `2000/1m` or `15/h`, as options and files name it. Raises InvalidOption."""
    found = _RATE.fullmatch(text.strip().lower())
    tokens, interval = (int(found[1]), int(found[2] or 1)) if found else (0, 0)
    if found is None or not tokens or not interval:
        raise InvalidOption(
            f"{describe(text)} is no rate; write tasks/interval, such as 1000/1s, 2000/1m or 15/h (whole numbers from "
            "1, of up to 15 and 9 digits; s, m, h)"
        )
    return RateLimit(max_tokens=tokens, interval=interval, interval_unit=_UNIT_LETTERS[found[3]])


def short_rate(rate: RateLimit) -> str:
    """As commands take and print it: 15/1h."""
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
    """Length of a lease, up to a year, unless the task or the one who reserves says otherwise; a worker renews it."""
    max_attempts: int = 5
    """Attempts after which a task is dead, unless it says otherwise itself; 0: no limit."""
    backoff: Backoff = field(default_factory=Backoff)
    """How long a failed task waits, unless its job says otherwise."""
    dead_ttl: float = 30 * 86400.0
    """How long the dead are kept; 0: they are deleted at once."""
    dead_max: int = 0
    """How many of the dead are kept at most, the newest; 0: no limit."""
    dead_letter_queue: str | None = None
    """Queue of the same pipeline that gets what would be dead here."""
    max_inflight: int = 0
    """Leases at a time, whoever holds them; 0: no limit."""
    rate: RateLimit | None = None
    """A token bucket over everything that is handed out."""
    max_inflight_per_partition: int = 0
    """Leases at a time of tasks with one partition key (`partition_by` of @job, `partition` of Item); 0: no limit."""
    rate_per_partition: RateLimit | None = None
    """A token bucket for each partition key."""
    fair: bool = False
    """Whether partition keys take turns, so that the backlog of one delays no other; each keeps its order."""
    max_size: int | None = None
    """Tasks that may be waiting and scheduled; more are refused with QueueFull."""
    expires_in: float | None = None
    """A task that was not begun so long after it was enqueued is dead, unless it says otherwise itself. A retry, and a
    task whose lease ended, was begun, and so was one that its worker handed back: this limit ends none of them. An
    item that moves on leaves a limit of its own behind; that of its next queue holds there, counted from its push."""
    history: float | None = None
    """How long finished tasks stay readable and can be replayed."""
    history_max: int | None = None
    """How many of them at most; without `history`, for a week at most."""
    partitions: int = 1
    """Over how many slots, and so nodes of a cluster, the queue is spread; 1: it is in one. See docs/queues.md."""


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
    """The settings of a queue, as `configure` takes them; None brings back the default."""

    dead_letter_queue: str | None
    partitions: int | None


def lua_defaults() -> dict[str, str]:
    """The defaults that scripts use, by the words that stand for them there."""
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
