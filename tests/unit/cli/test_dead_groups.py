"""`jobrunner dead groups` prints failed attempts in groups; requeue and purge take a group."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.client.client import Client
from jobrunner.inspector.audit import entries
from jobrunner.inspector.error_groups import find_group
from jobrunner.task import Task, new_id

Says = Callable[..., Any]


def fail(client: Client, job: str, *errors: str, attempts: int = 1, queue: str = "mail") -> list[str]:
    """Tasks of a job whose first attempts failed: dead with `attempts=1`, else to be tried again."""
    ids = []
    for error in errors:
        ids.append(new_id(queue))
        client.enqueue(Task(id=ids[-1], queue=queue, type=job, payload=b"{}", max_attempts=attempts))
        client.queue(queue).reserve()[0].rollback(error=error, delay=3600)
    return ids


def groups(cli: Says, *words: str) -> dict[str, Any]:
    return {one["title"]: one for one in cli("dead", "groups", *words, "--json").value["groups"]}


def test_failed_attempts_are_in_groups_without_their_variables(cli: Says, client: Client) -> None:
    ids = fail(client, "Charge", "CardDeclined: card 4711 of 'ada'", "CardDeclined: card 12 of 'bob'\ntrace")
    fail(client, "Charge", "TimeoutError: no answer in 2.5 s", attempts=3)
    fail(client, "Rollup", "CardDeclined: card 1 of 'eve'", queue="stats")

    found = groups(cli, "mail")
    assert {title: (one["dead"], one["count"], one["job"]) for title, one in found.items()} == {
        "CardDeclined: card # of '…'": (2, 2, "Charge"),
        "TimeoutError: no answer in # s": (0, 1, "Charge"),
    }
    one = found["CardDeclined: card # of '…'"]
    assert (one["task"], sum(one["trend"]), one["trend"][-1]) == (ids[1], 2, 2)
    everything = cli("dead", "groups", "--json").value
    assert [one["queue"] for one in everything["groups"]] == ["mail", "stats", "mail"], "most dead first"
    assert (everything["dead"], everything["ungrouped"]) == (3, 0)


def test_the_table_has_a_row_for_each_group(cli: Says, client: Client) -> None:
    fail(client, "Charge", "CardDeclined: card 4711")

    lines = cli("dead", "groups").out.splitlines()
    assert lines[0].split()[:5] == ["GROUP", "QUEUE", "JOB", "DEAD", "FAILED"]
    assert lines[1].split()[1:5] == ["mail", "Charge", "1", "1"]
    assert lines[1].endswith("CardDeclined: card #")


def test_without_failures_it_says_so(cli: Says, client: Client) -> None:
    client.queue("mail").push(1)

    result = cli("dead", "groups", "mail")
    assert (result.code, result.out) == (0, "")
    assert result.err == "no attempt failed in queue mail in the last week, and nothing is dead\n"


def test_a_group_is_requeued_and_the_rest_stays(cli: Says, client: Client) -> None:
    mine = fail(client, "Charge", *[f"CardDeclined: card {n}" for n in range(3)])
    others = fail(client, "Charge", "TimeoutError: late")
    group = groups(cli, "mail")["CardDeclined: card #"]["id"]

    result = cli("dead", "requeue", "mail", "--group", group, "--rate", "1", "--json")

    assert result.value == {"queue": "mail", "requeued": 3, "group": group}
    assert client.queue("mail").ids("dead") == others
    assert client.queue("mail").counts()["scheduled"] + client.queue("mail").counts()["waiting"] == len(mine)
    assert groups(cli, "mail")["CardDeclined: card #"]["dead"] == 0
    row = entries(client)[0]
    assert (row.what, row.outcome) == (f"mail group={group}", "requeued 3 of 3 dead tasks")


def test_a_group_is_purged_after_a_question_with_its_number(cli: Says, client: Client) -> None:
    fail(client, "Charge", *[f"CardDeclined: card {n}" for n in range(3)])
    others = fail(client, "Charge", "TimeoutError: late")
    group = groups(cli, "mail")["CardDeclined: card #"]["id"]

    assert "3 dead tasks" in cli("dead", "purge", "mail", "--group", group).err
    assert cli("dead", "purge", "mail", "--group", group, "--yes").out == "deleted 3 dead tasks of queue mail\n"
    assert client.queue("mail").ids("dead") == others


def test_a_group_is_purged_in_all_partitions_of_its_queue(cli: Says, client: Client) -> None:
    queue = client.queue("mail")
    queue.configure(partitions=4, max_attempts=1)
    queue.push_many(range(64))
    queue.rollback_many(queue.reserve(64), error="TimeoutError: late")
    group = groups(cli, "mail")["TimeoutError: late"]["id"]

    assert cli("dead", "purge", "mail", "--group", group, "--yes").out == "deleted 64 dead tasks of queue mail\n"
    assert queue.counts()["dead"] == 0


def test_a_group_that_is_not_there_is_named(cli: Says, client: Client) -> None:
    fail(client, "Charge", "TimeoutError: late")

    for words in (("requeue",), ("purge", "--yes")):
        result = cli("dead", words[0], "mail", "--group", "no-such", *words[1:])
        assert result.code == 1
        assert "queue mail has no group 'no-such' of errors" in result.err


def test_a_group_without_dead_tasks_is_refused(cli: Says, client: Client) -> None:
    fail(client, "Charge", "TimeoutError: late", attempts=3)
    fail(client, "Charge", "Boom: x")
    group = groups(cli, "mail")["TimeoutError: late"]["id"]

    result = cli("dead", "requeue", "mail", "--group", group)
    assert (result.code, "is dead: its tasks are tried again or ended" in result.err) == (1, True)


def test_one_way_to_select_is_given(cli: Says) -> None:
    assert cli("dead", "requeue", "mail", "--group", "a", "--all").code == 2
    assert cli("dead", "purge", "mail", "--group", "a", "--id", "b").code == 2


EMPTY = [
    *(("tasks", "cancel", option, "", "--yes") for option in ("--job", "--error", "--param", "--since", "--until")),
    ("tasks", "cancel", "--job", "Charge", "--until", "", "--yes"),
    ("dead", "requeue", "mail", "--job", "", "--yes"),
    ("dead", "requeue", "mail", "--group", "", "--yes"),
    ("dead", "purge", "mail", "--group", "", "--yes"),
    ("history", "replay", "mail", "--where", ""),
    ("history", "replay", "", "--where", "true"),
]


@pytest.mark.parametrize("words", EMPTY, ids=" ".join)
def test_an_empty_condition_selects_nothing(cli: Says, client: Client, words: tuple[str, ...]) -> None:
    """An unset variable of a shell leaves an empty text, which every task contains."""
    fail(client, "Charge", "TimeoutError: late")
    client.queue("mail").push(1)

    result = cli(*words)

    assert (result.code, "is empty" in result.line) == (2, True), result.err
    assert client.queue("mail").counts()["dead"] == client.queue("mail").counts()["waiting"] == 1


def test_no_group_has_an_empty_id(client: Client) -> None:
    fail(client, "Charge", "TimeoutError: late")

    assert find_group(client, "mail", "") is None
