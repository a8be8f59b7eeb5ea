"""The glance at everything."""

from typing import Any

from jobrunner.broker.calls import coordination
from jobrunner.client.client import Client
from jobrunner.inspector.listing import list_tasks, read_tasks
from jobrunner.inspector.overview import overview


def announce(client: Client, worker_id: str, **said: str | int) -> None:
    client.broker.run(coordination.announce(client.keys, worker_id, said, ttl_ms=60_000))


def test_queues_are_counted_and_know_how_many_workers_serve_them(client: Client) -> None:
    client.queue("mail").push_many([1, 2])
    client.queue("maths").pause()
    announce(client, "w1", queues="mail,other", pid=7, started=1000, leads=1)

    seen = overview(client)

    mail, maths = seen.queues
    assert (mail.name, mail.waiting, mail.workers, mail.paused) == ("mail", 2, 1, False)
    assert (maths.name, maths.workers, maths.paused) == ("maths", 0, True)
    assert (seen.workers[0].id, seen.workers[0].pid, seen.workers[0].queues) == ("w1", 7, ("mail", "other"))


def test_a_queue_that_is_damaged_says_so_and_the_others_are_counted(client: Client, raw: Any) -> None:
    client.queue("mail").push(1)
    client.queue("maths").push(1)
    raw.delete(client.keys.queue("mail").waiting)
    raw.set(client.keys.queue("mail").waiting, "damage")

    mail, maths = overview(client).queues

    assert "WRONGTYPE" in mail.problem
    assert (maths.waiting, maths.problem) == (1, "")


def test_names_and_totals_that_are_damage_are_left_out(client: Client, raw: Any) -> None:
    client.queue("mail").push(1)
    raw.sadd(client.keys.queues, b"\xff\xfe", "", "a/b/c", "{mail}", "x" * 20_000)
    raw.hset(client.keys.queue("mail").counters, mapping={b"\xff": "7", "failed": "many", "dead": b"\xff"})

    (mail,) = overview(client).queues

    assert (mail.name, mail.waiting, mail.totals["enqueued"]) == ("mail", 1, 1)
    assert not {"failed", "dead"} & mail.totals.keys()
    assert client.queue("mail").totals() == mail.totals


def test_a_damaged_lock_is_nobodys(client: Client, raw: Any) -> None:
    raw.set(client.keys.leader, "damage")

    assert overview(client).leader is None


def test_a_damaged_member_hides_no_other(client: Client, raw: Any) -> None:
    here = client.queue("mail").push("x")
    raw.zadd(client.keys.queue("mail").waiting, {b"\xff\xfe": 1, b"": 2})
    raw.hset(client.keys.queue("mail").task(here), mapping={"id": "", "type": b"\xff"})

    assert [record.id for record in list_tasks(client, "mail")] == [here]
    assert here in client.queue("mail").ids("waiting")


def test_the_leader_is_the_worker_that_took_the_lock(client: Client) -> None:
    assert overview(client).leader is None

    client.broker.run(coordination.lead(client.keys, "w1", ttl_ms=60_000))

    assert overview(client).leader == "w1"


def test_a_glance_writes_nothing(client: Client, raw: Any) -> None:
    overview(client)

    assert raw.dbsize() == 0


def test_tasks_that_went_meanwhile_are_left_out(client: Client) -> None:
    here = client.queue("mail").push("x")

    assert [record.id for record in read_tasks(client, "mail", ["gone", here])] == [here]
    assert [record.id for record in list_tasks(client, "mail")] == [here]
