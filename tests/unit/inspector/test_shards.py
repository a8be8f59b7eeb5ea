"""What people read of a queue with partitions: one queue, whatever its shards."""

from typing import Any

import pytest

from jobrunner import Client, Item
from jobrunner.broker.calls import leases, new_tasks
from jobrunner.broker.calls.leader import ScanReply, announce
from jobrunner.broker.keys import tag_of_id
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.coordinator.records import DeathEvents, StatsSampler
from jobrunner.inspector.doctor.workload import types_checks
from jobrunner.inspector.jobs import job_views
from jobrunner.inspector.lag import read_lags
from jobrunner.inspector.live_snapshot import look
from jobrunner.inspector.search import search
from jobrunner.inspector.search_filter import Filter
from jobrunner.inspector.shards import EndTotals, end_totals, with_shards
from jobrunner.inspector.snapshot import overview, queue_views
from jobrunner.inspector.stats import by_queue
from jobrunner.inspector.task_rows import first_rows, list_tasks
from jobrunner.metrics.exposition import render
from jobrunner.task import Task

pytestmark = pytest.mark.timeout(60)


def test_what_ended_of_a_job_is_counted_over_all_shards(client: Client) -> None:
    client.queue("mail").configure(partitions=4)
    for name in with_shards(client, ["mail"]):
        shard = keys_of(client).queue(name)
        sent = [Task(id=f"t{n}", type="Send", queue=name, payload=b"{}") for n in range(5)]
        broker_of(client).run(new_tasks.enqueue(shard, sent))
        held = broker_of(client).run(leases.reserve(shard, 5, token=name)).attempts
        reports = [(one.id, one.token, 0, "succeeded", b"", b"", "Send") for one in held]
        broker_of(client).run(leases.commit(shard, reports))

    (totals,) = end_totals(client, ["mail"])
    assert isinstance(totals, EndTotals)
    assert (totals.by_type, totals.together["succeeded"]) == ({"Send succeeded": 20}, 20)
    (job,) = job_views(client, [])
    assert (job.name, job.queue, job.succeeded) == ("Send", "mail", 20)
    shown = [line for line in render(client).decode().splitlines() if line.startswith("jobrunner_tasks_total")]
    assert 'jobrunner_tasks_total{outcome="succeeded",queue="mail",type="Send"} 20.0' in shown
    assert not [line for line in shown if 'type=""' in line]


@pytest.fixture
def spread(client: Client) -> Client:
    queue = client.queue("mail")
    queue.configure(partitions=4, max_attempts=1)
    queue.push_many(range(80))
    queue.push_many([Item(n, id=f"own-{n}") for n in range(8)])
    client.queue("mail-other").push(1)
    return client


def test_the_overview_has_one_queue_and_all_its_tasks(spread: Client) -> None:
    assert [(view.name, view.waiting, view.problem) for view in overview(spread).queues] == [
        ("mail", 88, ""),
        ("mail-other", 1, ""),
    ]
    (view,) = queue_views(spread, [], ["mail"])
    assert view.waiting == view.totals["enqueued"] == 88
    assert view.oldest_s is not None
    spread.queue("mail").pause()
    assert queue_views(spread, [], ["mail"])[0].paused


def test_lists_and_searches_find_tasks_of_all_shards(spread: Client) -> None:
    assert len(list_tasks(spread, "mail", "waiting", limit=200)) == 88
    assert len(first_rows(spread, "mail", ["waiting"], count=50)["waiting"]) == 50
    found = search(spread, Filter(queue="mail"), limit=200)
    assert len(found.tasks) == found.total == 88
    assert {row.queue for row in found.tasks} == {"mail", "mail@1", "mail@2", "mail@3"}
    assert search(spread, Filter(), limit=200).total == 89


def test_samples_and_deaths_count_for_the_whole_queue(spread: Client) -> None:
    queue = spread.queue("mail")
    while taken := queue.reserve(100):
        queue.rollback_many(taken, error="boom")
    keys, broker = keys_of(spread), broker_of(spread)
    found = ScanReply(holding=["mail", "mail@1", "mail@2", "mail@3"])
    sampler = StatsSampler(broker, keys)
    sampler.take(found)
    now_ms = 1_800_000_000_000
    sampler.step(now_ms)
    assert set(by_queue(spread)) <= {"mail"}
    deaths = DeathEvents(broker, keys)
    deaths.take(ScanReply(dead={name: spread.queue(name).totals()["dead"] for name in found.holding}))
    deaths.step()
    died = [event for event in spread.events() if event.kind == "task_died"]
    assert len(died) == 88
    assert {event.queue for event in died} == {"mail"}


def test_the_command_line_names_the_whole_queue(spread: Client, cli: Any) -> None:
    assert cli("queues", "limit", "mail", "--partitions", "8").code == 0
    assert spread.queue("mail").settings().partitions == 8
    refused = cli("queues", "limit", "mail", "--max-size", "5")
    assert refused.code != 0
    assert "max_size=5 with partitions=8" in refused.err
    listed = cli("queues", "list", "--json").value
    assert [one["name"] for one in listed] == ["mail", "mail-other"]
    assert cli("tasks", "list", "mail", "--json", "--limit", "200").code == 0
    shown = cli("tasks", "show", "own-3", "--queue", "mail")
    assert (shown.code, "own-3" in shown.out) == (0, True)
    assert cli("tasks", "cancel", "own-3", "--queue", "mail").code == 0
    assert cli("queues", "purge", "mail", "--state", "waiting", "--yes").code == 0
    assert spread.queue("mail").counts()["waiting"] == 0


def test_a_queue_of_a_pipeline_with_partitions_is_one_queue_too(client: Client) -> None:
    queue = client.queue("shop/raw")
    queue.configure(partitions=4, max_attempts=1)
    queue.push_many(range(80))
    assert [(view.name, view.waiting) for view in overview(client).queues] == [("shop/raw", 80)]
    assert len(list_tasks(client, "shop/raw", "waiting", limit=200)) == 80
    found = search(client, Filter(queue="shop/raw"), limit=200)
    assert {row.queue for row in found.tasks} == {"shop/raw", "shop@1/raw", "shop@2/raw", "shop@3/raw"}
    assert search(client, Filter(), limit=200).total == 80


def test_the_lag_of_a_station_is_that_of_all_its_partitions(client: Client) -> None:
    queue = client.queue("shop/raw")
    queue.configure(partitions=4)
    queue.push_many(range(64))
    sampler = StatsSampler(broker_of(client), keys_of(client))
    sampler.take(ScanReply(holding=["shop/raw", "shop@1/raw", "shop@2/raw", "shop@3/raw"]))
    sampler.step(unix_ms() - 30_000)
    (lag,) = read_lags(client, "shop")
    assert (lag.queue, lag.waiting, lag.arrivals_per_s) == ("shop/raw", 64, 0.0)


@pytest.mark.parametrize("partitions", [1, 4])
def test_the_lag_of_a_queue_that_programs_consume_has_what_they_took(
    client: Client, clock: Any, partitions: int
) -> None:
    """Its throughput was 0 and its time to drain unknown, since no worker counts what a program pops."""
    queue = client.queue("shop/raw")
    queue.configure(partitions=partitions)
    sampler = StatsSampler(broker_of(client), keys_of(client))
    now_ms = clock.set(unix_ms() - 180_000)
    for minute in range(3):
        queue.push_many(range(240))
        assert sum(queue.pop() is not None for _ in range(120)) == 120
        sampler.take(ScanReply(holding=["shop/raw", *(f"shop@{n}/raw" for n in range(1, partitions))]))
        sampler.step(now_ms + minute * 60_000)
        clock.advance(60_000)

    (lag,) = read_lags(client, "shop")

    assert (lag.waiting, lag.throughput_per_s, lag.drain_s) == (360, 2.0, 180.0)
    assert lag.arrivals_per_s == pytest.approx(2 + 240 / 180, rel=0.1)
    assert lag.suggested_workers == 1


def test_a_look_shows_what_runs_in_all_shards(spread: Client) -> None:
    held = spread.queue("mail").reserve(60)

    running = look(spread).running

    assert {row.queue for row in running} == {"mail", "mail@1", "mail@2", "mail@3"}
    assert {row.id for row in running} <= {one.id for one in held}


def test_the_doctor_finds_strange_jobs_in_any_shard(spread: Client, raw: Any) -> None:
    last = keys_of(spread).queue("mail@3")
    raw.hset(last.tasks + raw.zrange(last.waiting, 0, 0)[0], "type", "Strange")

    assert [check.found for check in types_checks(spread, {"Known"})] == [
        "mail: tasks of job 'Strange', which the modules do not declare"
    ]
    says = {"queues": "mail", "types": "Known"}
    broker_of(spread).run(announce(keys_of(spread), "w1", says, ttl_ms=60_000))
    assert [(one.queue, one.type, one.tasks) for one in look(spread).unknown] == [("mail", "Strange", 1)]


def test_a_look_reads_as_many_as_it_shows_where_few_of_many_shards_hold_tasks(client: Client) -> None:
    queue = client.queue("wide")
    queue.configure(partitions=64)
    queue.push_many(range(100))  # in two shards
    held = queue.reserve(50)
    assert len({tag_of_id(one.id) for one in held}) < 5

    assert len(look(client).running) >= 10
