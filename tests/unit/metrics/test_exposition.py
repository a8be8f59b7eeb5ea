"""The text that Prometheus scrapes, and the health endpoint."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from jobrunner import Client
from jobrunner.broker.broker import Broker
from jobrunner.broker.calls import leader, leases
from jobrunner.broker.calls import stats as stats_calls
from jobrunner.broker.keys import Keys
from jobrunner.client.client import broker_of, keys_of
from jobrunner.errors import ServerUnavailable
from jobrunner.inspector.snapshot import queue_views
from jobrunner.metrics import reading
from jobrunner.metrics.endpoint import MetricsEndpoint
from jobrunner.metrics.exposition import JobrunnerCollector, metrics_app, render
from jobrunner.periodic import AddedDefinition, PeriodicDefinition
from jobrunner.task import Task
from tests.support.waiting import wait_for


def read(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found[(sample.name, tuple(sorted(sample.labels.items())))] = sample.value
    return found


def label(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


def end(client: Client, queue: str, job: str, count: int, *, typed: bool = True) -> None:
    client.enqueue_many([Task(id=f"{job}{n}", type=job, queue=queue, payload=b"{}") for n in range(count)])
    keys = keys_of(client).queue(queue)
    held = broker_of(client).run(leases.reserve(keys, count, token=job)).attempts
    type_ = job if typed else ""
    broker_of(client).run(leases.commit(keys, [(a.id, a.token, 0, "succeeded", b"", b"", type_) for a in held]))


def test_ends_are_counted_by_type_and_together_make_the_totals(client: Client) -> None:
    end(client, "mail", "send", 3)
    end(client, "mail", "bill", 1)
    end(client, "mail", "other", 2, typed=False)

    found = read(render(client))

    def ended(type_: str) -> float:
        return found[label("jobrunner_tasks_total", queue="mail", type=type_, outcome="succeeded")]

    assert (ended("send"), ended("bill"), ended("")) == (3, 1, 2)
    assert found[label("jobrunner_enqueued_total", queue="mail")] == 6


def test_what_ends_while_a_scrape_reads_is_counted_of_its_type_alone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(*given: Any) -> Any:
        end(client, "mail", "later", 7)
        return queue_views(*given)

    end(client, "mail", "send", 3)
    end(client, "mail", "other", 2, typed=False)
    monkeypatch.setattr(reading, "queue_views", ends)

    found = read(render(client))

    counts = {
        dict(labels)["type"]: by
        for (name, labels), by in found.items()
        if name == "jobrunner_tasks_total" and ("outcome", "succeeded") in labels
    }
    assert counts == {"send": 3, "": 2}


def test_a_queue_that_cannot_be_read_has_no_counters_that_begin_anew(client: Client, raw: Any) -> None:
    end(client, "mail", "send", 3)
    raw.set(keys_of(client).queue("mail").dead, "damage")

    found = read(render(client))

    assert label("jobrunner_enqueued_total", queue="mail") not in found
    assert not [labels for name, labels in found if name == "jobrunner_tasks_total" and ("queue", "mail") in labels]


def test_depths_age_and_pause_are_those_of_the_queue(client: Client, clock: Any) -> None:
    clock.set()
    client.queue("mail").push_many(range(4))
    client.queue("mail").push(1, in_=60)
    client.queue("mail").reserve()
    client.queue("mail").pause()

    found = read(render(client))

    assert found[label("jobrunner_queue_depth", queue="mail", state="waiting")] == 3
    assert found[label("jobrunner_queue_depth", queue="mail", state="scheduled")] == 1
    assert found[label("jobrunner_in_flight", queue="mail")] == 1
    assert found[label("jobrunner_queue_paused", queue="mail")] == 1
    assert found[label("jobrunner_queue_workers", queue="mail")] == 0
    assert found[label("jobrunner_workers")] == 0


def test_what_workers_run_is_distinguished_from_what_they_fetched(client: Client) -> None:
    for number in (1, 2):
        said = {"host": "h", "queues": "mail", "concurrency": 8, "executing": 3, "fetched": 5, "in_hand": 8}
        broker_of(client).run(leader.announce(keys_of(client), f"h.{number}.00c0de", said, ttl_ms=60_000))

    found = read(render(client))

    assert found[label("jobrunner_worker_running")] == 6
    assert found[label("jobrunner_worker_fetched")] == 10
    assert found[label("jobrunner_worker_slots")] == 16


def test_the_next_tick_of_a_periodic_job_is_in_the_past_when_no_leader_fires_it(client: Client, raw: Any) -> None:
    definition = PeriodicDefinition(
        name="beat", queue="beats", schedule={"every": 60}, payload=b"{}", catch_up="last", overlap="skip", jitter=0
    )
    keys = keys_of(client)
    broker_of(client).run(leader.define_periodics(keys, {"beat": msgspec.json.encode(definition)}))
    raw.hset(keys.queue("beats").periodic("beat"), "last", round((time.time() - 600) * 1000))

    due = read(render(client))[label("jobrunner_periodic_next_timestamp_seconds", queue="beats", type="beat")]

    assert time.time() - due > 300  # as the rule JobrunnerPeriodicLate has it


def test_a_periodic_job_that_has_ended_has_no_next_tick(client: Client) -> None:
    ended = AddedDefinition(
        name="gone", queue="beats", schedule={"every": 60, "end": 1}, payload=b"{}", catch_up="last", overlap="skip",
        jitter=0, runs="beat", generation="1",
    )  # fmt: skip
    keys = keys_of(client)
    broker_of(client).run(leader.set_added_periodic(keys, "gone", expected=b"", definition=msgspec.json.encode(ended)))

    found = read(render(client))

    assert label("jobrunner_periodic_fired_total", queue="beats", type="gone") in found
    assert label("jobrunner_periodic_next_timestamp_seconds", queue="beats", type="gone") not in found


def test_histograms_add_up(client: Client, broker: Broker, keys: Keys) -> None:
    changes = {"mail send run:0": 2, "mail send run:20": 3, "mail send run:50": 1, "mail send run_us": 5_500_000}
    more = {"mail send failed": 5, "mail send dead": 2, "mail send stale": 1}
    more |= {"- - round_trip:12": 4, "- - round_trip_us": 240}
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, changes | more):
        broker.run(call)

    found = read(render(client))

    of = {"queue": "mail", "type": "send"}
    assert found[label("jobrunner_task_run_seconds_bucket", le="0.001", **of)] == 2
    assert found[label("jobrunner_task_run_seconds_bucket", le="1.024", **of)] == 5
    assert found[label("jobrunner_task_run_seconds_bucket", le="+Inf", **of)] == 6
    assert found[label("jobrunner_task_run_seconds_count", **of)] == 6
    assert found[label("jobrunner_task_run_seconds_sum", **of)] == 5.5
    assert found[label("jobrunner_retries_total", **of)] == 3
    assert found[label("jobrunner_stale_reports_total", **of)] == 1
    assert found[label("jobrunner_redis_round_trip_seconds_count")] == 4
    assert found[label("jobrunner_redis_round_trip_seconds_sum")] == pytest.approx(0.00024)
    assert found[label("jobrunner_redis_round_trip_seconds_bucket", le="6.4e-05")] == 4


def test_retries_do_not_fall_when_an_attempt_dies_while_a_scrape_reads(
    client: Client, broker: Broker, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large hash is read in slices, so its fields are of several moments."""
    changes = {"mail send failed": 6, "mail send dead": 3, "mail bill failed": 1, "mail bill dead": 1}
    for call in stats_calls.observe(keys, 1_700_000_000_000, "w", 1, changes):
        broker.run(call)
    before = {"mail send failed": "5", "mail send dead": "3", "mail bill failed": "1"}
    in_slices = msgspec.structs.replace(stats_calls.some_totals(keys, 0), read=lambda _: (0, before))
    monkeypatch.setattr(stats_calls, "some_totals", lambda *_: in_slices)

    found = read(render(client))

    assert found[label("jobrunner_retries_total", queue="mail", type="send")] == 3
    assert found[label("jobrunner_retries_total", queue="mail", type="bill")] == 0


def test_programs_add_it_to_a_registry_of_their_own(client: Client) -> None:
    registry = CollectorRegistry()
    registry.register(JobrunnerCollector(client))

    assert b"jobrunner_workers 0.0" in generate_latest(registry)


def test_names_are_those_of_prometheus(client: Client) -> None:
    end(client, "mail", "send", 1)
    for family in text_string_to_metric_families(render(client).decode()):
        assert family.name.startswith("jobrunner_")
        assert family.documentation.endswith("."), family.name
        if family.samples:
            assert (family.samples[0].name.endswith("_total")) == (family.type == "counter"), family.name


def ask(app: Any, kind: str = "http") -> list[Any]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {}

    asyncio.run(app({"type": kind}, receive, send))
    return sent


def test_any_asgi_server_serves_it(client: Client) -> None:
    start, body = ask(metrics_app(client))

    assert start["status"] == 200
    assert dict(start["headers"])[b"content-type"].startswith(b"text/plain; version=")
    assert b"jobrunner_workers" in body["body"]
    assert ask(metrics_app(client), "lifespan") == []


class Away:
    """A client whose server is away."""

    _keys = Keys("t")

    def is_away(self, _: Exception) -> bool:
        return True

    @property
    def _broker(self) -> "Away":
        return self

    def run(self, _: Any) -> None:
        raise ServerUnavailable("no answer from redis://…")

    run_many = run


def get(url: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(url, timeout=10) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_while_the_server_is_away_it_is_healthy_but_not_ready() -> None:
    endpoint = MetricsEndpoint(Away(), "127.0.0.1", 0, lambda: (True, {"worker": "w"}))  # type: ignore[arg-type]
    endpoint.start()
    try:
        assert get(f"{endpoint.url}/health") == (200, b'{"status": "ok", "worker": "w"}\n')
        assert get(f"{endpoint.url}/ready")[0] == get(f"{endpoint.url}/metrics")[0] == 503
    finally:
        endpoint.close()


def test_it_listens_on_ipv6() -> None:
    endpoint = MetricsEndpoint(Away(), "::1", 0, lambda: (True, {}))  # type: ignore[arg-type]
    endpoint.start()
    try:
        assert endpoint.url.startswith("http://[::1]:")
        assert get(f"{endpoint.url}/health")[0] == 200
    finally:
        endpoint.close()


def test_a_request_that_fails_is_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> tuple[bool, dict[str, object]]:
        raise RuntimeError("no word of it")

    endpoint = MetricsEndpoint(Away(), "127.0.0.1", 0, fail)  # type: ignore[arg-type]
    with capture_logs() as lines:
        endpoint.start()
        try:
            with pytest.raises(OSError, match="closed"):
                get(f"{endpoint.url}/health")
            wait_for(lambda: [line for line in lines if "no word of it" in line.get("error", "")])
        finally:
            endpoint.close()
    assert capsys.readouterr().err == ""


def test_a_process_that_is_not_well_says_why(client: Client) -> None:
    endpoint = MetricsEndpoint(client, "127.0.0.1", 0, lambda: (False, {"problem": "loops that do not turn: fetch"}))
    endpoint.start()
    try:
        for path in ("health", "ready"):
            status, said = get(f"{endpoint.url}/{path}")
            assert (status, json.loads(said)["problem"]) == (503, "loops that do not turn: fetch")
    finally:
        endpoint.close()
