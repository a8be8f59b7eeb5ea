"""`jobrunner dead` selects dead tasks, changes their payloads, and requeues them at a limited rate."""

import io
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.client import Client, keys_of
from jobrunner.client.item import Item
from jobrunner.client.queue import Queue
from jobrunner.client.task_handle import TaskHandle
from jobrunner.inspector.audit import entries
from jobrunner.task import Task, new_id
from jobrunner.task_record import TaskRecord

Says = Callable[..., Any]


def kill(client: Client, *payloads: Any, error: str = "boom") -> list[str]:
    """Items of `mail` that are dead, of no job."""
    queue = client.queue("mail")
    queue.push_many([Item(payload, max_attempts=1) for payload in payloads])
    held = queue.reserve(len(payloads))
    queue.rollback_many(held, error=error)
    return [lease.id for lease in held]


def kill_job(client: Client, job: str, error: str) -> str:
    """A dead task of a job."""
    task_id = new_id("mail")
    client.enqueue(Task(id=task_id, queue="mail", type=job, payload=b"{}", max_attempts=1))
    client.queue("mail").reserve()[0].rollback(error=error)
    return task_id


def listed(cli: Says, *words: str) -> list[str]:
    return [task["id"] for task in cli("dead", "list", "mail", *words, "--json").value]


def test_the_dead_are_picked_by_job_and_by_error(cli: Says, client: Client) -> None:
    refused = kill_job(client, "Welcome", "ConnectionError: Connection REFUSED\ntraceback")
    wrong = kill_job(client, "Welcome", "ValueError: no address")
    other = kill_job(client, "Invoice", "connection refused")

    assert listed(cli, "--job", "welc") == [wrong, refused]
    assert listed(cli, "--error", "connection refused") == [other, refused]
    assert listed(cli, "--job", "Welcome", "--error", "TRACEBACK") == [refused]
    assert listed(cli, "--error", "e", "--limit", "2") == [other, wrong]


def test_the_dead_of_all_queues_are_listed_the_latest_first_and_a_cut_is_told(cli: Says, client: Client) -> None:
    made = []
    for name in ("z", "a", "m", "z", "a", "m"):
        queue = client.queue(name)
        queue.push(Item(1, max_attempts=1))
        (lease,) = queue.reserve()
        lease.rollback(error="boom")
        made.append(lease.id)

    whole, some = cli("dead", "list", "--json"), cli("dead", "list", "--limit", "2")

    dead = [task["when"] for task in whole.value]
    assert dead == sorted(dead, reverse=True)
    assert {task["id"] for task in whole.value} == set(made)
    assert [line.split()[0] for line in some.out.splitlines()[1:]] == [task["id"] for task in whole.value[:2]]
    assert some.err == "there are more: give --limit\n"
    assert cli("dead", "list", "--limit", "6").err == ""


def test_a_search_in_vain_says_what_it_looked_for(cli: Says, client: Client) -> None:
    kill(client, 1)

    result = cli("dead", "list", "mail", "--job", "Welcome", "--error", "lost")

    assert (result.code, result.out) == (0, "")
    assert result.err == "queue mail has no dead tasks of job 'Welcome' with 'lost' in their errors\n"
    refused = cli("dead", "requeue", "mail", "--job", "Welcome")
    assert (refused.code, refused.line) == (1, "Error: queue mail has no dead tasks of job 'Welcome'")


@pytest.mark.parametrize("words", [("requeue", "mial", "--all"), ("purge", "mial", "--all", "--yes")])
def test_a_mistyped_queue_is_answered_with_the_nearest(words: tuple[str, ...], cli: Says, client: Client) -> None:
    kill(client, 1)

    result = cli("dead", *words)

    assert (result.code, result.err) == (1, "Error: there is no queue 'mial'; did you mean 'mail'?\n")
    assert client.queues() == ["mail"]


def test_only_those_picked_are_put_back(cli: Says, client: Client) -> None:
    requeued = [kill_job(client, "Welcome", "refused") for _ in range(3)]
    left = [kill_job(client, "Welcome", "no address"), *kill(client, 1, error="late")]

    result = cli("dead", "requeue", "mail", "--all", "--job", "Welcome", "--error", "Refused", "--json")

    assert result.value == {"queue": "mail", "requeued": 3}
    assert client.queue("mail").ids("waiting") == requeued
    assert client.queue("mail").ids("dead") == left


def test_more_of_them_than_one_page_come_back_at_a_rate(
    cli: Says, client: Client, clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a progress bar on a terminal, the result is the same."""
    ids = kill(client, *range(1000)) + kill(client, *range(230))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    result = cli("dead", "requeue", "mail", "--error", "boom", "--rate", "0.001")

    assert (result.code, result.out) == (0, "requeued 1,230 dead tasks of queue mail\n")
    assert "requeueing" in result.err
    assert client.queue("mail").ids("scheduled", limit=2000) == ids[1:], "the first is due at once"
    first, last = (client.task(one).record().when for one in (ids[1], ids[-1]))
    assert first is not None
    assert last is not None
    assert (last - first).total_seconds() == pytest.approx(1228 * 1000, abs=60)


def test_a_part_of_a_job_selects_as_in_lists_and_so_do_times_and_parameters(cli: Says, client: Client) -> None:
    ids = [kill_job(client, job, "no") for job in ("SendWelcome", "Invoice", "welcome_back")]
    kill(client, {"customer": 17}, {"customer": 18})

    assert cli("dead", "requeue", "mail", "--job", "welc", "--json").value == {"queue": "mail", "requeued": 2}
    assert cli("dead", "requeue", "mail", "--param", "customer=17", "--json").value["requeued"] == 1
    assert cli("dead", "requeue", "mail", "--until", "1h").code == 1
    assert client.queue("mail").ids("waiting")[:2] == [ids[0], ids[2]]
    assert client.queue("mail").counts()["dead"] == 2


@pytest.mark.parametrize(("said", "code", "left"), [("n\n", 1, 3), ("y\n", 0, 1)])
def test_a_terminal_is_asked_with_the_number(
    cli: Says, client: Client, monkeypatch: pytest.MonkeyPatch, said: str, code: int, left: int
) -> None:
    kill(client, 1, 2, error="refused")
    kill(client, 3, error="no address")
    terminal = io.StringIO(said)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", terminal)

    result = cli("dead", "requeue", "mail", "--error", "refused", "--rate", "50")

    assert result.code == code
    assert "Requeue 2 dead tasks of queue mail with 'refused' in their errors, 50 per second?" in result.err
    assert client.queue("mail").counts()["dead"] == left


def test_the_audit_log_has_the_conditions_and_the_number(cli: Says, client: Client) -> None:
    kill_job(client, "Welcome", "refused")

    cli("dead", "requeue", "mail", "--job", "welc", "--error", "refused")

    (entry,) = entries(client)
    assert entry.what == "mail of job 'welc' with 'refused' in their errors"
    assert entry.outcome == "requeued 1 of 1 dead task"


@pytest.mark.parametrize("command", ["requeue", "purge"])
def test_a_mistyped_queue_is_refused_with_the_nearest(cli: Says, client: Client, command: str) -> None:
    kill(client, 1)

    result = cli("dead", command, "mial", "--all", "--yes")

    assert (result.code, "did you mean 'mail'?" in result.err) == (1, True)
    assert client.queue("mail").counts()["dead"] == 1


@pytest.mark.parametrize("payload", ['{"to": "ada"}', "null", "0", '"text"', "[]"])
def test_one_returns_with_a_corrected_payload(cli: Says, client: Client, payload: str) -> None:
    (one,) = kill(client, {"to": "ghost"})

    assert cli("dead", "requeue", "mail", "--id", one, "--payload", payload).code == 0

    assert cli("tasks", "show", one, "--json").value["payload"] == client.queue("mail").reserve()[0].payload
    assert cli("dead", "list", "mail", "--json").value == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "--id ID, or conditions such as --job TEXT"),
        (("--id", "a", "--all"), "--id ID, or conditions such as --job TEXT, or --group ID, or --all"),
        (("--id", "a", "--job", "Welcome"), "select tasks in one way"),
        (("--all", "--payload", "1"), "--payload replaces the payload of one task"),
        (("--id", "a", "--id", "b", "--payload", "1"), "--payload replaces the payload of one task"),
        (("--id", "a", "--payload", "{to: ada}"), "'{to: ada}' is no JSON"),
        (("--all", "--rate", "fast"), "'fast' is no rate"),
        (("--all", "--rate", "0"), "rate=0.0: give items per second"),
        (("--all", "--rate", "nan"), "rate=nan: give items per second"),
        (("--id", "{a}"), "'{a}' is not allowed"),
    ],
    ids=str,
)
def test_misuse_changes_nothing(cli: Says, client: Client, words: tuple[str, ...], told: str) -> None:
    kill(client, 1, 2)

    result = cli("dead", "requeue", "mail", *words)

    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert told in result.err
    assert client.queue("mail").counts()["dead"] == 2


def test_what_is_no_id_among_the_dead_keeps_no_other_from_being_requeued(
    cli: Says, client: Client, raw: Any
) -> None:
    dead, (one, _) = keys_of(client).queue("mail").dead, kill(client, 1, 2)
    raw.zadd(dead, {"no id": raw.zscore(dead, one) - 1})
    assert cli("dead", "requeue", "mail", "--all").out == "requeued 2 dead tasks of queue mail\n"
    assert client.queue("mail").counts()["waiting"] == 2


def test_a_purge_whose_reply_was_lost_does_not_say_that_there_was_nothing(
    cli: Says, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The purge is sent twice, and the second finds nothing."""
    queue = client.queue("mail")
    queue.configure(max_attempts=1)
    queue.push_many(range(50))
    queue.rollback_many(queue.reserve(50), delay=0)
    purge = Queue.purge

    def purge_twice(queue: Queue, state: str, **options: Any) -> int:
        purge(queue, state)
        return purge(queue, state, **options)

    monkeypatch.setattr(Queue, "purge", purge_twice)
    said = cli("dead", "purge", "mail", "--all", "--yes")

    assert (said.code, said.out.strip()) == (0, "deleted 50 dead tasks of queue mail")


def test_a_task_that_is_requeued_meanwhile_is_not_purged_by_its_id(
    cli: Says, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = kill(client, "one", "two")

    def read_then_requeue(task: TaskHandle[Any]) -> TaskRecord:
        record = read(task)
        if task.id == one:
            client.task(one).requeue()
        return record

    read = TaskHandle.record
    monkeypatch.setattr(TaskHandle, "record", read_then_requeue)

    assert cli("dead", "purge", "mail", "--id", one, "--id", two, "--yes").out == (
        "deleted 1 dead task of queue mail, 2 were named\n"
    )
    assert (client.queue("mail").ids("dead"), client.queue("mail").ids("waiting")) == ([], [one])


def test_requeued_and_purged_tasks_that_were_named_have_an_event(cli: Says, client: Client) -> None:
    first, second, _ = kill(client, 1, 2, 3)

    assert cli("tasks", "requeue", first).code == 0
    assert cli("dead", "purge", "mail", "--id", second, "--yes").code == 0
    (group,) = cli("dead", "groups", "mail", "--json").value["groups"]
    assert cli("dead", "purge", "mail", "--group", group["id"], "--yes").code == 0

    assert [(event.kind, event.queue, event.details) for event in client.events()][-3:] == [
        ("dead_requeued", "mail", {"count": "1"}),
        ("queue_purged", "mail", {"state": "dead", "count": "1"}),
        ("queue_purged", "mail", {"state": "dead", "count": "1"}),
    ]


def test_all_tasks_that_a_command_names_are_in_the_audit_log(cli: Says, client: Client) -> None:
    ids = kill(client, *range(20))

    assert cli("dead", "purge", "mail", "--yes", *(word for one in ids for word in ("--id", one))).code == 0

    assert entries(client, limit=1)[0].what == f"mail {' '.join(ids)}"
