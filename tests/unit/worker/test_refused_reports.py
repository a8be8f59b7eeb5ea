"""How long a report that the server refuses is kept."""

import pytest

from jobrunner.errors import ServerFull, ServerRefused
from jobrunner.outcome import Succeeded
from jobrunner.worker.fetch import waiting_reports
from jobrunner.worker.fetch.reserve_plan import QueueRotation
from jobrunner.worker.fetch.waiting_reports import RefusedReports
from tests.support.stopped_clock import stopped
from tests.unit.worker.attempts import attempt_at


def test_the_minute_of_a_refused_report_begins_when_the_server_takes_writes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker dropped it at the first refusal that was about the report itself."""
    clock, refused = stopped(monkeypatch, waiting_reports), RefusedReports(QueueRotation({"q": 1}, 15.0))
    report = attempt_at("a"), Succeeded()
    damaged = ServerRefused("WRONGTYPE")

    refused.keep([report], ServerFull("it is full"))
    clock.now += 300
    assert refused.keep([report], ServerFull("it is full")) == []
    clock.now += 1
    assert refused.keep([report], damaged) == []
    clock.now += 58.9
    assert refused.keep([report], damaged) == []
    clock.now += 0.1
    assert refused.keep([report], damaged) == [report]
    assert len(refused) == 0
