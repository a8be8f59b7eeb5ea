"""The only module that reads the local time or sleeps.

Durations are measured on the monotonic clock. The wall clock of this machine dates ids and log lines; only the server's
clock decides whether a task is due.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from functools import partial

from jobrunner.errors import InvalidOption

# Not these functions of `time` themselves: freezegun would replace them in every module, and durations would not pass.
monotonic = partial(time.monotonic)
perf_counter = partial(time.perf_counter)
since_boot = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Seconds on a clock that also runs while the machine sleeps, which `monotonic` of Linux does not."""
process_time = time.process_time
thread_time = time.thread_time
sleep = time.sleep
time_ns = time.time_ns
_AGO = re.compile(r"(\d{1,6}(?:\.\d{1,3})?) ?(s|sec|m|min|h|d|w)(?: ago)?")
_UNIT_S = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


def unix_ms() -> int:
    """Whole milliseconds since 1970, by this machine's wall clock."""
    return time.time_ns() // 1_000_000


def utc_now() -> datetime:
    """This machine's wall clock as an aware datetime."""
    return datetime.now(UTC)


def from_ms(ms: float) -> datetime:
    """The aware UTC datetime of `ms` milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def read_instant(ms: float | str | bytes | None) -> datetime | None:
    """The instant of a number from the server, Unix ms; None for a missing or damaged number."""
    try:
        return None if ms is None else from_ms(float(ms))
    except (ValueError, OverflowError, OSError):
        return None


def instant_of(text: str, *, option: str) -> datetime | None:
    """The instant of a text: `2026-03-01T12:30Z` (UTC without a zone), `2026-03-01`, `15 min` or `2h ago`; None for ''.

    Raises InvalidOption.
    """
    text = text.strip()
    if not text:
        return None
    if (ago := _AGO.fullmatch(text)) is not None:
        return utc_now() - timedelta(seconds=float(ago[1]) * _UNIT_S[ago[2]])
    try:
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise InvalidOption(
            f"{option}={text[:60]!r} is no time: give an instant such as 2026-03-01T12:30Z, or an age such as 15 min"
        ) from None
