"""Counts and times of a worker, added to the stats on the server every few seconds.

Attempts are counted once the server's replies to their reports are known, so each count reflects the state on the
server. Invariants: each report is counted once, also when the server's reply was lost; while the server is away, counts
are kept and added up in bounded memory; counting never delays or ends the work. A killed worker loses its counts since
the last flush; the scripts themselves count totals that must be exact.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import batch_log
from jobrunner.broker.calls.stats import BUCKETS, bucket, field_of, observe
from jobrunner.broker.keys import Keys
from jobrunner.broker.shards import whole_queue
from jobrunner.clock import monotonic, perf_counter, unix_ms
from jobrunner.jobs.batch_driver import BatchEnd
from jobrunner.jobs.batch_record import BatchRecord, batch_figures, write_record
from jobrunner.jobs.registry import find
from jobrunner.outcome import (
    Acknowledged,
    Cancelled,
    Dropped,
    Failed,
    FannedOut,
    Moved,
    Outcome,
    Snoozed,
    Succeeded,
)

FLUSH_EVERY_S = 5.0
LONE_EVERY_S = 60.0
"""The interval while only round trips were counted: an idle worker has hardly anything to report."""
UNKNOWN = "unknown"
"""The type that stands for jobs unknown to this process: producers may send any type, and statistics stay on the
server."""
UNSURE = "unknown"
"""The verdict on a report whose first reply was lost, and which found no lease when it was sent again."""
_MOST_LINES = 1000
_MOST_LATE = 10_000
_LONGEST_NAME = 128
COUNTED: dict[tuple[type, str], tuple[str, ...]] = {
    (Succeeded, "ok"): ("succeeded",), (Acknowledged, "ok"): ("succeeded",), (FannedOut, "ok"): ("succeeded",),
    (Cancelled, "ok"): ("cancelled",), (Dropped, "ok"): ("dropped",), (Moved, "ok"): ("moved",),
    (Failed, "scheduled"): ("failed",), (Failed, "dead"): ("failed", "dead"), (Snoozed, "scheduled"): ("snoozed",),
    (Succeeded, UNSURE): ("succeeded",), (FannedOut, UNSURE): ("succeeded",), (Failed, UNSURE): ("failed",),
    (Cancelled, UNSURE): ("cancelled",), (Dropped, UNSURE): ("dropped",), (Moved, UNSURE): ("moved",),
    (Snoozed, UNSURE): ("snoozed",),
}  # fmt: skip
"""The counters of an outcome, by the server's answer to its report. A report whose reply was lost, and which found no
lease when it was sent again, was taken the first time, unless the lease had ended by then."""
TOO_LATE = ("gone", "not_reserved", "lost")
"""Answers to a report that changed nothing."""
_ROUND_TRIP = ("-", "-")
_LEFT = ("succeeded", "moved", "dropped", "cancelled", "dead")


class StatsRecorder:
    """Counts and times by queue and type. Filled by the fetch loop and by drivers, flushed by a loop of its own."""

    def __init__(self, broker: Broker, keys: Keys, worker_id: str) -> None:
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._lines: dict[tuple[str, str], _TypeStats] = {}
        self._unsent: list[Call[int]] = []
        self._reports = 0
        self._server_ahead_ms: float | None = None
        self._sent_at = -LONE_EVERY_S
        self._records: dict[str, deque[BatchRecord]] = {}
        self.batch_items = 0
        """Items that left their queue in batches, for the worker's last line."""
        self.late_ticks: deque[tuple[str, str, float]] = deque(maxlen=_MOST_LATE)
        """Queue, job and lateness in ms of the ticks of periodic jobs; the leader appends to it."""

    def synchronize(self, server_ms: float, within_ms: float) -> None:
        """Records that the server's clock showed this time at some moment of the last `within_ms`, the time since the
        request was sent.

        The known offset of the clock stays if it fits. A reply may be read seconds after it arrived; taken for a new
        reply it would set the clock back, so that the next reply looks new as well.
        """
        least = server_ms - perf_counter() * 1000
        ahead_ms = self._server_ahead_ms
        self._server_ahead_ms = least if ahead_ms is None else min(max(ahead_ms, least), least + within_ms)

    def age_ms(self, server_ms: float) -> float:
        """How long ago the server's clock showed this time, as far as is known; infinite before the first reading."""
        ahead_ms = self._server_ahead_ms
        return math.inf if ahead_ms is None else max(perf_counter() * 1000 + ahead_ms - server_ms, 0.0)

    def observe(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Counts reports by the server's replies. Neighbouring reports mostly belong to one job."""
        ahead_ms = self._server_ahead_ms
        line, queue, job = None, "", ""
        ran_ms: list[float] = []
        waited_ms: list[float] = []
        with self._lock:
            for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
                if line is None or attempt.type != job or attempt.queue != queue:
                    if line is not None:
                        line.note(ran_ms, waited_ms)
                    queue, job = attempt.queue, attempt.type
                    line = self._line(queue, job if not job or find(job) else UNKNOWN)
                if verdict == "ok" and type(outcome) is Succeeded:
                    line.succeeded += 1
                elif not line.count(COUNTED.get((type(outcome), verdict)), verdict):
                    continue
                if (run_s := attempt.run_s) >= 0.0:
                    ran_ms.append(run_s * 1000)
                    due_ms = attempt.due_ms or attempt.enqueue_time_ms
                    if due_ms and ahead_ms is not None:
                        waited_ms.append(attempt.began_s * 1000 + ahead_ms - due_ms)
            if line is not None:
                line.note(ran_ms, waited_ms)

    def round_trip(self, seconds: float) -> None:
        """Records the duration of an exchange with the server."""
        with self._lock:
            line = self._line(*_ROUND_TRIP)
            line.round_trip.note(seconds * 1_000_000)

    def batch(self, queue: str, end: BatchEnd) -> None:
        """Counts the items of a batch. Each item counts with its share of the batch's run time."""
        with self._lock:
            line = self._line(queue, "")
            for what, by in end.counts.items():
                line.add(what, by)
            self.batch_items += sum(by for what, by in end.counts.items() if what in _LEFT)
            if end.record is not None:
                self._records.setdefault(queue, deque(maxlen=batch_log.MOST)).append(end.record)
                self._line(queue, "-").add_record(end.record)
            if end.items:
                line.run.note(end.run_s * 1000 / end.items, end.items)
            for ms, items in end.waits_ms:
                line.wait.note(ms, items)

    def step(self) -> float:
        """Sends the counts, unless they can wait. Raises ServerError; the next call sends the rest."""
        if self._unsent or not self._can_wait():
            self.flush()
        return FLUSH_EVERY_S

    def flush(self) -> None:
        """Sends the counts. Raises ServerError."""
        with self._flushing:
            self._send()
            self._unsent = self._take()
            self._send()
            self._send_records()
            self._sent_at = monotonic()

    def _can_wait(self) -> bool:
        with self._lock:
            has_nothing_else = not self.late_ticks and self._lines.keys() <= {_ROUND_TRIP}
            return has_nothing_else and monotonic() - self._sent_at < LONE_EVERY_S

    def _send(self) -> None:
        while self._unsent:
            self._broker.run(self._unsent[0])
            self._unsent.pop(0)

    def _send_records(self) -> None:
        with self._lock:
            records, self._records = self._records, {}
        calls = [
            call
            for queue, some in records.items()
            for call in batch_log.note(self._keys.queue(queue), [write_record(one) for one in some])
        ]
        if calls:
            self._broker.run_many(calls)  # lost when the server is away: it is a log, and bounded

    def _take(self) -> list[Call[int]]:
        with self._lock:
            while self.late_ticks:
                queue, job, ms = self.late_ticks.popleft()
                self._line(queue, job).late.note(ms)
            lines, self._lines = self._lines, {}
        if not lines:
            return []
        changes = {
            field_of(*named, what): by for named, line in lines.items() for what, by in line.changes().items() if by
        }
        calls = observe(self._keys, self._now_ms(), self._worker_id, self._reports + 1, changes)
        self._reports += len(calls)
        return calls

    def _line(self, queue: str, job: str) -> "_TypeStats":
        named = (whole_queue(queue), job[:_LONGEST_NAME])
        line = self._lines.get(named)
        if line is None:
            if len(self._lines) >= _MOST_LINES and job:
                return self._line(queue, "")
            line = self._lines[named] = _TypeStats()
        return line

    def _now_ms(self) -> float:
        ahead_ms = self._server_ahead_ms
        return unix_ms() if ahead_ms is None else perf_counter() * 1000 + ahead_ms


class _TimeHistogram:
    """The sum of times and their histogram, in the unit of the recorded values, mostly milliseconds."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets = [0] * BUCKETS
        self.total = 0.0

    def note(self, ms: float, count: int = 1) -> None:
        """Adds one time, `count` times. A time below zero, from differing clocks, is possible."""
        if ms > 0.0:
            self.buckets[bucket(ms)] += count
            self.total += ms * count
        else:
            self.buckets[0] += count

    def note_all(self, times_ms: list[float]) -> None:
        """Adds many times at once, at half the cost."""
        buckets = self.buckets
        for ms in times_ms:
            buckets[bucket(ms) if ms > 0.0 else 0] += 1
        self.total += sum([ms for ms in times_ms if ms > 0.0])

    def changes(self, kind: str, to_us: int) -> dict[str, int]:
        """The counters of the statistics, by name."""
        found = {f"{kind}:{n}": by for n, by in enumerate(self.buckets) if by}
        return found | {f"{kind}_us": round(self.total * to_us)} if found else {}


class _TypeStats:
    """The counts and times of one queue and type."""

    __slots__ = ("_counts", "late", "round_trip", "run", "succeeded", "wait")

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self.succeeded = 0
        self.run, self.wait, self.late, self.round_trip = (
            _TimeHistogram(),
            _TimeHistogram(),
            _TimeHistogram(),
            _TimeHistogram(),
        )

    def add(self, what: str, by: int) -> None:
        """Adds to a counter."""
        self._counts[what] = self._counts.get(what, 0) + by

    def add_record(self, record: BatchRecord) -> None:
        """Counts an attempt at a batch."""
        for what, by in batch_figures(record).items():
            self.add(what, by)

    def note(self, ran_ms: list[float], waited_ms: list[float]) -> None:
        """Adds run times and waiting times of attempts, and empties the lists."""
        self.run.note_all(ran_ms)
        self.wait.note_all(waited_ms)
        ran_ms.clear()
        waited_ms.clear()

    def count(self, counted: tuple[str, ...] | None, verdict: str) -> bool:
        """Counts the end of an attempt; returns whether the verdict is an end."""
        if counted is not None:
            for what in counted:
                self.add(what, 1)
        elif verdict in TOO_LATE:
            self.add("stale", 1)
        return counted is not None

    def changes(self) -> dict[str, int]:
        """The counters of the statistics, by name."""
        found = dict(self._counts)
        if self.succeeded:
            found["succeeded"] = found.get("succeeded", 0) + self.succeeded
        found |= self.run.changes("run", 1000) | self.wait.changes("wait", 1000)
        return found | self.late.changes("late", 1000) | self.round_trip.changes("round_trip", 1)
