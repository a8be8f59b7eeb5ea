"""The only place that reads the local time or sleeps.

Durations are measured on the monotonic clock. The wall clock of this machine names ids and dates log lines; whether
a task is due is decided by the server's clock alone.
"""

import time
from datetime import UTC, datetime

monotonic = time.monotonic
perf_counter = time.perf_counter
process_time = time.process_time
thread_time = time.thread_time
sleep = time.sleep
time_ns = time.time_ns


def unix_ms() -> int:
    """Whole milliseconds since 1970, by this machine's wall clock."""
    return time.time_ns() // 1_000_000


def utc_now() -> datetime:
    """This machine's wall clock as an aware datetime."""
    return datetime.now(UTC)


def from_ms(ms: float) -> datetime:
    """The aware UTC datetime of `ms` milliseconds since 1970."""
    return datetime.fromtimestamp(ms / 1000, UTC)
