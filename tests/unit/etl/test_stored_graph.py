"""Graphs of pipelines on the server: written when a pipeline is used, read by processes without its code."""

import pytest

from jobrunner.client.client import broker_of, keys_of
from jobrunner.etl import Pipeline
from jobrunner.etl.graph import publish, published


@pytest.fixture
def orders(client):
    made = Pipeline("orders", client)

    @made.station("raw", to=("checked", "raw"), dead_letter_queue="lost")
    def check(item): ...

    @made.sink("checked")
    def store(item): ...

    made.declare("lost")
    return made


def test_a_pipeline_that_was_used_can_be_read_without_its_code(client, orders):
    orders.push("raw", {"order": 1})

    graph = broker_of(client).run(published(keys_of(client)))["orders"]

    assert [(node.short, node.kind, node.targets, node.dead_letter_queue) for node in graph.nodes] == [
        ("raw", "station", ("orders/checked", "orders/raw"), "orders/lost"),
        ("checked", "sink", (), None),
        ("lost", "queue", (), None),
    ]


def test_the_last_one_to_write_is_right(client, orders):
    broker_of(client).run(publish(keys_of(client), orders.graph))
    orders.declare("more")
    broker_of(client).run(publish(keys_of(client), orders.graph))

    assert [node.short for node in broker_of(client).run(published(keys_of(client)))["orders"].nodes][-1] == "more"


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b'[{"queue": 1}]', b"\xff", b'[{"queue":"a/b","kind":"sink"},{"queue":"a/b","kind":"sink"}]']
)
def test_damage_is_not_there(client, orders, raw, damage):
    broker_of(client).run(publish(keys_of(client), orders.graph))
    raw.hset(keys_of(client).pipelines, "broken", damage)

    assert list(broker_of(client).run(published(keys_of(client)))) == ["orders"]


def test_no_pipeline_is_no_graph(client):
    assert broker_of(client).run(published(keys_of(client))) == {}
