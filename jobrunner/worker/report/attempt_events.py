"""The end of every attempt as an event, for workers that are asked for it (`events="all"`).

Written once the replies to reports are known, all of a turn in one round trip. An event that the server refuses is
dropped: events delay no work.
"""

from collections.abc import Sequence

from jobrunner.attempt import Attempt
from jobrunner.broker.broker import Broker
from jobrunner.broker.call import Call
from jobrunner.broker.calls import events
from jobrunner.broker.keys import Keys
from jobrunner.errors import JobrunnerError
from jobrunner.outcome import Failed, Outcome
from jobrunner.worker.report.stats import COUNTED, TOO_LATE


class AttemptEvents:
    """Fed by the fetch loop; writes nothing unless `tells` is set."""

    def __init__(self, broker: Broker, keys: Keys, worker_id: str, *, tells: bool) -> None:
        self._broker, self._keys, self._worker_id, self._tells = broker, keys, worker_id, tells
        self._unsent: list[Call[None]] = []

    def observe(self, reports: Sequence[tuple[Attempt, Outcome]], verdicts: Sequence[str]) -> None:
        """Notes ended attempts by the server's replies; attempts that were handed back did not end."""
        if self._tells:
            for (attempt, outcome), verdict in zip(reports, verdicts, strict=True):
                if ended := _ended(outcome, verdict):
                    self._unsent.append(self._event(attempt, outcome, ended))

    def send(self) -> None:
        """Writes the noted events."""
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
