"""Jobs that no worker knows, where a person sees them."""

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import broker_of, keys_of
from jobrunner.task import Task


def test_a_job_that_no_worker_knows_is_warned_of_where_a_person_looks(browse, client):
    said = {"queues": "mail", "types": "Other"}
    broker_of(client).run(leader_calls.announce(keys_of(client), "w.1.00c0de", said, ttl_ms=60_000))
    client.enqueue(Task(id="a", queue="mail", type="Ghost", payload=b"{}"))

    browser = browse()
    for path in ("/", "/workers", "/queues/mail"):
        text = browser.get(path).text
        assert "Ghost" in text, path
        assert "No live worker" in text or "no live worker" in text, path
