"""Whether a worker process has done its share: so many tasks, or so much memory."""

import random
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from jobrunner.clock import monotonic
from jobrunner.errors import InvalidOption
from jobrunner.formatting import size
from jobrunner.logs import SafeLogger
from jobrunner.worker.settings import WorkerSettings

TAKES, READY, DUE, OVER = "takes", "ready", "due", "over"
"""Reports of a supervised worker: it takes tasks from now on, it works, it is due for recycling, its run is over."""
_COUNT_EVERY_S = 0.02
_LOOK_EVERY_S = 0.25
_SAY_EVERY_S = 60.0
_SELDOM_S = 3600.0
_SPREAD = 10
MIB = 2**20
_log = SafeLogger("jobrunner.worker")


class Recycling:
    """Decides when a worker is due for recycling. Its duties:

    1. refuses a limit of memory that is reached before any work;
    2. alone, ends the worker: after exactly `max_tasks`, or soon after its memory is above `max_memory`;
    3. with `report`, reports that it is due, again each minute, and lets it work on until its successor works. It is
       due at up to a tenth above `max_tasks`, at random, so that workers that began together are not replaced together.
    """

    def __init__(self, settings: WorkerSettings, report: Callable[[str], object] | None = None) -> None:
        self._report = report
        self._most_tasks = settings.max_tasks
        self._most_bytes = settings.max_memory
        self.exact_tasks = settings.max_tasks if report is None else 0
        """How many may be reserved in all; 0: no limit."""
        if report is not None and settings.max_tasks:
            self._most_tasks += random.randrange(settings.max_tasks // _SPREAD + 1)
        self._look_at = self._say_at = 0.0
        self._is_over = False

    @property
    def look_s(self) -> float:
        """How often `is_over` wants to be asked."""
        if self.exact_tasks:
            return _COUNT_EVERY_S
        return _LOOK_EVERY_S if self._most_tasks or self._most_bytes else _SELDOM_S

    def check(self) -> None:
        """To be called before the worker takes any work. Raises InvalidOption."""
        if self._most_bytes and (taken := resident_bytes()) >= self._most_bytes:
            raise InvalidOption(
                f"max_memory is {size(self._most_bytes)}, and the process takes {size(taken)} before any work; "
                "give more"
            )

    def take(self) -> None:
        """To be called before the worker takes its first task, which may be its end."""
        if self._report is not None:
            self._report(TAKES)

    def begin(self) -> None:
        """To be called when the worker works."""
        if self._report is not None:
            self._report(READY)

    def is_over(self, finished: int) -> bool:
        """Whether the worker is to end, after so many tasks. Cheap: memory is looked at four times a second."""
        if self.exact_tasks and finished >= self.exact_tasks:
            return True
        now = monotonic()
        if now >= self._look_at and not self._is_over:
            self._look_at = now + _LOOK_EVERY_S
            self._look(finished, now)
        return self._is_over

    def _look(self, finished: int, now: float) -> None:
        memory = resident_bytes() if self._most_bytes else 0
        is_due = memory > self._most_bytes or 0 < self._most_tasks <= finished
        if not is_due or now < self._say_at:
            return
        self._say_at = now + _SAY_EVERY_S
        memory_mib = round((memory or resident_bytes()) / MIB)
        _log.info("worker is due for recycling", finished=finished, memory_mib=memory_mib)
        if self._report is None:
            self._is_over = True
        else:
            self._report(DUE)


def resident_bytes(pid: int | None = None) -> int:
    """The resident memory of a process, by default this one. Where the system has no /proc: the peak of this process,
    and 0 for another."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1]) * resource.getpagesize()
    if pid is not None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
