"""A worker whose lease keeper cannot be started."""

import sys

from structlog.testing import capture_logs

from jobrunner import job
from jobrunner.worker.lease_keeper import keeper_client, keeper_link
from tests.support.waiting import wait_for


def test_a_worker_without_a_keeper_takes_no_tasks_and_says_so_until_it_has_one(current, start, monkeypatch):
    """As where the system allows no more processes. A task longer than its lease would run again on another worker."""
    ran = []

    @job(queue="q", name="keepers_note")
    def note(number: int) -> None:
        ran.append(number)

    monkeypatch.setattr(keeper_link, "_MISSING_S", 0.0)
    monkeypatch.setattr(keeper_client, "_LONGEST_AFTER_ERROR_S", 0.01)
    with capture_logs() as logged, monkeypatch.context() as broken:
        broken.setattr(sys, "executable", "/no/such/program")
        broken.setattr(keeper_client, "_LONGEST_START_S", 0.0)
        worker = start(queues=["q"], concurrency=1)
        note.enqueue(1)
        is_well, described = wait_for(lambda: not (found := worker.health())[0] and found)
        assert not is_well
        assert "no tasks are taken: the lease keeper could not be started for" in described["problem"]
        assert "No such file or directory: '/no/such/program'" in described["problem"]
        assert current.queue("q").counts()["waiting"] == 1

    wait_for(lambda: ran == [1])
    assert worker.health()[0]
    warnings = [line for line in logged if line["log_level"] == "warning" and "keeper" in line["event"]]
    assert [line["event"] for line in warnings] == ["the lease keeper cannot be started"]
