"""The moments of a task, from a real server."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jobrunner.client.client import Client
from jobrunner.inspector.attempts import timeline
from jobrunner.task import Task


def failing(client: Client, times: int, clock: Any) -> Any:
    queue = client.queue("mail")
    task = client.enqueue(Task(id="a", queue="mail", payload=b"{}", type="Send", max_attempts=times))
    for attempt in range(times):
        (lease,) = queue.reserve()
        lease.rollback(delay=1, error=f"broken {attempt + 1}\nwith a second line")
        clock.advance(2000)
    return task.record()


def test_every_failed_attempt_is_a_moment(client: Client, clock: Any) -> None:
    clock.set()
    record = failing(client, 2, clock)

    assert [(one.kind, one.attempt, one.text) for one in timeline(record)] == [
        ("enqueued", 0, ""),
        ("failed", 1, "broken 1"),
        ("failed", 2, "broken 2"),
        ("died", 2, ""),
    ]


def test_the_last_ten_failures_are_kept_and_are_short(client: Client, clock: Any, raw: Any, keys: Any) -> None:
    clock.set()
    record = failing(client, 12, clock)

    assert [failure.attempt for failure in record.failures] == list(range(3, 13))
    assert record.failures[-1].error == "broken 12"


def test_a_long_error_with_tabs_is_one_short_line(client: Client, clock: Any) -> None:
    clock.set()
    client.enqueue(Task(id="a", queue="mail", payload=b"{}"))
    client.queue("mail").reserve()[0].rollback(delay=1, error="a\tb" + "é" * 500)

    (failure,) = client.task("a", queue="mail").record().failures
    assert failure.error.startswith("a bé")
    assert len(failure.error.encode()) <= 210
    assert set(failure.error[3:]) == {"é"}  # the server cuts at a byte, which may be the first of a letter


def test_a_lease_that_ended_is_a_moment_and_the_next_one_is_ahead(client: Client, clock: Any) -> None:
    clock.set()
    task = client.enqueue(Task(id="a", queue="mail", payload=b"{}", keepalive_ms=1000))
    client.queue("mail").reserve()
    clock.advance(1500)
    client.queue("mail").reserve()

    moments = timeline(task.record())
    assert [(one.kind, one.attempt, one.ahead) for one in moments] == [
        ("enqueued", 0, False),
        ("expired", 1, False),
        ("lease", 2, True),
    ]


def test_an_attempt_that_ended_with_its_worker_is_no_lease_that_expired(client: Client, clock: Any) -> None:
    clock.set()
    record = failing(client, 1, clock)
    noted = record.fields["failures"].replace(b"failed", b"crashed")

    crashed = replace(record, fields={**record.fields, "failures": noted})

    assert [one.kind for one in timeline(crashed)] == ["enqueued", "crashed", "died"]


def test_a_damaged_field_is_no_error(client: Client, raw: Any, keys: Any, clock: Callable[..., Any]) -> None:
    task = client.enqueue(Task(id="a", queue="mail", payload=b"{}"))
    raw.hset(keys.queue("mail").task("a"), "failures", b"x\ty\n\xff\t1\tfailed\t\tz\n12\tq\tfailed\t\tz")

    assert [failure.error for failure in task.record().failures] == ["z", "z"]
