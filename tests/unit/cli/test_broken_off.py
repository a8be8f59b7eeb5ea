"""Commands that change many tasks and end midway: the audit log and the events say what they had changed by then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.inspector.audit import entries

MODULES = ("dead", "queues", "tasks")


@pytest.fixture
def queue(client: Client) -> Any:
    """A queue with three dead tasks, of one group, and two that wait."""
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push_many([{"n": n} for n in range(3)])
    for lease in queue.reserve(3):
        lease.rollback(error="ValueError: no")
    queue.push_many([1, 2])
    return queue


def noted(client: Client) -> list[tuple[str, str, str]]:
    return [(one.action, one.what, one.outcome) for one in entries(client)]


@pytest.mark.parametrize(
    ("words", "entry"),
    [
        ("queues purge mail --yes", ("queue.purge", "mail", "broke off: deleted 2 waiting tasks, or about that")),
        ("dead purge mail --all --yes", ("dead.purge", "mail", "broke off: deleted 3 dead tasks, or about that")),
        ("dead purge mail --group GROUP --yes",
         ("dead.purge", "mail group=GROUP", "broke off: deleted 3 dead tasks, or about that")),
        ("tasks cancel --queue mail --yes", ("task.cancel", "mail", "broke off: cancelled 2 tasks, or about that")),
    ],
)  # fmt: skip
def test_what_ctrl_c_cuts_off_is_in_the_audit_log(
    cli: Callable[..., Any], client: Client, queue: Any, monkeypatch: pytest.MonkeyPatch, words: str, entry: Any
) -> None:
    (group,) = cli("dead", "groups", "--json").value["groups"]

    @contextmanager
    def pressed(*_: Any) -> Iterator[Callable[[int], None]]:
        def press(_done: int) -> None:
            raise KeyboardInterrupt

        yield press

    for module in MODULES:
        monkeypatch.setattr(f"jobrunner.cli.{module}.rising", pressed)

    assert cli(*words.replace("GROUP", group["id"]).split()).code == 130
    action, what, outcome = entry
    assert noted(client) == [(action, what.replace("GROUP", group["id"]), outcome)]


def test_a_requeue_that_breaks_off_is_in_the_audit_log_unless_nothing_was_sent(
    cli: Callable[..., Any], client: Client, queue: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(_queue: Any, ids: Any, **_: Any) -> int:
        list(ids)
        raise KeyboardInterrupt

    assert cli("dead", "requeue", "mail", "--all", "--rate", "0").code == 2
    assert noted(client) == []
    monkeypatch.setattr("jobrunner.client.queue.Queue.requeue_dead", pressed)
    assert cli("dead", "requeue", "mail", "--all").code == 130
    assert noted(client) == [("dead.requeue", "mail", "broke off: requeued 3 of 3 dead tasks, or about that")]


def test_a_task_that_is_gone_keeps_no_other_from_being_requeued(
    cli: Callable[..., Any], client: Client, queue: Any
) -> None:
    first, second, _ = queue.ids("dead")

    result = cli("tasks", "requeue", first, "gone", second, "--queue", "mail")

    assert (result.code, result.out) == (1, "requeued 2 dead tasks\n")
    assert result.err == "Error: not there: gone; jobrunner tasks show ID prints the state\n"
    assert queue.counts()["dead"] == 1
    assert noted(client) == [("task.requeue", f"{first} gone {second}", "requeued 2 dead tasks")]
    assert [(event.kind, event.details["count"]) for event in client.events() if event.kind == "dead_requeued"] == [
        ("dead_requeued", "2")
    ]


def test_a_text_that_is_no_id_is_found_before_anything_is_deleted(
    cli: Callable[..., Any], client: Client, queue: Any
) -> None:
    result = cli("dead", "purge", "mail", "--id", queue.ids("dead")[0], "--id", "bad id", "--yes")

    assert result.code == 2
    assert queue.counts()["dead"] == 3
    assert noted(client) == []
