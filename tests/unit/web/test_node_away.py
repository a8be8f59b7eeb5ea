"""Pages while a node of a cluster is away that has the list of workers, and the names of hidden parameters."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.client.client import Client, broker_of
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
