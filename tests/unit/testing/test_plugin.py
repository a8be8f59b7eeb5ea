"""The fixtures of the pytest plugin, in suites of a user's kind."""

import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from jobrunner.testing import plugin

Suite = Callable[..., pytest.RunResult]
SERVERS = pytest.mark.parametrize("server", ["embedded", pytest.param("fake", marks=pytest.mark.slow)])
USUAL = """
import asyncio
from jobrunner import Client, async_client, configure
from jobrunner.testing import worker

def test_a_job_runs(jobrunner_worker):
    task = Greet(address="ada").enqueue()
    assert task.state == "waiting"
    summary = jobrunner_worker.run()
    assert (summary.finished, task.record().state, task.result(timeout=0)) == (1, "succeeded", "sent to ada")

def test_the_prefix_of_another_test_is_not_this_ones(jobrunner_client):
    assert jobrunner_client.queues() == []
    add.enqueue(1)
    assert jobrunner_client.queues() == ["sums"]

def test_neither_is_that_one_of_the_next(jobrunner_client):
    assert jobrunner_client.queues() == []

def test_nothing_to_run_is_nothing_run(jobrunner_worker):
    assert jobrunner_worker.run().finished == 0

def test_what_is_due_later_runs_when_the_clock_moved(jobrunner_worker, travel):
    task = Greet(address="ada").enqueue(in_=timedelta(hours=3))
    for length, state in ((0, "scheduled"), (2 * 3600 + 3590, "scheduled"), (10, "succeeded")):
        travel.forward(length)
        jobrunner_worker.run()
        assert task.record().state == state

def test_an_instant_is_travelled_to(jobrunner_worker, travel):
    when = datetime.now(timezone.utc) + timedelta(days=400)
    task = Greet(address="ada").enqueue(at=when)
    assert travel.to(when) >= when
    jobrunner_worker.run()
    assert task.record().state == "succeeded" and task.record().when >= when

def test_a_failure_waits_and_a_drain_travels_through_all_attempts(jobrunner_worker):
    task = Greet(address="ada", wrong=9).enqueue()
    jobrunner_worker.run()
    assert (task.state, task.retry_count) == ("scheduled", 1)
    jobrunner_worker.run(drain=True)
    assert (task.record().state, task.attempts) == ("dead", 3) and "no route to ada" in task.error

def test_a_periodic_job_fires_once_for_each_tick(jobrunner_worker, travel, jobrunner_client):
    ran.clear()
    assert jobrunner_worker.run().finished == 0
    for tick in (1, 2):
        travel.forward(timedelta(minutes=5))
        jobrunner_worker.run()
        assert ran == [1, 2][:tick]
    jobrunner_worker.run()
    assert ran == [1, 2]
    assert jobrunner_client.periodics()[0].fired == 2

def test_a_periodic_job_that_is_added_fires_too(jobrunner_worker, travel, jobrunner_client):
    jobrunner_client.add_periodic("ada", Greet(address="ada"), every=timedelta(seconds=30))
    assert jobrunner_worker.run().finished == 1
    travel.forward(timedelta(seconds=30))
    assert jobrunner_worker.run().finished == 1
    jobrunner_client.remove_periodic("ada")
    travel.forward(timedelta(seconds=30))
    assert jobrunner_worker.run().finished == 0

def test_a_queue_named_at_enqueueing_is_served_and_a_bare_one_is_not(jobrunner_worker, jobrunner_client):
    bare = jobrunner_client.queue("bare")
    bare.push({"x": 1})
    task = Greet(address="ada").enqueue(queue="vip")
    jobrunner_worker.run()
    assert task.state == "succeeded" and bare.counts()["waiting"] == 1

def test_a_coroutine_job_runs(jobrunner_worker):
    task = slowly.enqueue(1)
    jobrunner_worker.run()
    assert task.result(timeout=0) == 2

def test_a_bare_queue_works(jobrunner_client, travel):
    q = jobrunner_client.queue("orders")
    q.push(b"now"), q.push({"n": 1}, in_=60)
    [first] = q.reserve(10)
    assert first.payload == b"now" and first.commit()
    assert q.reserve(10) == []
    travel.forward(60)
    [second] = q.reserve(10)
    assert second.payload == {"n": 1}
    assert second.rollback(delay=5, error="not yet")
    assert q.counts()["scheduled"] == 1
    travel.forward(5)
    [again] = q.reserve(10)
    assert again.attempts == 2
    travel.forward(timedelta(hours=1))
    assert q.counts()["waiting"] == 1

def test_asyncio_uses_the_same_server_prefix_and_clock(jobrunner_worker, travel):
    async def enqueue():
        async with async_client() as client:
            task = await Greet(address="ada").aenqueue(in_=60)
            return task.id, (await client.task(task.id).record()).when
    travel.forward(timedelta(days=10))
    task_id, due = asyncio.run(enqueue())
    assert timedelta(seconds=50) < due - travel.now <= timedelta(seconds=60)
    travel.forward(60)
    jobrunner_worker.run()
    assert jobrunner_worker._client.task(task_id).state == "succeeded"

def test_what_an_application_configures_does_not_replace_the_client(jobrunner_client):
    configure("redis://unreachable.invalid:1")
    task = add.enqueue(1)
    assert jobrunner_client.task(task.id).state == "waiting"

def test_a_client_without_url_is_on_the_same_server(jobrunner_client):
    task = add.enqueue(1)
    with Client() as another:
        assert another.task(task.id).state == "waiting"

@job(queue="snoozing")
def snooze():
    return Snooze(in_=60)

def test_of_a_recorder_and_a_client_the_last_takes_the_tasks(jobrunner_client, enqueued):
    add.enqueue(1)
    assert len(enqueued) == 1 and jobrunner_client.queues() == []

def test_also_the_other_way_round(enqueued, jobrunner_client):
    add.enqueue(1)
    assert len(enqueued) == 0 and jobrunner_client.queues() == ["sums"]

def test_tasks_that_are_scheduled_without_end_are_an_error(jobrunner_worker, monkeypatch):
    monkeypatch.setattr(worker, "_MOST_JOURNEYS", 3)
    snooze.enqueue()
    with pytest.raises(ValueError, match="travelled to 28 due times and no fewer"):
        jobrunner_worker.run(drain=True)
"""
"""In one run of pytest, whose start takes longer than all of them."""


@SERVERS
def test_jobs_run_on_either_server(suite: Suite, server: str) -> None:
    suite(USUAL, f"--jobrunner-server={server}", passed=18)


def test_the_client_that_was_configured_before_is_back_and_open(suite: Suite) -> None:
    source = """
from jobrunner import configure
from jobrunner.client.current import current_client
mine = configure("redis://127.0.0.1:1", retry_timeout=0)

def test_one(jobrunner_client):
    assert current_client() is jobrunner_client

def test_two():
    assert current_client() is mine
    with pytest.raises(Exception, match="no server"):
        mine.queues()
"""
    suite(source, passed=2)


def test_the_ini_file_chooses_the_server(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\njobrunner_server = fake\n")
    suite("def test_url(jobrunner_url): assert jobrunner_url.startswith('redis://127.0.0.1:')", passed=1)


def test_a_server_that_nobody_knows_is_refused(suite: Suite, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\njobrunner_server = imaginary\n")
    result = suite("def test_it(jobrunner_client): pass", errors=1)
    result.stdout.fnmatch_lines(["*InvalidOption: jobrunner_server = imaginary: choose embedded * or fake *"])


def test_a_server_of_ones_own_is_emptied_below_the_prefix_alone(suite: Suite) -> None:
    source = """
from jobrunner import Client
from jobrunner.broker.call import command
from jobrunner.client.client import broker_of
from jobrunner.testing import open_server

@pytest.fixture(scope="session")
def jobrunner_url():
    with open_server("fake") as url:
        with Client(url, "other") as other:
            other.queue("mine").push(b"kept")
            yield url
            assert other.queues() == ["mine"] and other.queue("mine").counts()["waiting"] == 1
            keys = broker_of(other).run(command("KEYS", "*", read=list))
            assert keys and all(key.startswith(b"other:") for key in keys), keys

def test_it(jobrunner_worker):
    Greet(address="ada").enqueue()
    add.enqueue(1)
    jobrunner_worker.run()
"""
    suite(source, passed=1)


def test_sessions_on_one_server_do_not_meet() -> None:
    """Without xdist each had the prefix test-main-1, also for what a session that was killed had left."""
    first, second = plugin.prefixes({}), plugin.prefixes({})
    of_workers = [plugin.prefixes({"testrunuid": "7" * 32, "workerid": worker}) for worker in ("gw0", "gw1")]
    found = [next(names) for names in (first, first, second, *of_workers)]
    assert len(set(found)) == 5
    assert found[3:] == ["77777777-gw0-1", "77777777-gw1-1"]


def test_the_entry_point_names_the_plugin() -> None:
    pyproject = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    named = pyproject["project"]["entry-points"]["pytest11"]["jobrunner"]
    assert callable(import_module(named).jobrunner_client)
