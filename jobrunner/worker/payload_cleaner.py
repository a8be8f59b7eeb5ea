"""Deletes the objects of finished tasks from the payload store, and sweeps it.

A worker remembers the objects of tasks that it ended until their hashes have expired, and then asks the server whether
they are gone. The leader's hourly sweep, or `jobrunner payloads sweep`, finds the objects that it forgets: its process
ended, the queue keeps history, or the task was cancelled or deleted elsewhere.
"""

import heapq
import threading
from collections.abc import Callable, Iterator, Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.keys import Keys
from jobrunner.client.payload_sweep import SweepResult, sweeping, unused_objects
from jobrunner.clock import monotonic
from jobrunner.encryption.envelope import is_stored
from jobrunner.logs import SafeLogger
from jobrunner.outcome import Acknowledged, Cancelled, Dropped, FannedOut, Outcome, Succeeded
from jobrunner.payload_store.reference import key_of
from jobrunner.payload_store.store import PayloadStore
from jobrunner.worker.report.report_calls import keep_ms

SWEEP_EVERY_S = 3600.0
_FIRST_SWEEP_S = 600.0
"""The delay of the first sweep after the start, as many workers are recycled or rolled before an hour is over."""
_LATER_S = 10.0
"""A waiting client makes the server keep a finished task for 5 s more."""
_TURN_S = 1.0
_AT_ONCE = 100
"""A store may take a tenth of a second to delete an object."""
_MOST = 20_000
_ENDED = (Succeeded, Cancelled, Dropped, FannedOut, Acknowledged)
_log = SafeLogger("jobrunner.worker")


class PayloadCleaner:
    """Objects to be deleted, by the time at which their task is gone. `note` costs nothing for tasks without objects;
    `step` runs in a loop of its own, as a store may be slow."""

    def __init__(self, broker: Broker, keys: Keys, store: PayloadStore, leads: Callable[[], bool]) -> None:
        self._broker = broker
        self._keys = keys
        self._store = store
        self._leads = leads
        self._lock = threading.Lock()
        self._due: list[tuple[float, str, bool]] = []
        self._swept_at = monotonic() - max(SWEEP_EVERY_S - _FIRST_SWEEP_S, 0.0)
        self._sweep: Iterator[SweepResult] | None = None
        """The sweep that is under way."""
        self._found = SweepResult(objects=0, young=0, used=0, unused=0)

    def note(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Remembers the objects of tasks that ended, by the replies to their reports."""
        for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
            if is_stored(attempt.encoding) and verdict == "ok" and isinstance(outcome, _ENDED):
                tag = self._keys.queue(attempt.queue).tag
                key = key_of(attempt.payload, self._keys.prefix, tag, attempt.id)
                kept_s = 0.0 if isinstance(outcome, Acknowledged) else keep_ms(attempt) / 1000
                if key is not None:
                    self._remember(key, kept_s, is_second=False)

    def step(self) -> float:
        """Deletes objects that are due; returns the seconds to the next turn. Raises ServerError,
        PayloadStoreUnavailable."""
        with self._lock:
            now = monotonic()
            due = [heapq.heappop(self._due) for _ in range(_AT_ONCE) if self._due and self._due[0][0] <= now]
        try:
            unused = unused_objects(self._broker, self._keys, [key for _, key, _ in due])
            self._store.delete(unused)  # the sweep finds objects that could not be deleted
        except Exception:
            with self._lock:
                for one in due:
                    heapq.heappush(self._due, one)
            raise
        for _, key, is_second in due:
            if not is_second and key not in unused:
                self._remember(key, _LATER_S, is_second=True)
        if self._sweep is None and self._leads() and monotonic() - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = monotonic()
            self._sweep = sweeping(self._broker, self._keys, self._store)
        self._sweep_on()
        return 0.0 if len(due) == _AT_ONCE or self._sweep is not None else _TURN_S

    def _sweep_on(self) -> None:
        """Runs one step of the sweep. A large store takes many minutes; in one turn of the loop `/health` would report
        that it hangs."""
        sweep, self._sweep = self._sweep, None  # an error ends it
        if sweep is None:
            return
        if (found := next(sweep, None)) is not None:
            self._sweep, self._found = sweep, found
            return
        found = self._found
        _log.info("the payload store was swept", objects=found.objects, deleted=found.unused - found.left)

    def _remember(self, key: str, for_s: float, *, is_second: bool) -> None:
        with self._lock:
            if len(self._due) < _MOST:
                heapq.heappush(self._due, (monotonic() + for_s, key, is_second))
