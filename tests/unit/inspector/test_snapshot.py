"""The snapshot of everything."""

from typing import Any

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector.snapshot import overview, queue_views
from jobrunner.inspector.task_rows import list_tasks, read_tasks


def announce(client: Client, worker_id: str, **said: str | int) -> None:
    broker_of(client).run(leader_calls.announce(keys_of(client), worker_id, said, ttl_ms=60_000))


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
    raw.delete(keys_of(client).queue("mail").waiting)
    raw.set(keys_of(client).queue("mail").waiting, "damage")

    mail, maths = overview(client).queues

    assert "WRONGTYPE" in mail.problem
    assert (maths.waiting, maths.problem) == (1, "")


def test_names_and_totals_that_are_damage_are_left_out(client: Client, raw: Any) -> None:
    client.queue("mail").push(1)
    raw.sadd(keys_of(client).queues, b"\xff\xfe", "", "a/b/c", "{mail}", "x" * 20_000)
    raw.hset(keys_of(client).queue("mail").counters, mapping={b"\xff": "7", "failed": "many", "dead": b"\xff"})

    (mail,) = overview(client).queues

    assert (mail.name, mail.waiting, mail.totals["enqueued"]) == ("mail", 1, 1)
    assert not {"failed", "dead"} & mail.totals.keys()
    assert client.queue("mail").totals() == mail.totals


def test_a_damaged_lock_is_nobodys(client: Client, raw: Any) -> None:
    raw.set(keys_of(client).leader, "damage")

    assert overview(client).leader is None


def test_a_damaged_member_hides_no_other(client: Client, raw: Any) -> None:
    here = client.queue("mail").push("x")
    raw.zadd(keys_of(client).queue("mail").waiting, {b"\xff\xfe": 1, b"": 2})
    raw.hset(keys_of(client).queue("mail").task(here), mapping={"id": "", "type": b"\xff"})

    assert [record.id for record in list_tasks(client, "mail")] == [here]
    assert here in client.queue("mail").ids("waiting")


def test_the_leader_is_the_worker_that_took_the_lock(client: Client) -> None:
    assert overview(client).leader is None

    broker_of(client).run(leader_calls.take_leadership(keys_of(client), "w1", ttl_ms=60_000))

    assert overview(client).leader == "w1"


def test_a_snapshot_writes_nothing(client: Client, raw: Any) -> None:
    overview(client)

    assert raw.dbsize() == 0


def test_tasks_that_went_meanwhile_are_left_out(client: Client) -> None:
    here = client.queue("mail").push("x")

    assert [record.id for record in read_tasks(client, [("mail", "gone"), ("mail", here)])] == [here]
    assert [record.id for record in list_tasks(client, "mail")] == [here]


def test_many_queues_are_read_in_portions_in_order(client: Client, raw: Any) -> None:
    """One request for all queues would block the server, and both sides would wait for the other to read."""
    for number in range(1201):
        raw.sadd(keys_of(client).queues, f"q{number:04}")
    raw.zadd(keys_of(client).queue("q0777").dead, {"a": 1, "b": 2})
    announce(client, "w1", queues="q1200,q1200,q0000", pid=7, started=1000)
    portions: list[int] = []
    replies = broker_of(client)._replies
    broker_of(client)._replies = lambda calls, *rest: portions.append(len(calls)) or replies(calls, *rest)  # type: ignore[method-assign,func-returns-value]

    found = queue_views(client, client.workers())

    assert max(portions) <= 11
    assert [view.name for view in found] == sorted(view.name for view in found)
    assert len(found) == 1201
    assert [view.name for view in found if view.dead] == ["q0777"]
    assert {view.name: view.workers for view in found if view.workers} == {"q0000": 1, "q1200": 1}
    assert [view.name for view in queue_views(client, [], ["q0777"])] == ["q0777"]

    class Names(list[str]):
        def __contains__(self, _: object) -> bool:
            raise AssertionError("a search of all names for each of them")

    portions.clear()
    assert queue_views(client, client.workers(), Names(view.name for view in found)) == found
    assert max(portions) <= 500
