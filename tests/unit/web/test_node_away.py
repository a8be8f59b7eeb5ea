"""Pages while a node of a cluster is away that has a list: of workers and names of hidden parameters, or of queues."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, broker_of
from jobrunner.inspector.shards import with_shards
from tests.support.absent_node import take_away


def test_pages_show_what_other_nodes_have_while_that_of_the_list_of_workers_is_away(
    client: Client, browse: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page was an error, also those of queues and tasks on the other nodes."""
    queue = client.queue("mail")
    task = queue.push({"city": "Bern"})
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    take_away(broker_of(client), monkeypatch, lambda key: b"{/}" in key)
    browser = browse()

    for path in ("/", "/queues", "/queues/mail", "/tasks", f"/tasks/{task}", "/dead", "/events"):
        page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        assert "Bern" not in page.text
    warnings = browser.get("/", headers={"accept": "application/json"}).json()["warnings"]
    (warning,) = (one for one in warnings if one["what"] == "workers")  # and none of a queue without a worker
    assert warning["verdict"] == "fail"
    assert warning["advice"] == "node h:1 of the cluster does not answer"
    refused = browser.get("/workers", headers={"accept": "application/json"})
    assert refused.status_code == 503
    assert "the workers cannot be read: node h:1 of the cluster does not answer" in refused.json()["error"]


@pytest.mark.parametrize("was_listed", [True, False])
def test_pages_show_the_known_queues_while_the_node_of_the_list_of_queues_is_away(
    client: Client, browse: Callable[..., Any], keys: Keys, broker: Broker, monkeypatch: pytest.MonkeyPatch,
    was_listed: bool,
) -> None:  # fmt: skip
    """Each page was an error, also that of the workers and of events, which need no list of queues."""
    broker.run(leader_calls.announce(keys, "w.1.00c0de", {"queues": "mail"}, ttl_ms=600_000))
    task = client.queue("mail").push("x")
    client.queue("unserved").push("x")
    if was_listed:
        with_shards(client, None)
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    take_away(broker_of(client), monkeypatch, lambda key: key == keys.queues)
    browser = browse()

    def found(path: str) -> Any:
        page = browser.get(path)
        assert page.status_code == 200, (path, page.text)
        return browser.get(path, headers={"accept": "application/json"}).json()

    for path in ("/workers", "/periodic", "/pipelines", "/flows", "/events", "/audit", "/redis", f"/tasks/{task}"):
        found(path)
    shown = {one["name"]: one["problem"] for one in found("/queues")["queues"]}
    away = "node h:1 of the cluster does not answer"
    assert shown == {"mail": "", "(others)": away} | ({"unserved": ""} if was_listed else {})
    (warning,) = (one for one in found("/")["warnings"] if one["what"] == "queues")
    assert (warning["found"], warning["advice"]) == ("1 queue cannot be read: (others)", away)
    for path in ("/tasks", "/history", "/dead"):
        assert found(path)["search"]["problems"] == [["(others)", away]], path
    assert found("/queues/unserved")["queue"]["waiting"] == 1, "it is there, listed or not"


def test_the_page_of_a_station_does_not_deny_it_while_the_node_of_the_graphs_is_away(
    client: Client, browse: Callable[..., Any], keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dashboard that was started then said that the pipeline has no such station."""
    client.queue("orders/raw").push("x")
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    take_away(broker_of(client), monkeypatch, lambda key: key == keys.pipelines)

    refused = browse().get("/pipelines/orders/raw", headers={"accept": "application/json"})

    assert refused.status_code == 503, refused.text
    assert "node h:1 of the cluster does not answer" in refused.json()["error"]
