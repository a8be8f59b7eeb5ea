"""The number of commands and round trips of a page stays small, however many queues and tasks there are."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.task import Task

MOST = 50
_ROWS = 50
_LINES = 60 + 200 + 60
"""Sorted sets with tasks: pending and dead ones of sixty queues, waiting ones of all."""
_SETS = 4 * 200
MORE = {"/tasks": _ROWS + _SETS, "/dead": _ROWS + 200, "/tasks?type=none": _LINES + _SETS, "/history": 200}
"""Lists read the size of each sorted set, which takes the server a microsecond, and each line that they need, by
commands of their own, in few round trips."""
MOST_ROUND_TRIPS = 20
JSON = {"accept": "application/json"}


@pytest.fixture
def town(client: Client) -> Client:
    """200 queues with something in each state that can be made quickly, and a worker that knows none of their jobs."""
    names = [f"queue-{n}" for n in range(200)]
    client.enqueue_many(
        Task(id=f"{state}{n}", queue=name, type="Send", payload=b"{}", max_attempts=1)
        for name in names
        for n, state in enumerate(("a", "b", "c"))
    )
    for name in names[:60]:
        first, _ = client.queue(name).reserve(n=2)
        first.rollback(error="broken")
    said = {"queues": ",".join(names), "types": "Other"}
    broker_of(client).run(leader_calls.announce(keys_of(client), "w.1.00c0de", said, ttl_ms=600_000))
    return client


PATHS = (
    *("/", "/?span=6h", "/queues", "/queues/queue-7", "/tasks", "/tasks?type=none", "/tasks/c2?queue=queue-7"),
    *("/dead", "/workers", "/periodic", "/pipelines", "/history", "/flows", "/redis", "/events", "/audit"),
)


def test_a_page_costs_at_most_fifty_commands(browse: Callable[..., Any], town: Client) -> None:
    browser = browse()
    sent: list[int] = []
    replies = broker_of(town)._replies
    broker_of(town)._replies = lambda calls, *rest: sent.append(len(calls)) or replies(calls, *rest)  # type: ignore[method-assign,func-returns-value]

    for path in PATHS:
        sent.clear()
        browser.dashboard.live.forget()  # the first tab after a while

        assert browser.get(path, headers=JSON).status_code == 200
        assert sum(sent) <= MOST + MORE.get(path, 0), (path, sent)
        assert len(sent) <= MOST_ROUND_TRIPS, (path, sent)
