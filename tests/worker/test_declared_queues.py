"""Workers publish declared queues when they start and with each heartbeat, and keep what an operator changed."""

from importlib import import_module

import pytest

from jobrunner import RateLimit, queue
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.jobs.declared_queues import forget_queue
from tests.support.waiting import wait_for


def test_a_worker_publishes_what_is_declared_also_for_queues_that_it_does_not_serve(current, start):
    queue("tenants", fair=True, max_inflight=4)
    start(queues=["mail"])

    found = current.queue("tenants")
    assert (found.settings().fair, found.settings().max_inflight) == (True, 4)
    assert found.origins()["fair"].place.startswith(__name__)
    assert "tenants" in current.queues()


def test_a_worker_that_starts_again_keeps_a_change_by_hand(current, start):
    queue("tenants", max_inflight=4, history=60)
    start(queues=["mail"])
    current.queue("tenants").configure(max_inflight=1)
    start(queues=["mail"])

    assert current.queue("tenants").settings().max_inflight == 1
    origin = current.queue("tenants").origins()["max_inflight"]
    assert origin.declared == 4
    assert origin.changed_by
    assert origin.changed_at is not None

    forget_queue("tenants")
    queue("tenants", max_inflight=5, history=60)
    start(queues=["mail"])
    assert current.queue("tenants").settings().max_inflight == 5
    assert current.queue("tenants").origins()["max_inflight"].changed_by == ""


def test_heartbeats_publish_again_what_the_server_lost(current, start, raw, keys):
    queue("tenants", max_inflight=4)
    start(queues=["mail"], heartbeat=0.2)
    raw.delete(keys.queue("tenants").settings, keys.queue("tenants").declared)

    wait_for(lambda: current.queue("tenants").settings().max_inflight == 4)


def test_damage_of_one_queue_ends_no_heartbeat(current, start, raw, keys):
    queue("tenants", max_inflight=4)
    worker = start(queues=["mail"], heartbeat=0.2)
    raw.delete(keys.queue("tenants").declared)
    raw.set(keys.queue("tenants").declared, "x")
    raw.delete(keys.worker(worker.id))

    wait_for(lambda: raw.exists(keys.worker(worker.id)))


def test_damage_of_one_queue_keeps_no_worker_from_starting(current, start, raw, keys):
    queue("damaged", max_inflight=4)
    queue("tenants", max_inflight=4)
    raw.set(keys.queue("damaged").declared, "x")
    start(queues=["mail"])

    assert current.queue("tenants").settings().max_inflight == 4
    assert current.queue("damaged").settings().max_inflight == 0


def test_the_asyncio_twin_reads_the_origins(current):
    async_queue = import_module("jobrunner.client.async_queue").AsyncQueue
    assert hasattr(async_queue, "origins")
    with pytest.raises(InvalidOption):
        current.queue("tenants").configure(max_inflight="4")
    assert current.queue("tenants").origins() == {}


def test_a_worker_publishes_the_queues_of_the_file(current, start, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner.queues.tenants]\nrate = "15/1h"\n')
    monkeypatch.chdir(tmp_path)
    start(queues=["mail"])

    assert current.queue("tenants").settings().rate == RateLimit(15, per=3600)
    assert str(tmp_path) in current.queue("tenants").origins()["rate"].place


def test_a_wrong_file_ends_the_start(current, start, tmp_path, monkeypatch):
    (tmp_path / "pyproject.toml").write_text("[tool.jobrunner.queues.tenants]\nrates = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownOption, match="did you mean 'rate'"):
        start(queues=["mail"])
