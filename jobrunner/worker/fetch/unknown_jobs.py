"""Tasks of jobs that this worker does not know: handed back, as another worker may know them.

While a deploy rolls, or where two services share a queue, such a task is another worker's. It goes back with a delay
that grows with its age, and spends no attempt. It fails as usual only when no worker took it for a day.
"""

import math
import random

from jobrunner.attempt import Attempt
from jobrunner.clock import monotonic
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Deferred, Failed, Unknown

_SHORTEST_S = 1.0
_LONGEST_S = 30.0
_SHARE = 0.5
_GRID_S = 0.5
"""Due times are rounded to this grid, so that a worker reserves and releases many such tasks in one call."""
_LOG_EVERY_S = 60.0
_MOST_NAMES = 1000
_log = SafeLogger("jobrunner.worker")


class UnknownJobs:
    """Decides what becomes of such tasks: handed back for `grace_s` seconds since one was first met by any worker, then
    failed. Logs a line for each job and queue a minute."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._counted: dict[tuple[str, str], int] = {}
        self._told_at: dict[tuple[str, str], float] = {}

    def settle(self, attempt: Attempt, outcome: Unknown) -> Deferred | Failed:
        """Returns the outcome to report for an attempt that could not be made here."""
        now_ms = attempt.deadline_ms - attempt.keepalive_ms
        age_s = max((now_ms - attempt.unknown_since_ms) / 1000, 0.0) if attempt.unknown_since_ms else 0.0
        if age_s >= self._grace_s:
            return Failed(outcome.error)
        self._tell(attempt)
        delay_s = min(max(age_s * _SHARE, _SHORTEST_S), _LONGEST_S) * random.uniform(0.5, 1.0)
        due_s = math.ceil((now_ms / 1000 + delay_s) / _GRID_S) * _GRID_S
        return Deferred(min(due_s - now_ms / 1000, self._grace_s - age_s))

    def _tell(self, attempt: Attempt) -> None:
        if len(self._told_at) > _MOST_NAMES:
            self._told_at.clear()
            self._counted.clear()
        named = (attempt.queue, attempt.type)
        self._counted[named] = self._counted.get(named, 0) + 1
        now = monotonic()
        if now - self._told_at.get(named, -_LOG_EVERY_S) < _LOG_EVERY_S:
            return
        self._told_at[named] = now
        what = {"job": attempt.type} if attempt.type else {}
        _log.warning(
            "this worker does not know the job: its tasks are handed back, for another worker", **what,
            queue=attempt.queue, tasks=self._counted.pop(named), task=attempt.id,
        )  # fmt: skip
