"""Graphs of pipelines on the server: written when a pipeline is used, read by who has none of its code."""

import pytest

from jobrunner.etl import Pipeline
from jobrunner.etl.stored_graph import publish, published


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

    graph = client.broker.run(published(client.keys))["orders"]

    assert [(node.short, node.kind, node.targets, node.dead_letter_queue) for node in graph.nodes] == [
        ("raw", "station", ("orders/checked", "orders/raw"), "orders/lost"),
        ("checked", "sink", (), None),
        ("lost", "queue", (), None),
    ]


def test_the_last_one_to_write_is_right(client, orders):
    client.broker.run(publish(client.keys, orders.graph))
    orders.declare("more")
    client.broker.run(publish(client.keys, orders.graph))

    assert [node.short for node in client.broker.run(published(client.keys))["orders"].nodes][-1] == "more"


@pytest.mark.parametrize(
    "damage", [b"", b"{}", b'[{"queue": 1}]', b"\xff", b'[{"queue":"a/b","kind":"sink"},{"queue":"a/b","kind":"sink"}]']
)
def test_damage_is_not_there(client, orders, raw, damage):
    client.broker.run(publish(client.keys, orders.graph))
    raw.hset(client.keys.pipelines, "broken", damage)

    assert list(client.broker.run(published(client.keys))) == ["orders"]


def test_no_pipeline_is_no_graph(client):
    assert client.broker.run(published(client.keys)) == {}
