"""Types of statistics: counts, times with percentiles, and depths, by step, by job and by queue."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from jobrunner.broker.calls.stats import BOUNDS_MS

Unit = Literal["minute", "hour"]
ENDS = ("succeeded", "failed", "cancelled", "dropped", "moved")
LEFT = ("succeeded", "cancelled", "dropped", "moved", "dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Durations: their number, their sum, and a histogram (see broker/calls/stats.py)."""

    count: int = 0
    total_ms: float = 0.0
    buckets: Mapping[int, int] = field(default_factory=dict)
    """The count of each bucket by its number, without empty buckets."""

    @property
    def mean_ms(self) -> float | None:
        """The mean in ms; None without measurements."""
        return self.total_ms / self.count if self.count else None

    @property
    def p50_ms(self) -> float | None:
        """The median in ms, exact to the width of a bucket, a factor of the square root of 2."""
        return self.percentile(0.5)

    @property
    def p95_ms(self) -> float | None:
        """The 95th percentile in ms."""
        return self.percentile(0.95)

    @property
    def p99_ms(self) -> float | None:
        """The 99th percentile in ms."""
        return self.percentile(0.99)

    def percentile(self, share: float) -> float | None:
        """The percentile, interpolated within its bucket; None without measurements."""
        below, wanted = 0, share * self.count
        for n, found in sorted(self.buckets.items()):
            if found and below + found >= wanted:
                lower = BOUNDS_MS[n - 1] if n else 0.0
                upper = BOUNDS_MS[n] if n < len(BOUNDS_MS) else lower * 2**0.5
                return lower + (upper - lower) * max(wanted - below, 0.0) / found
            below += found
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The number of tasks in each state at a sample of the leader."""

    waiting: int = 0
    scheduled: int = 0
    pending: int = 0
    dead: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCounts:
    """Statistics over a time: the number of each outcome, and wait and run times of attempts.

    Outcomes: succeeded, failed (attempts that failed), dead (tasks that became dead; their last attempt is also
    failed), cancelled, dropped, moved, snoozed, stale (reports that came too late).
    """

    counts: Mapping[str, int] = field(default_factory=dict)
    run: Timings = field(default_factory=Timings)
    wait: Timings = field(default_factory=Timings)

    @property
    def succeeded(self) -> int:
        """Attempts that succeeded."""
        return self.counts.get("succeeded", 0)

    @property
    def failed(self) -> int:
        """Attempts that failed, those of tasks that are dead now among them."""
        return self.counts.get("failed", 0)

    @property
    def dead(self) -> int:
        """Tasks that became dead."""
        return self.counts.get("dead", 0)

    @property
    def ended(self) -> int:
        """Attempts that ended, with any outcome: throughput."""
        return sum(self.counts.get(outcome, 0) for outcome in ENDS)

    @property
    def left(self) -> int:
        """Tasks that left their queue, with any outcome: done, moved, or dead."""
        return sum(self.counts.get(outcome, 0) for outcome in LEFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsStep(OutcomeCounts):
    """Statistics of one minute or hour from `start` on. `enqueued` and `depth` are of whole queues, None without a
    sample."""

    start: datetime
    enqueued: int | None = None
    depth: Depth | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsSeries:
    """Steps, oldest first and without gaps, and their sums. The last step is not over."""

    unit: Unit
    step: timedelta
    steps: tuple[StatsStep, ...]
    total: OutcomeCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStats(OutcomeCounts):
    """Statistics of one job; `type` is '' for items without one, such as items of stations."""

    queue: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(OutcomeCounts):
    """Statistics of one queue. `enqueued` is None without a sample."""

    queue: str
    enqueued: int | None = None
    course: tuple[int, ...] = ()
    """Tasks that left the queue in each step, oldest first; the last step is not over."""
