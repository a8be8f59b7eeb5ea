"""Schedules of periodic jobs: `Every` (a fixed interval), `Cron` (wall-clock fields in a time zone), and `Bounded`
(either of them within a span of time).

Pure: instants come in as aware datetimes and go out in UTC; no function reads the clock. Invariants: a schedule gives
the same ticks in every process, the next tick is strictly later than the argument, and the cost of a call does not
depend on the number of missed ticks.

Cron follows the rules of Vixie cron (cron(8)) where the clocks change, told apart by the hour field:

- *fixed*: it has no `*` and does not name all 24 hours. A repeated time fires once, at its first occurrence. A skipped
  time fires at the end of the gap, the first instant that exists; several times skipped by one gap fire once together.
- *wildcard*, all others: real elapsed time counts. A repeated time fires twice, a skipped time never.

The fields are minute, hour, day of month, month, day of week and, if there is a sixth, **second last**.
croniter matches them, but on wall-clock time without a zone: with one it fires a fixed time twice in a
repeated hour. Wall clock and instant are mapped to each other with `fold` (PEP 495).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from jobrunner.errors import InvalidOption, NaiveDatetime
from jobrunner.formatting import describe

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# Every tick is a task written to the server; work that must run more often is a loop inside one task.
_SHORTEST, _LONGEST = timedelta(milliseconds=100), timedelta(days=36_525)
_SECOND, _MILLISECOND, _MICROSECOND = timedelta(seconds=1), timedelta(milliseconds=1), timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = datetime.max.replace(tzinfo=UTC)
"""The next tick of a schedule that has ended."""
_MAX_LENGTH = 256
_FIELDS = re.compile(r"[0-9a-z*/,#?-]+([ \t]+[0-9a-z*/,#?-]+){4,5}", re.IGNORECASE | re.ASCII)
_SIZES = (60, 24, 31, 12, 7, 60)
_SAME_ENDS = re.compile(r"(?:^|(?<=,))0*(\w+)-0*\1(?:/\d+)?(?=,|$)", re.IGNORECASE | re.ASCII)
_VALUES = (
    ("minute", "0-59"), ("hour", "0-23"), ("day", "1-31"), ("month", "1-12 or jan-dec"), ("weekday", "0-7 or sun-sat"),
    ("second", "0-59"),
)  # fmt: skip
_NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")


@dataclass(frozen=True, slots=True, init=False)
class Every:
    """Fires `interval` after each tick: a timedelta or seconds, 0.1 s to a century, else InvalidOption."""

    interval: timedelta

    def __init__(self, interval: timedelta | float) -> None:
        object.__setattr__(self, "interval", _interval(interval))

    def next_after(self, instant: datetime) -> datetime:
        """The tick that follows a tick at `instant`."""
        return in_utc(instant) + self.interval

    def ticks_between(self, last: datetime, now: datetime, limit: int) -> list[datetime]:
        """The latest ticks of the grid last + k × interval in (last, now], oldest first, at most `limit`."""
        start = in_utc(last)
        count = max((in_utc(now) - start) // self.interval, 0)
        return [start + k * self.interval for k in range(max(count - limit, 0) + 1, count + 1)]

    def describe(self) -> str:
        """The schedule in words: "every 5 minutes"."""
        return _in_words(self.interval)

    def spec(self) -> dict[str, str | float]:
        """The specification that `parse_spec` rebuilds this schedule from; JSON-able, the interval in seconds."""
        return {"every": self.interval.total_seconds()}


@dataclass(frozen=True, slots=True)
class Cron:
    """Fires at the times of `expression` in zone `tz`: five fields, six with seconds last, `@daily` and kin.

    When both fields for days are given, either may match. Raises InvalidOption for an expression that cannot
    be read, never fires or means something else in each process (`@reboot`, `R`, `H`), and for an unknown
    zone.
    """

    expression: str
    tz: str = "UTC"
    _zone: "ZoneInfo" = field(init=False, repr=False, compare=False)
    _matcher: Any = field(init=False, repr=False, compare=False)
    _fixed: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        fields = _fields(self.expression)
        object.__setattr__(self, "expression", " ".join(fields))
        object.__setattr__(self, "_zone", _zone(self.tz))
        object.__setattr__(self, "_matcher", _matcher(self.expression))
        object.__setattr__(self, "_fixed", "*" not in fields[1] and self._matcher.expanded[1] != ["*"])

    def next_after(self, instant: datetime) -> datetime:
        """The first tick strictly later than `instant`."""
        now, wall, fold = self._read(instant)
        repeated = _change_at(wall, self._zone)
        if repeated and self._fixed and fold == 1:
            wall = repeated.end - _SECOND
        match = self._match_after(wall)
        if repeated and not self._fixed and fold == 0 and match >= repeated.end:
            match = self._match_after(repeated.start - _SECOND)
        while (gap := self._gap_at(match)) and not self._fixed:
            match = self._match_after(gap.end - _SECOND)
        first, second = _instants(match, self._zone)
        return gap.instant if gap else first if self._fixed or first > now else second

    def last_until(self, instant: datetime) -> datetime:
        """The latest tick at or before `instant`."""
        now, wall, fold = self._read(instant)
        repeated = _change_at(wall, self._zone)
        if repeated and self._fixed and fold == 1:
            wall = repeated.end - _SECOND
        match = self._match_until(wall)
        if repeated and not self._fixed and fold == 1 and match < repeated.start:
            match = self._match_until(repeated.end - _SECOND)
        while (gap := self._gap_at(match)) and not self._fixed:
            match = self._match_until(gap.start - _SECOND)
        first, second = _instants(match, self._zone)
        return gap.instant if gap else first if self._fixed or second > now else second

    def ticks_between(self, last: datetime, now: datetime, limit: int) -> list[datetime]:
        """The latest ticks in (last, now], oldest first, at most `limit`, by walking back from `now`."""
        start, tick = in_utc(last), self.last_until(now)
        ticks: list[datetime] = []
        while tick > start and len(ticks) < limit:
            ticks.append(tick)
            tick = self.last_until(tick - _SECOND)
        return ticks[::-1]

    def describe(self) -> str:
        """The schedule in words where simple ("at 03:00 in Europe/Madrid"), else its expression and zone."""
        minute, hour, *others = self.expression.split()
        if minute.isdecimal() and hour.isdecimal() and (days := _days_in_words(others)) is not None:
            return f"at {int(hour):02}:{int(minute):02}{days} in {self.tz}"
        if others == ["*"] * 3 and hour == "*":
            step = re.fullmatch(r"\*(?:/(\d+))?", minute)
            if step and 60 % int(step[1] or 1) == 0:
                return _in_words(timedelta(minutes=int(step[1] or 1)))
            if minute.isdecimal():
                return f"every hour at minute {int(minute)} in {self.tz}"
        return f"cron {self.expression} in {self.tz}"

    def spec(self) -> dict[str, str | float]:
        """The specification that `parse_spec` rebuilds this schedule from; JSON-able."""
        return {"cron": self.expression, "tz": self.tz}

    def _read(self, instant: datetime) -> tuple[datetime, datetime, int]:
        """The instant in UTC, its wall clock and its fold; in whole seconds, as every tick is."""
        now = in_utc(instant).replace(microsecond=0)
        local = now.astimezone(self._zone)
        return now, local.replace(tzinfo=None, fold=0), local.fold

    def _match_after(self, wall: datetime) -> datetime:
        # A croniter keeps its position in itself: a copy per question lets threads share one schedule.
        match: datetime = copy(self._matcher).get_next(datetime, start_time=wall)
        return match

    def _match_until(self, wall: datetime) -> datetime:
        match: datetime = copy(self._matcher).get_prev(datetime, start_time=wall + _SECOND)
        return match

    def _gap_at(self, wall: datetime) -> "_Change | None":
        change = _change_at(wall, self._zone)
        return change if change and change.forward else None


@dataclass(frozen=True, slots=True)
class Bounded:
    """Fires the ticks of `schedule` from `start` to `end`, both included; ticks of an interval count from `start`.

    Both are whole milliseconds, as ticks are stored. Raises InvalidOption for an end before the start, and for an
    interval with a start that is no whole number of milliseconds; NaiveDatetime.
    """

    schedule: Every | Cron
    start: datetime | None = None
    end: datetime | None = None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if (bound := getattr(self, name)) is not None:
                object.__setattr__(self, name, _bound(bound, name))
        if self.start is not None and self.end is not None and self.end < self.start:
            raise InvalidOption(f"end={self.end.isoformat()} is before start={self.start.isoformat()}: no tick fires")
        if self.start is not None and isinstance(self.schedule, Every) and self.schedule.interval % _MILLISECOND:
            raise InvalidOption(f"every={self.schedule.interval} with start=…: give whole milliseconds")

    def next_after(self, instant: datetime) -> datetime:
        """The first tick strictly later than `instant`; NEVER without one."""
        now, start = in_utc(instant), self.start
        if start is None or (now >= start and isinstance(self.schedule, Cron)):
            tick = self.schedule.next_after(now)
        elif isinstance(self.schedule, Cron):
            tick = self.schedule.next_after(start - _MICROSECOND)
        else:
            tick = start + max((now - start) // self.schedule.interval + 1, 0) * self.schedule.interval
        return tick if self.end is None or tick <= self.end else NEVER

    def ticks_between(self, last: datetime, now: datetime, limit: int) -> list[datetime]:
        """The latest ticks in (last, now], oldest first, at most `limit`."""
        after, until, start = in_utc(last), in_utc(now), self.start
        until = until if self.end is None else min(until, self.end)
        if start is None:
            return self.schedule.ticks_between(after, until, limit)
        if isinstance(self.schedule, Cron):
            return self.schedule.ticks_between(max(after, start - _MICROSECOND), until, limit)
        interval = self.schedule.interval
        first, newest = max((after - start) // interval + 1, 0), (until - start) // interval
        return [start + k * interval for k in range(max(first, newest + 1 - limit), newest + 1)]

    def describe(self) -> str:
        """The schedule in words, with its bounds."""
        words = [self.schedule.describe()]
        for word, bound in (("from", self.start), ("until", self.end)):
            if bound is not None:
                words.append(f"{word} {bound.replace(tzinfo=None).isoformat(' ', 'auto').removesuffix(':00')} UTC")
        return " ".join(words)

    def spec(self) -> dict[str, str | float]:
        """The specification that `parse_spec` rebuilds this schedule from; the bounds in Unix ms."""
        bounds = {"start": self.start, "end": self.end}
        return self.schedule.spec() | {
            name: float((bound - _EPOCH) // _MILLISECOND) for name, bound in bounds.items() if bound is not None
        }


Schedule = Every | Cron | Bounded


def bounded(schedule: Every | Cron, start: datetime | None, end: datetime | None) -> Schedule:
    """The schedule within these bounds. Raises InvalidOption, NaiveDatetime."""
    return schedule if start is None and end is None else Bounded(schedule, start, end)


def schedule_of(every: timedelta | float | None, cron: str | None, tz: str | None) -> Every | Cron:
    """The schedule of the options of a periodic job. Raises InvalidOption when these do not make one."""
    if (every is None) == (cron is None):
        both = "no schedule" if every is None else f"every={describe(every)} and cron={describe(cron)}"
        raise InvalidOption(f"{both}: a periodic job takes either every=… or cron=…")
    if every is None:
        assert cron is not None
        return Cron(cron, "UTC" if tz is None else tz)
    if tz is not None:
        raise InvalidOption(f"tz={describe(tz)} goes with cron=…; every=… has no time zone")
    return Every(every)


def parse_spec(spec: Mapping[str, object]) -> Schedule:
    """Rebuilds a schedule from its `spec()`; raises InvalidOption when it is not one."""
    match spec:
        case {"start": _, **inner} | {"end": _, **inner}:
            bounds = {name: _of_ms(spec[name], name) for name in ("start", "end") if name in spec}
            schedule = parse_spec({name: value for name, value in inner.items() if name not in bounds})
            assert not isinstance(schedule, Bounded), "its bounds are taken away"
            return Bounded(schedule, **bounds)
        case {"every": int() | float() as interval} if len(spec) == 1:
            return Every(interval)
        case {"cron": str(expression), "tz": str(tz)} if len(spec) == 2:
            return _cron(expression, tz)
    raise InvalidOption(f"schedule is {describe(spec)}; give {{'every': seconds}} or {{'cron': …, 'tz': …}}")


@lru_cache(maxsize=4096)
def _cron(expression: str, tz: str) -> Cron:
    """A cached Cron: parsing takes most of a millisecond, and a leader reads the schedules of all jobs in each turn. A
    Cron does not change, so all callers may share it."""
    return Cron(expression, tz)


class _Change(msgspec.Struct, frozen=True, kw_only=True):
    """One change of the clocks: its instant, and the wall-clock times [start, end) that it skips or repeats."""

    instant: datetime
    start: datetime
    end: datetime
    forward: bool


def _change_at(wall: datetime, zone: "ZoneInfo") -> _Change | None:
    """The change that skips or repeats this wall-clock time; None for a time that exists once."""
    first, second = _instants(wall, zone)
    if first == second:
        return None
    low, high = sorted((first, second))
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        unchanged = middle.astimezone(zone).replace(tzinfo=None) - wall == middle - first
        low, high = (middle, high) if unchanged else (low, middle)
    start, end = sorted((wall + (high - first), wall + (high - second)))
    return _Change(instant=high, start=start, end=end, forward=second < first)


def _instants(wall: datetime, zone: "ZoneInfo") -> tuple[datetime, datetime]:
    """The instants of a wall-clock time by the offsets before and after a change, where one is near."""
    local = wall.replace(tzinfo=zone)
    return local.astimezone(UTC), local.replace(fold=1).astimezone(UTC)


def in_utc(instant: datetime) -> datetime:
    """The instant in UTC; raises NaiveDatetime for one without a time zone."""
    if instant.utcoffset() is None:
        raise NaiveDatetime(f"{describe(instant)} has no time zone; give an aware datetime, such as datetime.now(UTC)")
    return instant.astimezone(UTC)


def _bound(value: object, name: str) -> datetime:
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name}={describe(value)}: give an aware datetime: datetime(2030, 1, 1, tzinfo=UTC)")
    instant = in_utc(value)
    return instant - timedelta(microseconds=instant.microsecond % 1000)


def _of_ms(value: object, name: str) -> datetime:
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        with suppress(OverflowError, ValueError):
            return _EPOCH + timedelta(milliseconds=value)
    raise InvalidOption(f"{name} of a schedule is {describe(value)}; give Unix milliseconds")


def _interval(value: object) -> timedelta:
    try:
        interval = value if isinstance(value, timedelta) else timedelta(seconds=value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        interval = timedelta(0)
    if isinstance(value, bool) or not _SHORTEST <= interval <= _LONGEST:
        raise InvalidOption(f"every is {describe(value)}; give a timedelta or seconds, from 0.1 s to a century")
    return interval


def _days_in_words(fields: list[str]) -> str | None:
    """Day of month, month and day of week: " on Monday and Friday"; '' for every day, None where it is not simple."""
    day, *months = fields[:2]
    if len(fields) != 3 or months != ["*"] or (day != "*" and fields[2] != "*"):
        return None
    if day != "*":
        return f" on day {int(day)} of the month" if day.isdecimal() else None
    if fields[2] == "*":
        return ""
    named = [_weekday(word) for word in re.split("[-,]", fields[2])]
    if "" in named or ("-" in fields[2] and len(named) != 2):
        return None
    if "-" in fields[2] or len(named) == 1:
        return " from " + " to ".join(named) if len(named) == 2 else f" on {named[0]}"
    return f" on {', '.join(named[:-1])} and {named[-1]}"


def _weekday(word: str) -> str:
    """The name of a day of the week; '' for another word."""
    if word.isdecimal():
        return _WEEKDAYS[int(word) % 7] if int(word) <= 7 else ""
    return next((name for name in _WEEKDAYS if name[:3].lower() == word.lower()), "")


def _in_words(interval: timedelta) -> str:
    for unit in ("day", "hour", "minute", "second"):
        count, rest = divmod(interval, timedelta(**{f"{unit}s": 1}))
        if count and not rest:
            return f"every {unit}" if count == 1 else f"every {count} {unit}s"
    return f"every {interval.total_seconds()} seconds"


def _fields(expression: object) -> list[str]:
    text = expression.strip() if isinstance(expression, str) else ""
    text = _NICKNAMES.get(text.lower(), text)
    if len(text) > _MAX_LENGTH or not _FIELDS.fullmatch(text):
        raise InvalidOption(
            f"cron is {describe(expression)}; give minute hour day month weekday, second sixth if need be, "
            f"in at most {_MAX_LENGTH} characters"
        )
    fields = text.lower().split()
    if any(part[0] in "rh" for part in fields):
        # croniter draws R anew in each process and has no identity to hash H from.
        raise InvalidOption(f"cron is {text!r}; give numbers in place of R and H, or the option jitter")
    if len(fields) == 6 and fields[0].isdecimal() and fields[5] in "*?":
        # Quartz, Spring, node-cron and BullMQ have the second first: a job would run 60 times, on other days.
        meant = " ".join([*text.split()[1:], fields[0]])
        raise InvalidOption(
            f"cron is {text!r}, which would fire in each second of a minute, as the sixth field is the second; if the "
            f"first one is meant to be, write {meant!r}, else 0-59"
        )
    for part, size in zip(fields, _SIZES, strict=False):
        if any(int(step) > size for step in re.findall(r"/(\d+)", part)):
            # As each hour begins anew, */90 would be once an hour: no field counts on over its end.
            raise InvalidOption(
                f"cron is {text!r}: the step in {part!r} is longer than that field, which has {size} values; give "
                "every=timedelta(…) for an interval"
            )
    nearest_or_nth = "w" in fields[2] or re.search(r"#|l\d", fields[4])
    if nearest_or_nth and fields[2] not in "*?" and fields[4] not in "*?":
        # croniter neither joins nor intersects these: it drops one of the two fields.
        raise InvalidOption(f"cron is {text!r}; give * for one of the two day fields beside #, L or W")
    # croniter lets a range end before it begins, and goes once round for 10-10: every hour, where cron(8) means one.
    return [_SAME_ENDS.sub(r"\1", part) for part in text.split()]


def _matcher(expression: str) -> Any:
    # Imported here: it takes longer to import than the rest of the package and few programs use cron.
    from croniter import CroniterBadDateError, croniter

    try:
        matcher = croniter(expression, datetime(2000, 1, 1), ret_type=datetime)  # noqa: DTZ001
        matcher.get_next()
    except CroniterBadDateError as error:
        raise InvalidOption(f"cron {expression!r} never fires; give a day that its months have") from error
    except (ValueError, TypeError, LookupError, ArithmeticError) as error:
        raise InvalidOption(f"cron is {expression!r}{_wrong_field(expression)}") from error
    return matcher


def _wrong_field(expression: str) -> str:
    """The field that croniter refuses, and its valid values: croniter's error names only the expression."""
    from croniter import croniter

    fields = expression.split()
    for place, (name, values) in enumerate(_VALUES[: len(fields)]):
        alone = ["*"] * len(fields)
        alone[place] = fields[place]
        if not croniter.is_valid(" ".join(alone)):
            return f": its {name} is {fields[place]!r}; give {values}"
    return ", whose fields do not fit together; give minute hour day month weekday, second sixth if need be"


def _zone(name: object) -> "ZoneInfo":
    # Names of the packaged list only: `localtime` is another zone on another machine.
    from difflib import get_close_matches  # most programs name no zone
    from zoneinfo import ZoneInfo

    known = _known_zones()
    if isinstance(name, str) and name in known:
        return ZoneInfo(name)
    key = getattr(name, "key", name)  # that of a ZoneInfo
    wanted = key[:40].strip().lower() if isinstance(key, str) else ""
    # CEST is no zone. EST is the most similar name, and wrong: it has no summer time.
    lowered = {zone.lower(): zone for zone in known if "/" in zone or zone.lower() == wanted}
    near = get_close_matches(wanted, lowered, n=1, cutoff=0.5)
    nearest = lowered[near[0]] if near else "Europe/Berlin"
    raise InvalidOption(f"tz is {describe(name)}, no known zone; give an IANA name such as {nearest!r}")


@cache
def _known_zones() -> tuple[str, ...]:
    from pkgutil import get_data

    return tuple((get_data("tzdata", "zones") or b"").decode().split())
