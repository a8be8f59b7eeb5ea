"""What a worker counts and measures, added to the figures on the server every few seconds.

Counting is done where the answers to reports are known, so a figure says what became of an attempt on the server. What
must hold: each report is counted once, also when the answer of the server was lost; while the server is away figures
are kept and added up, in bounded memory; they never hold up or end the work. A worker that is killed takes what it
counted since its last flush with it; totals that must be exact are counted by the scripts themselves.
"""

import threading
from collections.abc import Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls.figures import BUCKETS, bucket, field_of, observe
from jobrunner.broker.keys import Keys
from jobrunner.clock import perf_counter, unix_ms
from jobrunner.outcome import (
    Acknowledged,
    Cancelled,
    Dropped,
    Failed,
    Moved,
    Outcome,
    Snoozed,
    Spread,
    Succeeded,
)

FLUSH_EVERY_S = 5.0
_MOST_LINES = 1000
_LONGEST_NAME = 128
_COUNTED: dict[tuple[type, str], tuple[str, ...]] = {
    (Succeeded, "ok"): ("succeeded",), (Acknowledged, "ok"): ("succeeded",), (Spread, "ok"): ("succeeded",),
    (Cancelled, "ok"): ("cancelled",), (Dropped, "ok"): ("dropped",), (Moved, "ok"): ("moved",),
    (Failed, "scheduled"): ("failed",), (Failed, "dead"): ("failed", "dead"), (Snoozed, "scheduled"): ("snoozed",),
}  # fmt: skip
_TOO_LATE = ("gone", "not_reserved", "lost")
_ROUND_TRIP = ("-", "-")


class Figures:
    """Counts and times by queue and type. Filled by the fetch loop and by drivers, flushed by a loop of its own."""

    def __init__(self, broker: Broker, keys: Keys, worker_id: str) -> None:
        self._broker = broker
        self._keys = keys
        self._worker_id = worker_id
        self._lock = threading.Lock()
        self._flushing = threading.Lock()
        self._lines: dict[tuple[str, str], _Line] = {}
        self._unsent: list[Call[int]] = []
        self._reports = 0
        self._server_ahead_ms: float | None = None

    def synchronize(self, server_ms: float) -> None:
        """Notes the server's clock, as an answer that just came said it."""
        self._server_ahead_ms = server_ms - perf_counter() * 1000

    def observe(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Counts reports by what the server answered."""
        ahead_ms = self._server_ahead_ms
        with self._lock:
            for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
                counted = _COUNTED.get((type(outcome), verdict))
                if counted is not None:
                    line = self._line(attempt.queue, attempt.type)
                    for what in counted:
                        line.counts[what] = line.counts.get(what, 0) + 1
                    if attempt.run_s >= 0.0:
                        line.note("run", attempt.run_s * 1000)
                        if ahead_ms is not None and (due_ms := attempt.due_ms or attempt.enqueue_time_ms):
                            line.note("wait", max(attempt.began_s * 1000 + ahead_ms - due_ms, 0.0))
                elif verdict in _TOO_LATE:
                    counts = self._line(attempt.queue, attempt.type).counts
                    counts["stale"] = counts.get("stale", 0) + 1

    def round_trip(self, seconds: float) -> None:
        """Notes how long an exchange with the server took."""
        with self._lock:
            self._line(*_ROUND_TRIP).note("round_trip", seconds * 1000, per_ms=1000)

    def late(self, queue: str, job: str, ms: float) -> None:
        """Notes how long after its tick a periodic job was fired."""
        with self._lock:
            self._line(queue, job).note("late", max(ms, 0.0))

    def count(self, queue: str, what: str, by: int) -> None:
        """Counts items of a driver."""
        with self._lock:
            counts = self._line(queue, "").counts
            counts[what] = counts.get(what, 0) + by

    def step(self) -> float:
        """Sends what was counted. Raises ServerError; what was not sent is sent by the next step."""
        with self._flushing:
            self._send()
            self._unsent = self._take()
            self._send()
            return FLUSH_EVERY_S

    def _send(self) -> None:
        while self._unsent:
            self._broker.run(self._unsent[0])
            self._unsent.pop(0)

    def _take(self) -> list[Call[int]]:
        with self._lock:
            lines, self._lines = self._lines, {}
        if not lines:
            return []
        changes = {
            field_of(*named, what): by for named, line in lines.items() for what, by in line.changes().items() if by
        }
        calls = observe(self._keys, self._now_ms(), self._worker_id, self._reports + 1, changes)
        self._reports += len(calls)
        return calls

    def _line(self, queue: str, job: str) -> "_Line":
        named = (queue, job[:_LONGEST_NAME])
        line = self._lines.get(named)
        if line is None:
            if len(self._lines) >= _MOST_LINES and job:
                return self._line(queue, "")
            line = self._lines[named] = _Line()
        return line

    def _now_ms(self) -> float:
        ahead_ms = self._server_ahead_ms
        return unix_ms() if ahead_ms is None else perf_counter() * 1000 + ahead_ms


class _Line:
    """Of one queue and type: counts, and for each kind of time the sum and the histogram."""

    __slots__ = ("counts", "sums_ms", "times")

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.times: dict[str, list[int]] = {}
        self.sums_ms: dict[str, float] = {}

    def note(self, kind: str, ms: float, per_ms: int = 1) -> None:
        """One time; buckets are of milliseconds, or of so many parts of them."""
        times = self.times.get(kind)
        if times is None:
            times = self.times[kind] = [0] * BUCKETS
            self.sums_ms[kind] = 0.0
        times[bucket(ms * per_ms)] += 1
        self.sums_ms[kind] += ms

    def changes(self) -> dict[str, int]:
        """As figures."""
        found = dict(self.counts)
        for kind, times in self.times.items():
            found[f"{kind}_us"] = round(self.sums_ms[kind] * 1000)
            found.update((f"{kind}:{n}", times[n]) for n in range(BUCKETS) if times[n])
        return found
