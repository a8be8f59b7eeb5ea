"""The running attempts, the known jobs and the memory of a worker, as its heartbeat reports them."""

import resource
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from jobrunner.attempt import Attempt
from jobrunner.client.records import TOO_MANY
from jobrunner.clock import perf_counter, unix_ms
from jobrunner.jobs.driver import CurrentBatch
from jobrunner.jobs.registry import all_jobs

MOST = 50
"""Attempts that are listed; their total is a field of its own."""
_LONGEST_NAMES = 4096


def running(held: Iterable[Attempt], batches: Iterable[tuple[str, CurrentBatch]] = ()) -> bytes:
    """JSON of the batches of drivers, with their queues, and of the attempts that have begun and not ended, longest
    running first, at most 50.

    Each is [queue, id, job, number of the attempt, when it began in Unix ms], and of a batch how many items it has.
    """
    begun = sorted(
        (attempt for attempt in held if attempt.began_s and attempt.run_s < 0), key=lambda attempt: attempt.began_s
    )
    ahead_ms = unix_ms() - perf_counter() * 1000
    found: list[tuple[object, ...]] = [
        (queue, batch.id, "", batch.attempt, round(batch.began_ms), batch.items) for queue, batch in batches
    ]
    return msgspec.json.encode(
        found[:MOST]
        + [
            (attempt.queue, attempt.id, attempt.type, attempt.number, round(attempt.began_s * 1000 + ahead_ms))
            for attempt in begun[: max(MOST - len(found), 0)]
        ]
    )


def known_types() -> str:
    """The names of the jobs that this process knows; `*` when that is above 4 KiB, as every scan reads it."""
    names = ",".join(job.name for job in all_jobs())
    return names if len(names) <= _LONGEST_NAMES else TOO_MANY


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one. Where the system has no /proc: the peak of this process,
    and 0 for another."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * resource.getpagesize()
    if pid is not None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
