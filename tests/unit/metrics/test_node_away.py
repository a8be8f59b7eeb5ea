"""A scrape while a node of a cluster is away: what the others have, and no zeros for what cannot be read."""

from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector.lag import read_lags
from jobrunner.metrics.exposition import Scrapes
from jobrunner.metrics.reading import PARTS
from tests.support.absent_node import take_away
from tests.unit.metrics.test_exposition import end, label, read

AWAY = "node h:1 of the cluster does not answer"
IS_OF: dict[str, Callable[[Keys, bytes], bool]] = {
    "queues": lambda keys, key: key == keys.queues,
    "workers": lambda keys, key: key == keys.workers,
    "stats": lambda _, key: b"{/stats}" in key,
    "leader": lambda keys, key: key == keys.leader,
    "periodic": lambda keys, key: key == keys.periodics,
}


@pytest.fixture
def shop(client: Client, broker: Broker, keys: Keys) -> Client:
    """Two queues with counts, one of them of a pipeline; a worker, and statistics."""
    end(client, "mail", "send", 3)
    end(client, "p/raw", "load", 2)
    client.queue("p/raw").push("x")
    broker.run(leader_calls.announce(keys, "w.1.00c0de", {"queues": "mail,p/raw", "types": "send"}, ttl_ms=600_000))
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, {"mail send run:1": 1, "- - round_trip:3": 1}):
        broker.run(call)
    return client


@pytest.mark.parametrize("part", IS_OF)
def test_a_scrape_has_what_other_nodes_have(shop: Client, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """It was answered with 503, and nothing of the queues and workers on the other nodes was known to Prometheus."""
    scrapes, keys = Scrapes(shop), keys_of(shop)
    whole = read(scrapes.answer()[1])
    assert {name for name, _ in whole} >= {"jobrunner_readable", "jobrunner_redis_round_trip_seconds_count"}
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    with monkeypatch.context() as absent, capture_logs() as logs:
        take_away(broker_of(shop), absent, lambda key: IS_OF[part](keys, key))
        status, body = scrapes.answer()
        scrapes.answer()
    assert status == 200
    found = read(body)

    assert {dict(labels)["part"]: value for (name, labels), value in found.items() if name == "jobrunner_readable"} == {
        **dict.fromkeys(PARTS, 1.0), part: 0.0, **({"streams": 0.0} if part == "stats" else {})  # they share a slot
    }  # fmt: skip
    assert [one[part] for one in logs if "incomplete" in one["event"]] == [AWAY], "once, and not at each scrape"
    assert found[label("jobrunner_tasks_total", queue="mail", type="send", outcome="succeeded")] == 3
    assert found[label("jobrunner_queue_depth", queue="p/raw", state="waiting")] == 1
    missing = {name for name, _ in whole} - {name for name, _ in found}
    assert missing == {
        "queues": {"jobrunner_queues"},
        "workers": {f"jobrunner_{name}" for name in ("workers", "worker_slots", "worker_running", "worker_fetched")}
        | {"jobrunner_queue_workers", "jobrunner_station_drain_seconds", "jobrunner_station_suggested_workers"},
        "stats": {f"jobrunner_{name}_{end}" for name in ("task_run_seconds", "redis_round_trip_seconds")
                  for end in ("bucket", "count", "sum")}
        | {"jobrunner_retries_total", "jobrunner_stale_reports_total"}
        | {"jobrunner_station_drain_seconds", "jobrunner_station_suggested_workers"},
        "leader": {"jobrunner_leader"},
        "periodic": set(),
    }[part], "what is not known has no series: a zero would be a counter that begins anew, or an alert"  # fmt: skip


@pytest.mark.parametrize("gone", ["queues", "workers", "stats"])
def test_the_lag_of_pipelines_is_shown_as_far_as_it_is_known(
    shop: Client, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """`jobrunner pipeline lag` ended with the error of the node."""
    keys, unread, problems = keys_of(shop), dict[str, str](), list[str]()
    monkeypatch.setattr(Broker, "is_away", lambda *_: False)
    take_away(broker_of(shop), monkeypatch, lambda key: IS_OF[gone](keys, key))

    (lag,) = read_lags(shop, "p", unread=unread, problems=problems)

    told: Any = {"queues": [], "workers": [f"the workers cannot be read: {AWAY}"],
                 "stats": [f"the statistics cannot be read: {AWAY}"]}  # fmt: skip
    assert (problems, unread) == (told[gone], {"(others)": AWAY} if gone == "queues" else {})
    assert (lag.queue, lag.waiting, lag.workers) == ("p/raw", 1, 0 if gone == "workers" else 1)
    rates = (lag.arrivals_per_s, lag.throughput_per_s, lag.drain_s, lag.run_s, lag.suggested_workers)
    assert (rates == (None,) * 5) == (gone == "stats")
