"""The log lines and events of attempts that ended. A line for each failure and death, with its traceback, and for each
success up to ten a second; further successes are counted, and each count is logged within five seconds.

Invariant: a success is in exactly one line, its own or a count, so the lines of a worker add up to its total.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import events
from jobrunner.broker.keys import Keys
from jobrunner.clock import monotonic
from jobrunner.errors import JobrunnerError
from jobrunner.logs import SafeLogger, is_logged
from jobrunner.outcome import Acknowledged, Failed, FannedOut, Outcome, Succeeded
from jobrunner.worker.report.stats import COUNTED, TOO_LATE, UNSURE

LINES_PER_S = 10
_SUCCESSES = frozenset((Succeeded, FannedOut, Acknowledged))
_TAKEN = "ok"
_job = attrgetter("type")
_log = SafeLogger("jobrunner.worker")


class AttemptLog:
    """Logs the ends of attempts by the server's replies to their reports. `note` is called by the fetch loop, `flush`
    by any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends = 0.0
        self._left = 0
        self._counted: Counter[str] = Counter()
        self._since = 0.0

    def note(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Logs failures, deaths, and reports that came too late; logs or counts successes."""
        if verdicts.count(_TAKEN) == len(verdicts):
            successes = [attempt for attempt, outcome in reports if type(outcome) in _SUCCESSES]
        else:
            successes = []
            for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
                if verdict in (_TAKEN, UNSURE) and type(outcome) in _SUCCESSES:
                    successes.append(attempt)
                elif verdict != _TAKEN:
                    _log_verdict(attempt, outcome, verdict)
        if successes and is_logged("info"):
            self._log_successes(successes)

    def flush(self) -> None:
        """Logs the number of successes without a line of their own since the last call."""
        with self._lock:
            counted, self._counted = self._counted, Counter()
            since, self._since = self._since, 0.0
        if not counted:
            return
        in_s = round(monotonic() - since, 1)
        _log.info("more tasks succeeded", count=counted.total(), in_s=in_s, jobs=dict(counted.most_common()))

    def _log_successes(self, attempts: list[Attempt]) -> None:
        now = monotonic()
        with self._lock:
            if now >= self._ends:
                self._ends, self._left = now + 1.0, LINES_PER_S
            logged = len(attempts) if is_logged("debug") else self._left
            self._left = max(self._left - len(attempts), 0)
            if counted := attempts[logged:]:
                self._since = self._since or now
                self._counted.update(map(_job, counted))  # a loop in C: a drain logs each of its tasks here
                if self._counted.pop("", 0):
                    self._counted.update(attempt.queue for attempt in counted if not attempt.type)
        for attempt in attempts[:logged]:
            took = {"took": round(attempt.run_s, 4)} if attempt.run_s >= 0 else {}
            _log.info("task succeeded", **subject_of(attempt), **took)


class AttemptEvents:
    """Writes the end of every attempt as an event, for workers with `events="all"`.

    It writes all events of a turn in one round trip, once the replies to the reports are known. An event that the
    server refuses is dropped: events delay no work.
    """

    def __init__(self, broker: Broker, keys: Keys, worker_id: str) -> None:
        self._broker, self._keys, self._worker_id = broker, keys, worker_id
        self._unsent: list[Call[None]] = []

    def note(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Collects events of ended attempts by the server's replies; released attempts did not end."""
        for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
            if ended := _ended(outcome, verdict):
                self._unsent.append(self._event(attempt, outcome, ended))

    def send(self) -> None:
        """Writes the collected events."""
        if self._unsent:
            calls, self._unsent = self._unsent, []
            try:
                self._broker.run_many(calls)
            except JobrunnerError:
                return

    def _event(self, attempt: Attempt, outcome: Outcome, ended: str) -> Call[None]:
        return events.note(
            self._keys, "attempt_ended", queue=attempt.queue, task=attempt.id, job=attempt.type, worker=self._worker_id,
            outcome=ended, attempt=attempt.number,
            run_ms=round(attempt.run_s * 1000) if attempt.run_s >= 0 else "",
            error=outcome.error.partition("\n")[0] if isinstance(outcome, Failed) else "",
        )  # fmt: skip


def _ended(outcome: Outcome, verdict: str) -> str:
    if verdict in TOO_LATE:
        return "too_late"
    counted = COUNTED.get((type(outcome), verdict))
    return counted[-1] if counted else ""


def subject_of(attempt: Attempt) -> dict[str, Any]:
    """The fields that name an attempt; an item of a station has no job."""
    job = {"job": attempt.type} if attempt.type else {}
    return {**job, "task": attempt.id, "queue": attempt.queue, "attempt": attempt.number}


def fields_of(outcome: Failed) -> dict[str, str]:
    """The error of an attempt as fields of a line: `error`, `error_type`, and `exception` where it has a traceback."""
    first, _, trace = outcome.error.partition("\n")
    error_type = outcome.error_type or first.partition(":")[0]
    return {"error": first, "error_type": error_type, **({"exception": trace.rstrip("\n")} if trace.strip() else {})}


def _log_verdict(attempt: Attempt, outcome: Outcome, verdict: str) -> None:
    if verdict in ("not_reserved", "lost"):
        _log.warning("report came too late", task=attempt.id, queue=attempt.queue, attempt=attempt.number)
    elif isinstance(outcome, Failed) and verdict == "dead":
        _log.error("task died", **subject_of(attempt), **fields_of(outcome))
    elif isinstance(outcome, Failed) and verdict == UNSURE:  # scheduled or dead
        _log.warning("attempt failed", **subject_of(attempt), **fields_of(outcome))
    elif isinstance(outcome, Failed) and verdict == "scheduled":
        retry = {} if outcome.delay_s is None else {"retry_in": round(outcome.delay_s, 3)}
        _log.warning("attempt failed", **subject_of(attempt), **retry, **fields_of(outcome))
