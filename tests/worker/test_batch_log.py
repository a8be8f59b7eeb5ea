"""What a driver reports of its batches: the log of the queue, the figures and metrics of the station, its lag."""

import json
import math
from typing import Any

import pytest
from msgspec.structs import replace

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import batch_log
from jobrunner.broker.calls import queues as queue_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.clock import unix_ms
from jobrunner.inspector.batches import recent_batches
from jobrunner.inspector.lag import read_lags, run_s_of
from jobrunner.jobs.batch_driver import BatchEnd
from jobrunner.jobs.batch_record import BatchRecord, read_record, write_record
from jobrunner.metrics.exposition import render
from jobrunner.worker.report.stats import StatsRecorder

QUEUE = "flights/clean"


def record(number: int, **changed: Any) -> BatchRecord:
    """The record of batch `number`."""
    values: dict[str, Any] = {"outcome": "decided", "attempt": 1, "began_ms": 1e12, "items": 10, "rows": 8}
    return BatchRecord(id=f"b{number}", **values | {"fill_s": 1.0, "run_s": 2.0, "commit_s": 0.5} | changed)


@pytest.fixture
def stats(broker: Broker, keys: Keys) -> StatsRecorder:
    """What a worker counts into."""
    return StatsRecorder(broker, keys, "worker-1")


def test_the_log_has_the_last_hundred_newest_first_and_expires(
    stats: StatsRecorder, client: Client, raw: Any, keys: Keys
) -> None:
    for number in range(150):
        stats.batch(QUEUE, BatchEnd(record=record(number)))
    stats.flush()
    stats.batch(QUEUE, BatchEnd(record=record(150, outcome="failed", attempt=2, cause="KeyError: password='hidden'")))
    stats.flush()

    found = recent_batches(client, QUEUE)

    assert [one.id for one in found] == [f"b{number}" for number in range(150, 50, -1)]
    assert found[0].cause == "KeyError: password=••••••", "hidden as in the errors of tasks"
    assert (found[1].items, found[1].rows, found[1].took_s) == (10, 8, 3.0)
    assert 0 < raw.ttl(keys.queue(QUEUE).batch_log) <= 7 * 86_400
    assert recent_batches(client, QUEUE, 3) == found[:3]
    assert recent_batches(client, "flights/none") == []


def test_an_entry_that_was_written_twice_or_is_damaged_is_read_once_or_not(client: Client, keys: Keys) -> None:
    entry = write_record(record(1))
    broker_of(client).run_many(batch_log.note(keys.queue(QUEUE), [entry, b'{"id": 7}', b"\xff", entry]))
    assert recent_batches(client, QUEUE) == [read_record(entry)]


def test_a_log_that_cannot_be_written_is_no_trouble_for_the_figures(
    stats: StatsRecorder, client: Client, raw: Any, keys: Keys
) -> None:
    raw.set(keys.queue(QUEUE).batch_log, "not a list")
    stats.batch(QUEUE, BatchEnd(record=record(1)))
    stats.flush()
    assert b'jobrunner_station_batches_total{outcome="decided",queue="flights/clean"} 1.0' in render(client)


def test_deleting_the_queue_deletes_its_log(stats: StatsRecorder, client: Client, raw: Any, keys: Keys) -> None:
    client.queue(QUEUE).push(1)
    stats.batch(QUEUE, BatchEnd(record=record(1)))
    stats.flush()
    assert client.queue(QUEUE).delete(force=True)
    assert not raw.exists(keys.queue(QUEUE).batch_log)


def test_metrics_of_a_station_add_up_and_are_no_attempts_of_a_job(stats: StatsRecorder, client: Client) -> None:
    client.queue(QUEUE).push(1)
    stats.batch(QUEUE, BatchEnd(record=record(1, advance_s=0.25, spilled_bytes=7, shuffle_bytes=9)))
    stats.batch(QUEUE, BatchEnd(record=record(1, outcome="split", attempt=2)))
    stats.flush()

    lines = render(client).decode().splitlines()

    for expected in (
        'jobrunner_station_batches_total{outcome="decided",queue="flights/clean"} 1.0',
        'jobrunner_station_batches_total{outcome="split",queue="flights/clean"} 1.0',
        'jobrunner_station_batches_total{outcome="lost",queue="flights/clean"} 0.0',
        'jobrunner_station_rows_in_total{queue="flights/clean"} 20.0',
        'jobrunner_station_rows_out_total{queue="flights/clean"} 16.0',
        'jobrunner_station_seconds_total{queue="flights/clean",step="fill"} 2.0',
        'jobrunner_station_seconds_total{queue="flights/clean",step="run"} 3.0',
        'jobrunner_station_seconds_total{queue="flights/clean",step="commit"} 1.0',
        'jobrunner_station_seconds_total{queue="flights/clean",step="advance"} 0.25',
        'jobrunner_station_spilled_bytes_total{queue="flights/clean"} 7.0',
        'jobrunner_station_shuffle_bytes_total{queue="flights/clean"} 9.0',
        'jobrunner_station_suggested_workers{queue="flights/clean"} 1.0',
        'jobrunner_station_drain_seconds{queue="flights/clean"} +Inf',
    ):
        assert expected in lines
    assert not [line for line in lines if 'type="-"' in line]


def measured(client: Client, *, moved: int, run_us: int, waited: int) -> None:
    """Figures as of workers and the leader: what left the queue a minute ago, and how many waited then."""
    keys, now_ms = keys_of(client), unix_ms()
    counted = {f"{QUEUE}  moved": moved, f"{QUEUE}  run:20": moved, f"{QUEUE}  run_us": run_us}
    for call in stats_calls.observe(keys, now_ms - 60_000, "w", 1, counted):
        broker_of(client).run(call)
    view = broker_of(client).run(queue_calls.counts(keys.queue(QUEUE)))
    broker_of(client).run(stats_calls.sample(keys, now_ms - 60_000, {QUEUE: replace(view, waiting=waited)}))


def test_the_lag_of_a_growing_queue_asks_for_more_workers(client: Client, cli: Any) -> None:
    client.queue(QUEUE).push_many(range(600))
    client.queue("plain").push(1)
    measured(client, moved=1200, run_us=999_000_000, waited=0)

    broker_of(client).run_many(batch_log.note(keys_of(client).queue(QUEUE), [
        write_record(record(1, items=1000, run_s=100.0)), write_record(record(2, items=499, run_s=100.0)),
    ]))  # fmt: skip
    (lag,) = read_lags(client, "flights", within_s=60)

    assert (lag.queue, lag.waiting, lag.slots, lag.workers) == (QUEUE, 600, 1, 0)
    assert lag.run_s == pytest.approx(0.1), "of the large batch alone"
    assert 5 < lag.throughput_per_s <= 20.5, "1 200 items in one to two minutes, and a busy machine takes its time"
    assert lag.drain_s == pytest.approx(600 / lag.throughput_per_s)
    growth_per_s = lag.arrivals_per_s - lag.throughput_per_s
    assert growth_per_s == pytest.approx(10, rel=0.3), "600 more than a minute ago"
    assert lag.suggested_workers == math.ceil((lag.arrivals_per_s + 10) * 0.1)
    assert read_lags(client, "flights", within_s=6)[0].suggested_workers > lag.suggested_workers

    found = json.loads(cli("pipeline", "lag", "flights", "--json").out)[0]
    (later,) = read_lags(client, "flights", within_s=60)  # the rates fall with the time since the items came
    assert (found["queue"], found["waiting"]) == (QUEUE, 600)
    assert lag.suggested_workers >= found["suggested_workers"] >= later.suggested_workers
    assert "flights/clean" in cli("pipeline", "lag").out
    refused = cli("pipeline", "lag", "flihgts")
    assert refused.code == 1
    assert "did you mean 'flights'" in refused.err
    client.queue(QUEUE).pause()
    assert read_lags(client)[0].suggested_workers == 0


@pytest.mark.parametrize(
    ("changed", "run_s"),
    [
        ([{}, {}], 0.4),
        ([{"driver": "a"}, {"driver": "a"}], 0.2),
        ([{"driver": "a"}, {"driver": "b"}], 0.4),
        ([{"driver": "a"}, {"driver": "a", "fill_s": 3.0}], 0.3),
        ([{"driver": "a"}, {"driver": "a", "began_ms": 2e12}], 0.4),
        ([{"driver": "a", "run_s": 8.0}, {"driver": "a", "fill_s": 2.0}], 0.4),
        ([{"driver": "a"}, {"driver": "a", "items": 1}], 0.4),
        ([], None),
    ],
)
def test_batches_that_one_driver_ran_beside_each_other_share_its_time(changed: Any, run_s: float | None) -> None:
    """Each has 10 items and ran for 4 s, behind a second of filling, unless it says so."""
    batches = [record(number, **{"run_s": 4.0, "items": 10} | one) for number, one in enumerate(changed)]
    assert run_s_of(batches) == (None if run_s is None else pytest.approx(run_s))


@pytest.mark.parametrize(("outcomes", "state"), [(["decided", "released"], "stopped"), (["released", "decided"], "-")])
def test_the_lag_of_a_station_says_that_it_has_stopped(client: Client, cli: Any, outcomes: Any, state: str) -> None:
    """It looked as if workers were missing."""
    client.queue(QUEUE).push(1)
    for number, outcome in enumerate(outcomes):
        entry = record(number, outcome=outcome, stops=outcome == "released", cause="OSError: no table")
        broker_of(client).run_many(batch_log.note(keys_of(client).queue(QUEUE), [write_record(entry)]))

    assert cli("pipeline", "lag").out.splitlines()[-1].split()[-1] == state
    assert json.loads(cli("pipeline", "lag", "--json").out)[0]["stopped"] == (state == "stopped")
    assert client.queue(QUEUE).pop()
    assert not read_lags(client)[0].stopped, "there is nothing to do"



def test_without_a_time_something_that_waits_gets_one_worker_and_nothing_none(client: Client) -> None:
    client.queue(QUEUE).push(1)
    client.queue("flights/idle").configure(max_attempts=2)
    client.queue("flights/idle").push(1)
    client.queue("flights/idle").purge("waiting")
    found = {one.queue: one.suggested_workers for one in read_lags(client)}
    assert found == {QUEUE: 1, "flights/idle": 0}
