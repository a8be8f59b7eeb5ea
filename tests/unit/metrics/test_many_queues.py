"""A scrape is bounded, however many queues there are, and says what it left out."""

from typing import Any

import pytest

from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import Client
from jobrunner.errors import ServerUnavailable
from jobrunner.metrics import exposition, reading
from jobrunner.metrics.exposition import Scrapes, render
from tests.unit.metrics.test_exposition import label, read


def queues_of(found: Any, name: str) -> set[str]:
    return {dict(labels)["queue"] for metric, labels in found if metric == name}


def test_queues_beyond_the_most_are_shown_together(
    client: Client, broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_QUEUES", 3)
    for name in "abcdz":
        client.queue(name).push_many(range(2))
    client.queue("d").reserve()
    said = {"queues": "z", "types": "Send"}
    broker.run(leader_calls.announce(keys, "w.1.00c0de", said, ttl_ms=600_000))
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, {f"{name} Send run:1": 1 for name in "abcdz"}):
        broker.run(call)

    found = read(render(client))

    assert queues_of(found, "jobrunner_queue_depth") == {"a", "b", "z", "(others)"}, "those that are served come first"
    assert found[label("jobrunner_queue_depth", queue="(others)", state="waiting")] == 3
    assert found[label("jobrunner_queue_depth", queue="(others)", state="pending")] == 1
    assert found[label("jobrunner_in_flight", queue="(others)")] == 1
    assert found[label("jobrunner_queues")] == 5
    assert queues_of(found, "jobrunner_enqueued_total") == {"a", "b", "z"}
    assert queues_of(found, "jobrunner_task_run_seconds_count") == {"a", "b", "z"}
    assert queues_of(found, "jobrunner_queue_workers") == {"a", "b", "z"}


def test_stations_with_workers_or_items_have_a_lag_when_there_are_too_many(
    client: Client, broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_MOST_LAGS", 2)
    for name in ("p/a", "p/b", "p/y", "p/z"):
        client.queue(name).push(1)
    for name in ("p/a", "p/b", "p/z"):
        client.queue(name).pop()
    broker.run(leader_calls.announce(keys, "w.1.00c0de", {"queues": "p/z"}, ttl_ms=600_000))

    assert queues_of(read(render(client)), "jobrunner_station_suggested_workers") == {"p/y", "p/z"}


def test_as_many_as_there_may_be_have_no_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_QUEUES", 2)
    for name in "ab":
        client.queue(name).push(1)
    found = read(render(client))
    assert queues_of(found, "jobrunner_queue_depth") == {"a", "b"}
    assert found[label("jobrunner_queues")] == 2


class Slow:
    """Replaces the reader and the clock that measures its duration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.takes_s, self.count = 100.0, 1.0, 0
        self.error: Exception | None = None
        monkeypatch.setattr(exposition, "generate_latest", self.render)
        monkeypatch.setattr(exposition, "monotonic", lambda: self.now)

    def render(self, _registry: object) -> bytes:
        self.now += self.takes_s
        self.count += 1
        if self.error is not None:
            raise self.error
        return b"%d" % self.count


def test_a_reading_that_takes_long_serves_for_four_times_as_long(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    scrapes = Scrapes(client)

    assert scrapes.answer() == (200, b"1")
    slow.now += 3.99
    assert scrapes.answer() == (200, b"1")
    slow.now += 0.02
    assert scrapes.answer() == (200, b"2")


def test_a_quick_reading_serves_one_scrape(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.takes_s = 0.2
    scrapes = Scrapes(client)
    assert [scrapes.answer()[1] for _ in range(3)] == [b"1", b"2", b"3"]


def test_a_server_that_is_away_is_asked_again(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    slow.error, slow.takes_s = ServerUnavailable("away"), 0.1
    scrapes = Scrapes(client)
    assert scrapes.answer() == (503, b"away\n")
    slow.error = None
    assert scrapes.answer() == (200, b"2")


def test_those_who_waited_for_a_silent_server_get_the_error_of_the_one_before(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waited for its own five seconds, behind the others, so they piled up while the server was silent."""
    slow = Slow(monkeypatch)
    slow.error, slow.takes_s = ServerUnavailable("silent"), 5.0
    scrapes = Scrapes(client)

    assert [scrapes.answer() for _ in range(3)] == [(503, b"silent\n")] * 3
    assert slow.count == 1
    slow.now += 5.01
    slow.error = None
    assert scrapes.answer() == (200, b"2")
