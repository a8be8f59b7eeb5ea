"""What a worker says of what it runs at this moment, and of the memory it takes."""

import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.clock import perf_counter, unix_ms

MOST = 50
"""Attempts that are named; how many there are in all is said beside."""
_STATUS = Path("/proc/self/statm")


def running(held: Iterable[Attempt]) -> bytes:
    """JSON of the attempts that have begun and not ended, longest running first, at most 50.

    Each is [queue, id, job, number of the attempt, when it began in Unix ms].
    """
    begun = sorted(
        (attempt for attempt in held if attempt.began_s and attempt.run_s < 0), key=lambda attempt: attempt.began_s
    )
    ahead_ms = unix_ms() - perf_counter() * 1000
    return msgspec.json.encode(
        [
            (attempt.queue, attempt.id, attempt.type, attempt.number, round(attempt.began_s * 1000 + ahead_ms))
            for attempt in begun[:MOST]
        ]
    )


def resident_bytes() -> int:
    """How much memory this process has now; where the system does not tell, the most it ever had."""
    with suppress(OSError, IndexError, ValueError):
        return int(_STATUS.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
