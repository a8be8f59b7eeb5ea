"""The page of a station on Spark: its lag, its settings, its last batches."""

import html
import re

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import batch_log
from jobrunner.client.client import broker_of, keys_of
from jobrunner.etl import Pipeline
from jobrunner.jobs.batch_record import BatchRecord, write_record
from tests.support.absent_node import take_away
from tests.support.registries import forget_pipelines

JSON = {"accept": "application/json"}


@pytest.fixture
def flights(client):
    """A pipeline of which a program used the graph, and whose module this process need not have."""
    forget_pipelines()
    made = Pipeline("flights", client)

    @made.spark_station("clean", to=("late", "in_time"), batch=20_000, max_wait=0.5, schema="n int", max_attempts=7)
    def clean(df, spark): ...

    @made.station("late", to="in_time")
    def late(item): ...

    made.declare("in_time")
    made.push("clean", {"n": 1})
    yield made
    forget_pipelines()


def note(client, *records):
    entries = [write_record(one) for one in records]
    broker_of(client).run_many(batch_log.note(keys_of(client).queue("flights/clean"), entries))


def test_a_station_has_its_settings_lag_and_batches(browse, client, flights):
    note(
        client,
        BatchRecord(id="b1", outcome="decided", attempt=1, began_ms=1e12, items=20_000, rows=19_000, run_s=4.0,
                    advance_s=1.0, spilled_bytes=5_000_000),
        BatchRecord(id="b2", outcome="split", attempt=2, began_ms=1e12, items=500, cause="ValueError: <b>token='x'"),
    )  # fmt: skip

    page = browse().get("/pipelines/flights/clean").text

    of_batches = ("20,000", "19,000", "4,000", "4.8 MiB")
    for expected in (*of_batches, "500 ms", "n int", "late, in_time", "in 5 min", "max attempts"):
        assert expected in page, expected
    assert "The last batch was split:" in page
    assert "ValueError: &lt;b&gt;token=••••••" in page
    assert 'href="/pipelines/flights/clean"' in browse().get("/pipelines/flights").text
    values = browse().get("/pipelines/flights/clean", headers=JSON).json()
    assert [one["outcome"] for one, _ in values["batches"]] == ["split", "decided"]
    assert values["lag"]["waiting"] == 1


def test_a_station_that_stopped_says_so_until_a_batch_succeeds_or_nothing_is_left(browse, client, flights):
    said = "The station has stopped, as the error is no item"
    note(
        client,
        BatchRecord(id="b1", outcome="decided", attempt=1, began_ms=1e12, items=5),
        BatchRecord(id="b2", outcome="released", attempt=1, began_ms=1e12, items=5, cause="TableError: x", stops=True),
        BatchRecord(id="b3", outcome="lost", attempt=1, began_ms=1e12, items=5, cause="BatchLost: y"),
    )
    page = browse().get("/pipelines/flights/clean").text
    assert said in page
    assert "TableError: x" in page
    client.queue("flights/clean").purge("waiting")
    assert said not in browse().get("/pipelines/flights/clean").text
    flights.push("clean", {"n": 1})
    assert said in browse().get("/pipelines/flights/clean").text
    note(client, BatchRecord(id="b2", outcome="decided", attempt=2, began_ms=1e12, items=5))
    assert said not in browse().get("/pipelines/flights/clean").text


def test_a_station_in_python_and_one_without_batches_say_so(browse, flights):
    assert "A station in Python runs one item at a time" in browse().get("/pipelines/flights/late").text
    assert "No batch yet" in browse().get("/pipelines/flights/clean").text


@pytest.mark.parametrize("path", ["flights/in_time", "flights/none", "none/clean"])
def test_what_no_station_serves_has_no_page(browse, flights, path):
    assert browse().get(f"/pipelines/{path}").status_code == 404


def test_a_pipeline_with_partitions_is_shown_as_a_whole_and_its_items_are_found(browse, client, flights):
    flights.queue("clean").configure(partitions=3)
    ids = flights.push_many("clean", [{"n": n} for n in range(60)])
    shown = browse().get("/pipelines/flights", headers=JSON).json()
    assert shown["line"]["waiting"] == 61
    assert "flights@1" not in browse().get("/pipelines").text
    assert browse().get("/pipelines/flights/clean").status_code == 200
    (item,) = [one for one in ids if one.endswith("-flights@2")][:1]
    page = browse().get(f"/tasks/{item}")
    assert page.status_code == 200
    assert 'href="/pipelines/flights"' in page.text
    listed = browse().get("/queues/flights/clean")
    assert (listed.status_code, client.queue("flights/clean").counts()["waiting"]) == (200, 61)
    for link in set(re.findall(r'href="(/(?:queues|tasks|pipelines)[^"#]*)"', page.text)):
        assert browse().get(html.unescape(link)).status_code == 200, link


def test_a_station_is_shown_while_the_node_of_the_statistics_is_away(browse, client, flights, monkeypatch):
    """Its page was an error, though its queue and its batches are on other nodes."""
    note(client, BatchRecord(id="b1", outcome="decided", attempt=1, began_ms=1e12, items=20_000, run_s=4.0))
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    take_away(broker_of(client), monkeypatch, lambda key: b"{/stats}" in key)

    page = browse().get("/pipelines/flights/clean")
    assert page.status_code == 200, page.text
    assert "the statistics cannot be read" in page.text
    assert "nothing left in 5 min" not in page.text
    lag = browse().get("/pipelines/flights/clean", headers=JSON).json()["lag"]
    assert (lag["waiting"], lag["throughput_per_s"], lag["suggested_workers"]) == (1, None, None)
