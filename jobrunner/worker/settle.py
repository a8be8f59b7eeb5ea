"""From outcomes to calls: one table, one call for each verb and queue."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from jobrunner.attempt import Attempt
from jobrunner.broker.call import Call
from jobrunner.broker.calls import leases
from jobrunner.broker.keys import Keys
from jobrunner.jobs.options import DEFAULT_KEEP_S
from jobrunner.jobs.registry import find
from jobrunner.join import Ended
from jobrunner.outcome import Cancelled, Failed, Outcome, Released, Snoozed, Succeeded

Report = tuple[Attempt, Outcome]
_ENDINGS: dict[type, str] = {Succeeded: "succeeded", Cancelled: "cancelled", Failed: "dead"}
_log = structlog.get_logger("jobrunner.settle")


@dataclass(frozen=True, slots=True)
class Settlement:
    """A call with the reports it makes, in the order of its verdicts."""

    call: Call[list[str]]
    reports: list[Report]


def settlements(keys: Keys, reports: Iterable[Report], *, singly: bool = False) -> list[Settlement]:
    """The calls that report these outcomes: one for each verb and queue, or for each report (`singly`)."""
    grouped: dict[tuple[str, str, str], tuple[list[Any], list[Report]]] = {}
    for report in reports:
        attempt, outcome = report
        verb = "commit" if type(outcome) is Succeeded else _verb(outcome)
        key = (verb, attempt.queue, attempt.token if singly else "")
        group = grouped.get(key)
        if group is None:
            group = grouped[key] = ([], [])
        group[0].append(_words(attempt, outcome))
        group[1].append(report)
    return [
        Settlement(getattr(leases, verb)(keys.queue(queue), words), made)
        for (verb, queue, _), (words, made) in grouped.items()
    ]


def _verb(outcome: Outcome) -> str:
    if isinstance(outcome, Failed):
        return "fail"
    return "release" if isinstance(outcome, (Released, Snoozed)) else "commit"


def _words(attempt: Attempt, outcome: Outcome) -> tuple[Any, ...]:
    if isinstance(outcome, Succeeded):
        report = (attempt.id, attempt.token, keep_ms(attempt), "succeeded", outcome.result)
        return report if attempt.then is None else (*report, attempt.then)
    if isinstance(outcome, Failed):
        fate = "retry" if outcome.retry else "dead"
        return attempt.id, attempt.token, round((outcome.delay_s or 0.0) * 1000), fate, outcome.error
    if isinstance(outcome, Cancelled):
        return attempt.id, attempt.token, keep_ms(attempt), "cancelled", b"", attempt.then or b""
    if isinstance(outcome, Snoozed):
        return attempt.id, attempt.token, round(outcome.delay_s * 1000)
    return attempt.id, attempt.token, ""


def ended(keys: Keys, settlement: Settlement, verdicts: list[str]) -> list[Ended]:
    """What these reports left in the outbox of their queue: ends of tasks of flows."""
    return [
        Ended(keys.queue(attempt.queue).tag, _ENDINGS[type(outcome)], attempt.then, getattr(outcome, "result", b""))
        for (attempt, outcome), verdict in zip(settlement.reports, verdicts, strict=True)
        if attempt.then is not None and (verdict == "dead" or (verdict == "ok" and type(outcome) in _ENDINGS))
    ]


def keep_ms(attempt: Attempt) -> int:
    """How long the finished task stays readable."""
    definition = find(attempt.type)
    return round((DEFAULT_KEEP_S if definition is None else definition.options.keep) * 1000)


def tell(settlement: Settlement, verdicts: list[str]) -> None:
    """Logs what a person should know: failures, deaths, and reports that came too late."""
    for (attempt, outcome), verdict in zip(settlement.reports, verdicts, strict=True):
        if verdict in ("ok", "waiting"):
            continue
        if isinstance(outcome, Failed) and verdict in ("dead", "scheduled"):
            level = _log.error if verdict == "dead" else _log.warning
            level(
                "task died" if verdict == "dead" else "attempt failed",
                job=attempt.type, task=attempt.id, queue=attempt.queue, attempt=attempt.number,
                error=outcome.error.partition("\n")[0],
            )  # fmt: skip
        elif verdict in ("not_reserved", "lost"):
            _log.warning("report came too late", task=attempt.id, queue=attempt.queue, attempt=attempt.number)
