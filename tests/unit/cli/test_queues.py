"""`jobrunner queues`."""

from collections.abc import Callable
from typing import Any

from jobrunner.client.client import Client


def test_the_list_counts_every_queue(says: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many([1, 2, 3])
    client.queue("maths").push(1, in_=60)

    listed = {queue["name"]: queue for queue in says("queues", "list", "--json").value}

    assert (listed["mail"]["waiting"], listed["maths"]["scheduled"]) == (3, 1)
    assert says("queues", "list").out.splitlines()[1].split()[:2] == ["mail", "3"]


def test_a_pause_lasts_until_the_queue_is_resumed(says: Callable[..., Any], client: Client) -> None:
    assert says("queues", "pause", "mail").out == "queue mail is paused\n"
    assert client.queue("mail").paused

    assert says("queues", "resume", "mail", "--json").value == {"queue": "mail", "state": "open"}
    assert not client.queue("mail").paused


def test_a_purge_deletes_the_state_it_names_and_no_other(says: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push_many([1, 2])
    client.queue("mail").push(3, in_=60)

    said = says("queues", "purge", "mail", "--state", "scheduled", "--yes")

    assert (said.code, said.out) == (0, "deleted 1 scheduled task of queue mail\n")
    assert client.queue("mail").counts()["waiting"] == 2


def test_a_purge_of_nothing_is_a_no(says: Callable[..., Any]) -> None:
    said = says("queues", "purge", "mail", "--yes")

    assert (said.code, said.talk) == (1, "Error: queue mail has no waiting tasks\n")


def test_a_purge_that_nobody_confirms_deletes_nothing(says: Callable[..., Any], client: Client) -> None:
    client.queue("mail").push(1)

    said = says("queues", "purge", "mail")

    assert said.code == 2
    assert "Delete 1 waiting task of queue mail" in said.talk
    assert client.queue("mail").counts()["waiting"] == 1


def test_looking_at_a_server_without_queues_says_so(says: Callable[..., Any], raw: Any) -> None:
    said = says("queues", "list")

    assert (said.code, said.out, said.talk) == (0, "", "no queue was ever used\n")
    assert raw.dbsize() == 0
