"""Log lines of attempts that ended: each success in one line or in a count, each failure with its traceback."""

from typing import Any

import pytest
import structlog

from jobrunner.attempt import Attempt
from jobrunner.logs import IDENTITY
from jobrunner.outcome import Failed, Moved, Outcome, Snoozed, Succeeded
from jobrunner.worker.report import attempt_log
from jobrunner.worker.report.attempt_log import LINES_PER_S, AttemptLog
from jobrunner.worker.run.error_outcome import failed
from tests.unit.worker.attempts import attempt_at


class OddError(Exception):
    """Of a job."""


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr(attempt_log, "monotonic", lambda: at[0])
    return at


def successes(count: int, job: str = "good") -> list[tuple[Attempt, Outcome]]:
    return [(attempt_at(job, queue="q"), Succeeded()) for _ in range(count)]


def note(log: AttemptLog, reports: list[tuple[Attempt, Outcome]], *verdicts: str) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as lines:
        log.note(reports, list(verdicts) or ["ok"] * len(reports))
    return list(lines)


def flushed(log: AttemptLog) -> list[dict[str, Any]]:
    with structlog.testing.capture_logs() as lines:
        log.flush()
    return list(lines)


def test_lines_and_counts_add_up_to_all_successes(now: list[float]) -> None:
    log = AttemptLog()

    first = note(log, successes(4))
    second = note(log, successes(500) + successes(25, "other"))
    now[0] += 0.5
    third = note(log, successes(3, "other"))
    now[0] += 0.6
    later = note(log, successes(2))

    assert len(first) == 4
    assert len(second) == LINES_PER_S - 4
    assert third == []
    assert [line["event"] for line in later] == ["task succeeded"] * 2
    (counted,) = flushed(log)
    assert counted["count"] == 534 - LINES_PER_S - 2
    assert counted["jobs"] == {"good": 494, "other": 28}
    assert counted["in_s"] == 1.1
    assert flushed(log) == []


def test_only_ended_tasks_are_successes_and_a_mixed_reply_loses_none() -> None:
    moved, snoozed = Moved(queue="next"), Snoozed(1.0)
    reports = [*successes(1), (attempt_at("late"), Succeeded()), (attempt_at("m"), moved), (attempt_at("s"), snoozed)]

    lines = note(AttemptLog(), reports, "ok", "lost", "ok", "scheduled")

    assert [line["event"] for line in lines] == ["report came too late", "task succeeded"]


def test_attempts_whose_reports_were_sent_twice_are_logged_as_they_are_counted() -> None:
    (success,), failed_attempt, moved = successes(1), attempt_at("bad", queue="q"), attempt_at("x", queue="q")
    failure = Failed("ValueError: no\nTraceback of it\n")

    lines = note(AttemptLog(), [success, (failed_attempt, failure), (moved, Moved(queue="q"))], *["unknown"] * 3)

    assert [line["event"] for line in lines] == ["attempt failed", "task succeeded"]
    assert (lines[0]["error"], lines[0]["exception"]) == ("ValueError: no", "Traceback of it")


def test_a_failure_has_its_error_class_and_traceback_as_fields() -> None:
    def outcome() -> Failed:
        try:
            raise OddError("no\nway password=hunter2")
        except OddError as error:
            return failed(error, 1.23456)

    attempt = attempt_at("bad")
    reports: list[tuple[Attempt, Outcome]] = [
        (attempt, outcome()), (attempt, Failed("UnknownJob: no")), (attempt, outcome()),
    ]  # fmt: skip

    will_retry, unknown, died = note(AttemptLog(), reports, "scheduled", "dead", "dead")

    assert (will_retry["log_level"], will_retry["event"]) == ("warning", "attempt failed")
    assert will_retry["retry_in"] == 1.235
    assert (died["log_level"], died["event"]) == ("error", "task died")
    assert "retry_in" not in died
    assert died["error_type"] == f"{__name__}.OddError"
    assert died["error"].startswith("OddError: no way")
    assert died["exception"].startswith("Traceback (most recent call last):")
    assert 'raise OddError("no' in died["exception"]
    assert "hunter2" not in str([will_retry, died])
    assert unknown["error_type"] == "UnknownJob"
    assert "exception" not in unknown


def test_a_level_above_info_counts_nothing_and_debug_logs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    log = AttemptLog()
    monkeypatch.setattr(IDENTITY, "log_level", "warning")
    assert note(log, successes(50)) == []
    assert flushed(log) == []
    monkeypatch.setattr(IDENTITY, "log_level", "debug")
    assert len(note(log, successes(50))) == 50


def test_a_value_that_the_cut_parts_from_its_name_is_hidden() -> None:
    """The text of an error was cut to its last 8 000 characters, and then looked through for names."""
    try:
        raise ValueError("login failed: token='" + "SECRET" * 100 + "' " + "x" * 7_600)
    except ValueError as error:
        told = failed(error).error

    assert "SECRET" not in told
    assert told.endswith("x\n")
    assert len(told) > 8_000
