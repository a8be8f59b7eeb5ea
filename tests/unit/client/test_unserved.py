"""A wait for a result tells when no worker is there to bring it."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from jobrunner import Client, group, job
from jobrunner.broker.calls.leader import announce
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.operations import unserved
from jobrunner.client.operations.operation import Operation
from jobrunner.errors import ServerRefused, TaskTimeout
from jobrunner.jobs.registry import forget


@job(name="unserved-sums", queue="sums")
def add(x: int) -> int:
    return x + 1


@job(name="unserved-mail", queue="mail")
def send(x: int) -> int:
    return x


@pytest.fixture(autouse=True, scope="module")
def forget_jobs() -> Iterator[None]:
    yield
    forget("unserved-sums")
    forget("unserved-mail")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved, "UNSERVED_AFTER_S", 0.0)
    monkeypatch.setattr(unserved, "_next_look", {})


def warned(handle: Any) -> list[str]:
    """The queues that a wait names; it ends without a result."""
    with capture_logs() as lines, pytest.raises(TaskTimeout):
        handle.result(timeout=0.01)
    return [line["queues"] for line in lines if line["log_level"] == "warning"]


def serve(client: Client, *queues: str) -> None:
    broker_of(client).run(announce(keys_of(client), "w1", {"queues": ",".join(queues)}, ttl_ms=60_000))


def test_a_wait_names_the_queue_that_no_worker_serves_once(current: Client) -> None:
    serve(current, "mail")

    assert warned(add.enqueue(1)) == ["sums"]
    assert warned(add.enqueue(2)) == [], "a thousand waits cause one look a minute"


def test_a_queue_that_a_worker_serves_is_not_named(current: Client) -> None:
    serve(current, "mail", "sums")

    assert warned(add.enqueue(1)) == []


def test_a_queue_with_partitions_is_served_by_its_own_name(current: Client) -> None:
    current.queue("sums").configure(partitions=4)
    serve(current, "sums")

    assert [line for n in range(8) for line in warned(add.enqueue(n))] == []


def test_a_short_wait_asks_nothing(current: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unserved, "UNSERVED_AFTER_S", 5.0)

    assert warned(add.enqueue(1)) == []


def test_a_running_task_is_not_looked_after(current: Client) -> None:
    handle = add.enqueue(1)
    current.queue("sums").reserve()

    assert warned(handle) == []


def test_a_wait_for_a_flow_names_all_queues_that_no_worker_serves(current: Client) -> None:
    assert warned(group(add.bind(1), send.bind(2)).enqueue()) == ["mail, sums"]


def test_a_wait_goes_on_when_the_user_may_not_read_the_workers(
    current: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_call: object) -> Operation[None]:
        raise ServerRefused("NOPERM")
        yield []

    monkeypatch.setattr(unserved, "ask", refused)
    assert warned(add.enqueue(1)) == []
