"""Workers publish declared queues when they start and with each heartbeat, and keep what an operator changed."""

import time
from importlib import import_module

import pytest

from jobrunner import RateLimit, queue
from jobrunner.errors import InvalidOption, UnknownOption
from jobrunner.etl import Pipeline
from jobrunner.jobs.declared_queues import forget_queue
from tests.support.waiting import wait_for


def test_a_worker_publishes_what_is_declared_also_for_queues_that_it_does_not_serve(current, start):
    queue("tenants", fair=True, max_inflight=4)
    start(queues=["mail"])

    found = current.queue("tenants")
    assert (found.settings().fair, found.settings().max_inflight) == (True, 4)
    assert found.origins()["fair"].place.startswith(__name__)
    assert "tenants" in current.queues()


def test_an_event_says_which_declared_settings_changed(current, start, raw, keys):
    def told():
        found = [event for event in current.events() if event.kind == "queue_configured" and event.by]
        said = [(one.queue, one.details["place"].partition(":")[0], one.details) for one in found]
        return [(name, place, words.get("set_max_inflight"), words.get("set_history")) for name, place, words in said]

    queue("tenants", max_inflight=4, history=60)
    start(queues=["mail"])
    start(queues=["mail"])
    assert told() == [("tenants", __name__, "4", "60")]

    forget_queue("tenants")
    queue("tenants", max_inflight=5)
    start(queues=["mail"], heartbeat=0.2)
    assert told()[1:] == [("tenants", __name__, "5", "None")]

    raw.delete(keys.queue("tenants").settings, keys.queue("tenants").declared)
    wait_for(lambda: told()[2:] == [("tenants", __name__, "5", None)])


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


def a_pipeline(**settings):
    """The pipeline of a module, as a process of a release with these settings of its station loads it."""
    made = Pipeline("shop")
    made.sink("raw", **settings)(lambda item: None)
    return made


@pytest.mark.parametrize("process", ["worker", "producer"])
def test_a_change_by_hand_of_a_station_outlasts_processes_that_start_again(current, start, process):
    def begin(**settings):
        pipeline = a_pipeline(**settings)
        if process == "worker":
            start(queues=["shop/raw"])
        else:
            pipeline.push("raw", 1)

    begin(max_size=100, history=60)
    asked = current.queue("shop/raw")
    assert asked.origins()["max_size"].place.startswith(__name__)
    asked.configure(max_size=7)
    begin(max_size=100, history=60)
    assert (asked.settings().max_size, asked.origins()["max_size"].declared) == (7, 100)
    assert asked.origins()["max_size"].changed_by

    begin(max_size=50)
    assert (asked.settings().max_size, asked.settings().history) == (50, None), "the new value, and the default"
    begin(keepalive=20)
    assert asked.settings().max_size is None, "a setting that the station does not name any more"


def test_a_station_without_settings_is_a_declaration_as_any(current, start):
    """Workers of the release before, which had none, take no setting back during a deploy."""
    a_pipeline()
    start(queues=["shop/raw"])
    a_pipeline(max_size=100)
    start(queues=["shop/raw"])
    a_pipeline()
    start(queues=["shop/raw"])
    assert current.queue("shop/raw").settings().max_size == 100


def test_heartbeats_publish_again_what_the_server_lost_of_a_station(current, start, raw, keys):
    a_pipeline(max_size=100)
    start(queues=["shop/raw"], heartbeat=0.2)
    raw.delete(keys.queue("shop/raw").settings, keys.queue("shop/raw").declared)

    wait_for(lambda: current.queue("shop/raw").settings().max_size == 100)


def test_heartbeats_publish_a_pipeline_that_is_missing_and_leave_another_as_it_is(current, start, raw, keys):
    """After a loss of data its page and `pipeline list` had it no more, however long its programs and workers ran."""
    a_pipeline()
    start(queues=["shop/raw"], heartbeat=0.1)
    wait_for(lambda: raw.hexists(keys.pipelines, "shop"))
    raw.hset(keys.pipelines, "shop", "[]")
    raw.hset(keys.pipelines, "other", "[]")
    time.sleep(0.3)  # three heartbeats, which must leave it alone
    assert raw.hget(keys.pipelines, "shop") == b"[]"
    raw.delete(keys.pipelines)
    wait_for(lambda: b"shop/raw" in (raw.hget(keys.pipelines, "shop") or b""))
    assert raw.hlen(keys.pipelines) == 1


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
