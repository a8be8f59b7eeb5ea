"""`jobrunner tasks` and `jobrunner dead`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobrunner.broker.calls.leader import announce
from jobrunner.broker.calls.leases import reserve
from jobrunner.cli import output
from jobrunner.cli import tasks as cli_tasks
from jobrunner.cli.task_lists import matching_tasks
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.formatting import display_width
from jobrunner.inspector.task_rows import TaskPosition
from jobrunner.redaction import HIDDEN
from jobrunner.task import Task, TaskState, new_id
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers
from jobrunner.worker.run import runner


@pytest.fixture
def dead_id(client: Client) -> str:
    """A dead task."""
    queue = client.queue("mail")
    task_id = queue.push({"to": "ada"}, max_attempts=1)
    queue.reserve()[0].rollback(error="no such address\ntraceback")
    return task_id


def test_tasks_are_listed_by_state_pending_first(cli: Callable[..., Any], client: Client) -> None:
    queue = client.queue("mail")
    ids = [queue.push(1), queue.push(2), queue.push(3, in_=60)]
    queue.reserve()

    listed = cli("tasks", "list", "mail", "--json").value
    waiting = cli("tasks", "list", "mail", "--state", "waiting", "--json").value

    assert [(task["id"], task["state"]) for task in listed] == list(
        zip(ids, ("pending", "waiting", "scheduled"), strict=True)
    )
    assert [(task["id"], task["payload"]) for task in waiting] == [(ids[1], 2)]
    assert len(cli("tasks", "list", "mail", "--limit", "2", "--json").value) == 2


def test_a_task_is_shown_with_its_error(cli: Callable[..., Any], dead_id: str) -> None:
    shown = cli("tasks", "show", dead_id).out

    assert "state     dead" in shown
    assert "payload   to=ada" in shown
    assert "attempt 1 failed now: no such address\n" in shown
    assert shown.endswith("\n\nlast error:\nno such address\ntraceback\n")


def test_the_traceback_of_a_task_has_the_frames_of_its_job_and_as_json_all(
    cli: Callable[..., Any], client: Client
) -> None:
    library, own = (f'  File "{path}", line 7, in run\n    work()' for path in (runner.__file__, "/srv/app/jobs.py"))
    head, last = "ValueError: no\nTraceback (most recent call last):", "ValueError: no"
    error = "\n".join((head, library, own, last))
    task_id = client.queue("mail").push(1, max_attempts=1)
    client.queue("mail").reserve()[0].rollback(error=error)

    assert cli("tasks", "show", task_id).out.endswith("\n".join(("last error:", head, own, last, "")))
    assert cli("tasks", "show", task_id, "--json").value["error"] == error


def test_who_holds_a_task_is_shown(cli: Callable[..., Any], client: Client) -> None:
    task_id = client.queue("mail").push({"to": "ada"})
    broker_of(client).run(reserve(keys_of(client).queue("mail"), 1, token=LeaseNumbers("h.7.00c0de").first_of(1)))

    gone = cli("tasks", "show", task_id).out
    broker_of(client).run(announce(keys_of(client), "h.7.00c0de", {"host": "h", "pid": 7}, ttl_ms=60_000))

    assert "held by     a worker that is gone, 00c0de" in gone
    assert "held by     h pid 7 (h.7.00c0de)" in cli("tasks", "show", task_id).out
    assert cli("tasks", "show", task_id, "--json").value["holder"]["pid"] == 7


def test_a_task_that_was_asked_to_stop_is_shown_as_such(cli: Callable[..., Any], client: Client) -> None:
    """It looked like any other, also when its worker had handed it back and it waited to be cancelled."""
    queue = client.queue("mail")
    queue.push({"n": 1}, id="one")
    (lease,) = queue.reserve()
    show = ("tasks", "show", "one", "--queue", "mail")
    assert "asked to stop" not in cli(*show).out

    assert cli("tasks", "cancel", "one", "--queue", "mail").code == 0

    assert "state       pending, asked to stop: its job reads that" in cli(*show).out
    lease.release()
    assert "state     waiting, cancelled when a worker would begin it" in cli(*show).out


SECRET = {"to": "ada", "db_password": "hunter2", "deep": [{"iban": "DE00 hunter3"}]}
SHOWS = (
    *(("tasks", "list", queue) for queue in ("mail", "kept")),
    *(("tasks", "show", name, "--queue", queue) for name, queue in (("d", "mail"), ("w", "mail"), ("f", "kept"))),
    *(("dead", "list", "mail"), ("dead", "list", "mail", "--error", "no"), ("history", "list", "kept")),
)


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["for people", "for programs"])
def test_no_command_shows_what_is_to_be_redacted(
    cli: Callable[..., Any], client: Client, tmp_path: Path, form: tuple[str, ...]
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.jobrunner]\nredact = ["iban"]\n')
    mail, kept = client.queue("mail"), client.queue("kept")
    mail.push(SECRET, id="d", max_attempts=1)
    mail.reserve()[0].rollback(error="no")
    mail.push(SECRET, id="w", headers={"Authorization": "Bearer hunter4"})
    kept.configure(history=3600)
    kept.push(SECRET, id="f")
    kept.reserve()[0].commit({"token": "hunter5", "sent": True})

    for words in SHOWS:
        result = cli(*words, *form)
        assert result.code == 0, words
        assert "hunter" not in result.out + result.err, words
    shown = cli("tasks", "show", "f", "--queue", "kept", *form).out
    assert shown.count(HIDDEN) == 3
    assert "ada" in shown


def test_a_task_that_is_not_there_is_a_no(cli: Callable[..., Any]) -> None:
    result = cli("tasks", "show", "mine", "--queue", "mail")

    assert result.code == 1
    assert result.err.startswith("Error: no task mine")


def test_an_id_of_ones_own_needs_its_queue(cli: Callable[..., Any]) -> None:
    result = cli("tasks", "show", "mine")

    assert result.code == 2
    assert "--queue NAME" in result.err


def test_a_waiting_task_is_cancelled_and_the_second_time_it_is_gone(cli: Callable[..., Any], client: Client) -> None:
    task_id = client.queue("mail").push(1)

    assert cli("tasks", "cancel", task_id, "--json").value == {"id": task_id, "state": "cancelled"}
    assert client.task(task_id).state is TaskState.CANCELLED
    assert cli("tasks", "cancel", task_id).code == 1


def test_a_running_task_is_asked_to_stop(cli: Callable[..., Any], client: Client) -> None:
    task_id = client.queue("mail").push(1)
    client.queue("mail").reserve()

    assert "asked to stop" in cli("tasks", "cancel", task_id).out


def test_a_scheduled_task_is_run_now_and_no_other(cli: Callable[..., Any], client: Client, dead_id: str) -> None:
    task_id = client.queue("mail").push(1, in_=60)

    assert cli("tasks", "run-now", task_id, "--json").value == {"id": task_id, "state": "waiting"}
    assert client.task(task_id).state is TaskState.WAITING
    again, dead, none = (cli("tasks", "run-now", one) for one in (task_id, dead_id, "0" * 28 + "-mail"))
    assert (again.code, dead.code, none.code) == (1, 1, 1)
    assert f"task {task_id} is waiting: only a scheduled task can be run now" in again.err
    assert f"task {dead_id} is dead: only a scheduled task can be run now; " in dead.err
    assert "jobrunner tasks requeue ID" in dead.err
    assert "no task " in none.err
    assert client.queue("mail").counts()["dead"] == 1


def test_dead_tasks_are_listed_with_their_errors(cli: Callable[..., Any], dead_id: str) -> None:
    result = cli("dead", "list", "mail")

    assert dead_id in result.out
    assert "no such address" in result.out
    assert "traceback" not in result.out


def test_a_dead_task_is_put_back(cli: Callable[..., Any], client: Client, dead_id: str) -> None:
    result = cli("dead", "requeue", "mail", "--id", dead_id, "--id", "other")

    assert (result.code, result.out) == (0, "requeued 1 dead task of queue mail, 2 were named\n")
    assert client.task(dead_id).state is TaskState.WAITING
    assert cli("dead", "requeue", "mail", "--all").code == 1


def test_a_dead_task_is_deleted_by_its_id_and_a_living_one_is_not(
    cli: Callable[..., Any], client: Client, dead_id: str
) -> None:
    living = client.queue("mail").push(1)

    result = cli("dead", "purge", "mail", "--id", dead_id, "--id", living, "--yes", "--json")

    assert result.value == {"queue": "mail", "deleted": 1}
    assert client.queue("mail").counts() | {"done": 0} == {
        "waiting": 1, "scheduled": 0, "pending": 0, "dead": 0, "done": 0,
    }  # fmt: skip


def test_which_dead_tasks_has_to_be_said(cli: Callable[..., Any], dead_id: str) -> None:
    assert cli("dead", "requeue", "mail").code == 2
    assert cli("dead", "purge", "mail", "--all", "--id", dead_id, "--yes").code == 2


@pytest.fixture
def mixed(client: Client) -> dict[str, str]:
    """A waiting, a scheduled, a pending and a dead task, in three queues."""
    dies = client.queue("crash").push({"customer": 1}, max_attempts=1)
    client.queue("crash").reserve()[0].rollback(error="Connection refused")
    runs = client.queue("mail").push({"customer": 2})
    client.queue("mail").reserve()
    waits, later = client.queue("mail").push({"customer": 3}), client.queue("far").push({"customer": 17}, in_=3600)
    return {"dead": dies, "pending": runs, "waiting": waits, "scheduled": later}


def ids_of(cli: Callable[..., Any], *words: str) -> list[str]:
    return [task["id"] for task in cli("tasks", "list", *words, "--json").value]


def test_without_a_queue_all_queues_are_searched(cli: Callable[..., Any], mixed: dict[str, str]) -> None:
    assert sorted(ids_of(cli)) == sorted(mixed.values())
    assert ids_of(cli, "--error", "REFUSED") == [mixed["dead"]]
    assert ids_of(cli, "--param", "customer=17") == [mixed["scheduled"]]
    assert ids_of(cli, "--queue", "mail") == [mixed["pending"], mixed["waiting"]]
    assert sorted(ids_of(cli, "--since", "1h")) == sorted(mixed.values())
    assert ids_of(cli, "--until", "2020-01-01T00:00Z") == []
    assert cli("tasks", "list", "").code == 2  # as an unset variable leaves it: all queues are not meant
    assert cli("tasks", "list", "mail", "--queue", "far").code == 2
    assert cli("tasks", "list", "--since", "soon").code == 2
    assert "did you mean 'mail'?" in cli("tasks", "list", "mial").err


def test_a_bulk_cancel_leaves_what_runs_and_what_is_dead(
    cli: Callable[..., Any], client: Client, mixed: dict[str, str]
) -> None:
    refused = cli("tasks", "cancel", "--param", "customer")
    assert (refused.code, "Cancel 2 open tasks" in refused.err) == (2, True)

    answer = cli("tasks", "cancel", "--param", "customer", "--yes", "--json").value

    assert answer == {"queue": None, "matched": 2, "cancelled": 2}
    assert sorted(ids_of(cli)) == sorted((mixed["dead"], mixed["pending"]))
    assert cli("tasks", "cancel", "--param", "customer", "--yes").code == 1
    assert cli("tasks", "cancel").code == 2
    assert cli("tasks", "cancel", mixed["dead"], "--param", "customer").code == 2


def test_a_bulk_cancel_of_the_dead_leaves_what_is_requeued_meanwhile(
    cli: Callable[..., Any], client: Client, mixed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_then_requeued(*args: Any) -> list[TaskPosition]:
        found = matching_tasks(*args)
        assert client.task(mixed["dead"], queue="crash").requeue()
        return found

    monkeypatch.setattr(cli_tasks, "matching_tasks", found_then_requeued)

    assert cli("tasks", "cancel", "--queue", "crash", "--state", "dead", "--yes").out == (
        "cancelled 0 tasks of queue crash, 1 task ended or requeued meanwhile\n"
    )
    assert client.task(mixed["dead"], queue="crash").state is TaskState.WAITING


def test_a_bulk_cancel_leaves_what_died_while_the_question_was_open(
    cli: Callable[..., Any], client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found_then_died(*args: Any) -> list[TaskPosition]:
        found = matching_tasks(*args)
        for lease in client.queue("mail").reserve():
            lease.rollback(error="broken")
        return found

    client.queue("mail").configure(max_attempts=1)
    client.queue("mail").push_many([1, 2])
    monkeypatch.setattr(cli_tasks, "matching_tasks", found_then_died)

    assert cli("tasks", "cancel", "--queue", "mail", "--state", "waiting", "--yes").out == (
        "cancelled 1 task of queue mail, 1 task ended or dead meanwhile\n"
    )
    assert client.queue("mail").counts()["dead"] == 1


def test_a_bulk_cancel_of_the_dead_writes_the_event_of_a_deletion(
    cli: Callable[..., Any], client: Client, mixed: dict[str, str]
) -> None:
    cli("tasks", "cancel", "--queue", "mail", "--yes")
    cli("tasks", "cancel", "--state", "dead", "--yes")

    purged = [event for event in client.events() if event.kind == "queue_purged"]
    assert [(one.queue, one.details) for one in purged] == [("crash", {"state": "dead", "count": "1"})]


def test_a_bulk_cancel_is_not_bounded_by_a_page(cli: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many(list(range(1_203)))
    client.queue("other").push(1)

    assert cli("tasks", "cancel", "--queue", "mail", "--yes", "--json").value["cancelled"] == 1_203
    assert client.queue("other").counts()["waiting"] == 1


def test_requeue_puts_back_what_is_dead_and_names_what_is_not(
    cli: Callable[..., Any], client: Client, mixed: dict[str, str]
) -> None:
    result = cli("tasks", "requeue", mixed["dead"], mixed["waiting"])

    assert (result.code, result.out) == (1, "requeued 1 dead task\n")
    assert mixed["waiting"] in result.err
    assert client.queue("crash").counts()["waiting"] == 1


@pytest.mark.parametrize("command", ["tasks list", "dead list", "queues list", "status", "workers list", "jobs"])
def test_a_list_fits_a_terminal_of_80_columns_and_ids_stay_whole(
    cli: Callable[..., Any], client: Client, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    name = "a-queue-with-quite-a-long-name"
    queue = client.queue(name)
    dies = queue.push({"to": "件名" * 150}, max_attempts=1)
    queue.reserve()[0].rollback(error="ConnectionError: " + "refused " * 40)
    job = "SendQuarterlyInvoiceToEuropeanCustomers"
    client.enqueue(Task(id=new_id(name), type=job, queue=name, payload=b"{}", max_attempts=1))
    queue.reserve()[0].rollback(error="no")
    said = {"host": "h", "pid": 7, "queues": ",".join(f"queue-{n}" for n in range(30))}
    broker_of(client).run(announce(keys_of(client), "ip-10-20-30-40.eu-west-1.4711.00c0de", said, ttl_ms=60_000))
    monkeypatch.setattr(output, "screen_width", lambda: 80)

    shown = cli(*command.split()).out
    wide = cli(*command.split(), "--wide").out

    table = shown.partition("\n\n")[2] if command == "status" else shown
    assert max(display_width(line) for line in table.splitlines()) <= 80, shown
    assert (dies if command in ("tasks list", "dead list") else "") in shown
    assert (job if command in ("tasks list", "dead list", "jobs") else "") in shown
    assert (name if command != "workers list" else "") in shown
    assert max(display_width(line) for line in wide.splitlines()) > 80


def test_where_no_terminal_limits_the_width_a_list_of_tasks_has_all_columns(
    cli: Callable[..., Any], mixed: dict[str, str], wait_until: Callable[..., Any]
) -> None:
    wait_until(lambda: cli("tasks", "list").out == cli("tasks", "list", "--wide").out)  # as no second ends between them

    piped = cli("tasks", "list").out
    assert {"QUEUE", "ATTEMPTS", "ENQUEUED"} <= set(piped.splitlines()[0].split())
    assert len(piped.splitlines()) == 1 + len(mixed)
