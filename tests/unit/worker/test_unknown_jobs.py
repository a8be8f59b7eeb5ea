"""Tasks of jobs that a worker does not know: how long they are handed back, and how often."""

import pytest

from jobrunner.outcome import Deferred, Failed, Unknown
from jobrunner.worker.report.reported_outcome import UnknownJobs
from tests.unit.worker.attempts import attempt_at

NOW_MS = 1_700_000_000_000.0
WHY = Unknown("UnknownJob: no")


def after(age_s: float, grace_s: float = 86_400.0) -> Deferred | Failed:
    since = 0.0 if age_s < 0 else NOW_MS - age_s * 1000
    return UnknownJobs(grace_s).reported(attempt_at("nope", unknown_since_ms=since), WHY)


def test_the_delay_grows_with_the_age_up_to_half_a_minute() -> None:
    for age_s, longest_s in ((-1, 1.0), (0.5, 1.0), (10, 5.0), (40, 20.0), (3600, 30.0)):
        delays = [found.delay_s for found in (after(age_s) for _ in range(200)) if isinstance(found, Deferred)]
        assert len(delays) == 200
        assert min(delays) >= longest_s / 2
        assert max(delays) <= longest_s + 0.5
        assert longest_s < 5 or max(delays) - min(delays) >= longest_s / 5, "not all come at once"
        assert {round((NOW_MS / 1000 + delay) % 0.5, 3) for delay in delays} <= {0.0, 0.5}, "but many together"


def test_behind_the_grace_it_fails_with_the_reason_and_is_tried_as_usual() -> None:
    assert after(86_401) == Failed("UnknownJob: no", is_unbegun=True)
    assert after(-1, grace_s=0) == Failed("UnknownJob: no", is_unbegun=True)
    last = after(86_399.9)
    assert isinstance(last, Deferred)
    assert last.delay_s <= 0.1 + 1e-6, "the last hand-back ends with the grace"


def test_a_server_whose_clock_stepped_back_costs_no_delay() -> None:
    found = UnknownJobs(60).reported(attempt_at("nope", unknown_since_ms=NOW_MS + 5000), WHY)
    assert isinstance(found, Deferred)
    assert found.delay_s <= 1.5


def test_a_worker_reports_for_a_minute_that_it_cannot_read_payloads(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("jobrunner.worker.report.reported_outcome.monotonic", lambda: now[0])
    jobs = UnknownJobs(86_400)
    jobs.reported(attempt_at("other"), WHY)
    assert jobs.problem() == "", "a job that it does not know is another finding"
    jobs.reported(attempt_at("mail"), Unknown("EncryptionKeyMissing: no key", is_unreadable=True))

    told = jobs.problem()
    assert "of job 'mail' in queue" in told
    assert told.endswith("as it cannot read them: EncryptionKeyMissing: no key")
    now[0] += 61
    assert jobs.problem() == ""


def test_one_line_is_logged_for_each_job_and_queue_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("jobrunner.worker.report.reported_outcome.monotonic", lambda: now[0])
    jobs = UnknownJobs(86_400)
    for name in ("a", "b", "a", "a"):
        jobs.reported(attempt_at(name), WHY)
    now[0] += 61
    jobs.reported(attempt_at("a"), WHY)
    lines = [line for line in caplog.messages if "does not know the job" in line]
    assert [("job=a" in line, "tasks=" + line.partition("tasks=")[2][:1]) for line in lines] == [
        (True, "tasks=1"), (False, "tasks=1"), (True, "tasks=3"),
    ]  # fmt: skip
    assert all("load its module here, or give the services queues of their own" in line for line in lines)
