"""Chooses the ticks of a schedule to fire: missed ticks, the first tick, and the jitter of each.

Pure, as the schedules are: it never reads the clock.
"""

from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal

import msgspec

from jobrunner.errors import InvalidOption
from jobrunner.formatting import describe
from jobrunner.schedule import NEVER, Bounded, Every, Schedule, in_utc

CatchUp = Literal["none", "last"] | int

MAX_CATCH_UP = 1000
GRACE = timedelta(seconds=10)
"""How late a tick may be, and how far a clock may step back, without counting as missed or set back."""


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """The ticks to fire now, oldest first, and the instant to remember as the schedule's last tick."""

    ticks: tuple[datetime, ...]
    last: datetime


def due_ticks(
    schedule: Schedule,
    last: datetime,
    now: datetime,
    *,
    catch_up: CatchUp,
    grace: timedelta = GRACE,
) -> Due:
    """Chooses the ticks in (last, now] to fire; the others are skipped for good.

    `catch_up` "last" fires the latest tick, a number that many of the latest ticks, "none" the latest tick unless it is
    older than `grace`. `Due.last` is the latest tick, fired or not, so that the grid of an `Every` never shifts;
    without a tick, also after the clock was set back, it is `last`. Raises InvalidOption for another `catch_up`.
    """
    policy = parse_catch_up(catch_up)
    ticks = schedule.ticks_between(last, now, policy if isinstance(policy, int) else 1)
    if not ticks:
        return Due(ticks=(), last=in_utc(last))
    too_old = policy == "none" and now - ticks[-1] > grace
    return Due(ticks=() if too_old else tuple(ticks), last=ticks[-1])


def parse_catch_up(value: object) -> CatchUp:
    """Returns `value` if it is "none", "last" or a whole number from 1 to 1000; else raises InvalidOption."""
    if value == "none" or value == "last":
        return value
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_CATCH_UP:
        return value
    raise InvalidOption(f"catch_up is {describe(value)}; give 'none', 'last' or a number from 1 to {MAX_CATCH_UP}")


def parse_overlap(value: object) -> str:
    """Returns `value` if it is "skip" or "allow"; else raises InvalidOption."""
    if value == "skip" or value == "allow":
        return value
    raise InvalidOption(f"overlap={describe(value)}: choose 'skip' or 'allow'")


def last_tick_at(schedule: Schedule, later: datetime, now: datetime) -> datetime:
    """The last tick at or before `now` of a schedule whose recorded tick `later` is in the future. The grid of an
    `Every` stays as it was."""
    if isinstance(schedule, Bounded) and schedule.start is None:
        return last_tick_at(schedule.schedule, later, now)
    if not isinstance(schedule, Every):
        return in_force_from(schedule, now)
    steps = -((in_utc(now) - in_utc(later)) // schedule.interval)
    return in_utc(later) - steps * schedule.interval


def first_tick(schedule: Schedule, now: datetime) -> datetime:
    """The first tick of a schedule that never ran: at once for an interval without a start, the next matching time
    for others; NEVER when the schedule has ended."""
    if isinstance(schedule, Bounded) and schedule.start is None:
        tick = first_tick(schedule.schedule, now)
        return tick if schedule.end is None or tick <= schedule.end else NEVER
    return in_utc(now) if isinstance(schedule, Every) else schedule.next_after(in_force_from(schedule, now))


def in_force_from(schedule: Schedule, now: datetime) -> datetime:
    """The instant after which ticks count of a schedule that is in force from `now`. A start that was just now counts,
    too: `start=datetime.now(UTC)` fires at once."""
    start = schedule.start if isinstance(schedule, Bounded) else None
    if start is not None and timedelta(0) <= in_utc(now) - start <= GRACE:
        return start - timedelta(milliseconds=1)
    return in_utc(now)


def jittered(tick: datetime, jitter_s: float, key: str) -> datetime:
    """Moves `tick` into [tick, tick + jitter_s), by an offset that depends only on `key` and `tick`."""
    instant = in_utc(tick)
    span = int(jitter_s * 1_000_000)
    if span < 1:
        return instant
    seed = f"{instant.isoformat()} {key}".encode(errors="surrogatepass")
    return instant + timedelta(microseconds=int.from_bytes(blake2b(seed, digest_size=16).digest()) % span)
