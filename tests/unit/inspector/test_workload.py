"""The doctor's findings on the workload: queues without workers, no leader, or two set-ups with different prefixes."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import leases, queues
from jobrunner.broker.calls.server import server_time
from jobrunner.client.client import Client, broker_of, keys_of
from jobrunner.inspector.doctor.other_prefixes import OtherPrefix, neighbour_checks, other_prefixes
from jobrunner.inspector.doctor.workload import leader_check, no_worker_check, types_checks, work_checks
from jobrunner.inspector.snapshot import server_facts
from jobrunner.periodic import PeriodicDefinition
from jobrunner.task import Task, new_id
from jobrunner.worker.fetch.reserve_plan import LeaseNumbers


def announce(client: Client, worker_id: str = "w1", **said: str | int) -> None:
    broker_of(client).run(leader_calls.announce(keys_of(client), worker_id, {"queues": "mail"} | said, ttl_ms=60_000))


def warned(client: Client) -> dict[str, str]:
    return {check.what: check.found for check in work_checks(client) if check.verdict != "ok"}


def test_an_empty_set_up_misses_workers_only(client: Client) -> None:
    assert warned(client) == {"workers": "none"}


def test_a_damaged_queue_is_named_and_the_others_are_checked(client: Client, raw: Any, keys: Any) -> None:
    """The first tasks of all queues were read in vain, and the doctor ended with that error."""
    client.queue("good").push_many([1, 2])
    client.queue("bad").push(1)
    client.queue("bad").pause()
    for state in ("waiting", "dead"):
        raw.set(getattr(keys.queue("bad"), state), "damaged")

    found = [check for check in work_checks(client) if check.verdict != "ok"]
    assert "bad: cannot be read" in [check.found for check in found if check.verdict == "fail"]
    assert any("good" in check.found for check in found)
    assert list(types_checks(client, ["a"])) == []


def test_of_an_embedded_server_without_workers_it_is_said_that_each_folder_has_its_own() -> None:
    """A worker that ran in another folder was told to be started."""
    assert no_worker_check("redis://shop").advice == "jobrunner work MODULE"
    for url in ("embedded://", "embedded:///srv/app/.jobrunner"):
        check = no_worker_check(url)
        assert (check.verdict, check.found) == ("warn", "none on the server of this folder")
        assert check.advice.endswith("in this folder: without a URL each folder has a server of its own")


def test_a_worker_that_is_suspended_or_was_cut_off_is_named_where_no_other_works(
    client: Client, raw: Any, keys: Any
) -> None:
    """Nothing told it from a server that never had a worker, as no leader is left that would report it."""
    now_ms = broker_of(client).run(server_time())
    announce(client, "vm.1.a", queues="mail")
    announce(client, "vm.2.b", queues="mail")
    raw.delete(keys.worker("vm.1.a"), keys.worker("vm.2.b"))  # as they expire
    raw.zadd(keys.workers, {"vm.1.a": now_ms - 100_000, "vm.2.b": now_ms - 185_000})

    found = warned(client)["workers"]
    assert found.startswith("none; vm.1.a did not stop, and there is no heartbeat of it for 1 min 4")
    assert found.endswith(", nor of 1 other")

    raw.zrem(keys.workers, "vm.1.a", "vm.2.b")
    assert warned(client)["workers"] == "none"


def test_workers_without_a_leader_are_worth_a_look(client: Client) -> None:
    announce(client)
    assert "scheduled tasks do not become due" in warned(client)["leader"]

    broker_of(client).run(leader_calls.take_leadership(keys_of(client), "w1", ttl_ms=60_000))

    assert warned(client) == {}
    assert leader_check("w1").found == "w1"


def test_a_pause_that_ends_by_itself_is_told_from_one_that_was_forgotten(client: Client) -> None:
    announce(client)
    client.queue("mail").push(1)
    client.queue("mail").pause(60)
    assert warned(client)["queue"] == "mail: paused"

    client.queue("mail").pause()
    assert warned(client)["queue"] == "mail: paused without an end, and 1 wait"


def test_a_limit_that_is_used_up_names_the_leases_that_no_worker_holds(client: Client, clock: Any) -> None:
    """The limit was said to be too low, while leases of a program that had ended blocked the queue for an hour."""
    clock.set()
    mail = client.queue("mail")
    mail.configure(max_inflight=3, keepalive=3600)
    mail.push_many(range(5))
    token = LeaseNumbers("vm.1.abcdef").first_of(1)
    assert broker_of(client).run(leases.reserve(keys_of(client).queue("mail"), 1, token=token)).attempts
    assert len(mail.reserve(2)) == 2
    clock.advance(61_000)
    announce(client, "vm.1.abcdef")

    (limit,) = [check for check in work_checks(client) if check.what == "limit"]

    assert "; 2 of these leases are held by no worker, but by a program" in limit.found
    assert limit.advice.startswith("jobrunner tasks list mail --state pending has the time")


def test_the_leases_that_no_worker_holds_are_counted_in_all_partitions(client: Client, clock: Any) -> None:
    """Only those of the first shard were."""
    clock.set()
    mail = client.queue("mail")
    mail.configure(max_inflight=8, partitions=4, keepalive=3600)
    mail.push_many(range(20))
    held = [lease for _ in range(4) for lease in mail.reserve(8)]
    announce(client, "vm.1.abcdef")

    (limit,) = [check for check in work_checks(client) if check.what == "limit"]

    assert len(held) == 8
    assert "; 8 of these leases are held by no worker, but by a program" in limit.found


def test_of_many_queues_without_a_worker_those_with_the_most_to_do_are_named(client: Client) -> None:
    for number in range(15):
        client.queue(f"q{number}").push_many(range(number + 1))
    found = [check.found for check in work_checks(client) if check.what == "workers"]
    assert found[0] == "none"
    assert found[1:11] == [f"no worker serves q{number}, with {number + 1} to do" for number in range(14, 4, -1)]
    assert found[11:] == ["5 more such warnings"]


def test_a_periodic_job_that_no_worker_knows_any_more_is_found(client: Client, raw: Any) -> None:
    definition = PeriodicDefinition(
        name="nightly", queue="mail", schedule={"every": 60.0}, payload=b"{}", catch_up="last",
        overlap="skip", jitter=0.0,
    )  # fmt: skip
    broker_of(client).run(leader_calls.define_periodics(keys_of(client), {"nightly": msgspec.json.encode(definition)}))
    raw.zadd(keys_of(client).periodics_seen, {"nightly": 1000})

    assert warned(client)["periodic"] == "nightly is not fired: no worker knows it"


def test_tasks_of_a_job_that_no_module_declares_are_found(client: Client) -> None:
    for job in ("known", "renamed"):
        client.enqueue(Task(id=new_id("mail"), queue="mail", type=job, payload=b"{}"))
    client.enqueue(Task(id=new_id("mail"), queue="mail", type="later", payload=b"{}", delay_ms=60_000))
    client.queue("orders").push({"an": "item"})

    checks = list(types_checks(client, ["known"]))
    found = [check.found for check in checks]
    assert all("workers hand its tasks back, for a day" in check.advice for check in checks)

    assert [text.partition(",")[0] for text in found] == ["mail: tasks of job 'later'", "mail: tasks of job 'renamed'"]
    assert list(types_checks(client, ["known", "renamed", "later"])) == []


@pytest.fixture
def other(server: Any) -> Client:
    return Client(server.url, "elsewhere")


def test_another_prefix_with_tasks_is_found(client: Client, other: Client) -> None:
    with other:
        other.queue("mail").push_many([1, 2])
        announce(client)

        (found,) = other_prefixes(client, server_facts(client))
        told = warned(client)["prefix"]

    assert found == OtherPrefix(prefix="elsewhere", database=None, undone=2, workers=0)
    own = keys_of(client).prefix
    assert told == f"prefix 'elsewhere' has 2 to do and no worker, while prefix {own!r} has 1 at work"


def test_another_database_with_a_worker_is_found(client: Client, server: Any) -> None:
    client.queue("mail").push(1)
    with Client(f"{server.url}?db=3", keys_of(client).prefix) as far:
        broker_of(far).run_many(queues.register(keys_of(far), ["mail"]))
        announce(far)
        (found,) = other_prefixes(client, server_facts(client))
        from_there = other_prefixes(far, server_facts(far))

    assert (found.database, found.workers, str(found)) == (3, 1, f"prefix {keys_of(client).prefix!r} of database 3")
    assert [(one.database, one.undone) for one in from_there] == [(0, 1)]


def test_a_database_that_cannot_be_read_hides_no_other(client: Client, other: Client) -> None:
    facts = server_facts(client)
    assert facts is not None
    with other:
        other.queue("mail").push(1)

        (found,) = other_prefixes(client, replace(facts, databases=(0, 999)))

    assert found.prefix == "elsewhere"


def test_two_set_ups_that_both_work_are_told_but_not_warned_about() -> None:
    here = OtherPrefix(prefix="a", database=None, undone=3, workers=1)
    verdicts: Callable[..., list[str]] = lambda **other: [  # noqa: E731
        check.verdict for check in neighbour_checks(here, [OtherPrefix(prefix="b", database=None, **other)])
    ]

    assert verdicts(undone=5, workers=2) == ["ok"]
    assert verdicts(undone=0, workers=0) == []
    assert verdicts(undone=5, workers=0) == ["warn"]


def test_looking_for_others_writes_nothing_and_keys_of_others_do_no_harm(client: Client, raw: Any) -> None:
    raw.sadd("another:queues", b"\xff not a name")
    raw.sadd("bad name here:queues", "x")
    before = raw.dbsize()

    assert other_prefixes(client, server_facts(client)) == []
    assert raw.dbsize() == before


def enqueue(client: Client, job: str, count: int = 1, queue: str = "mail", **options: Any) -> None:
    for n in range(count):
        client.enqueue(Task(id=f"{job}{n}", queue=queue, type=job, payload=b"{}", **options))


def test_a_job_that_no_worker_of_its_queue_knows_is_found_also_where_it_is_tried_again(client: Client) -> None:
    announce(client, types="Send,Other", queues="mail")
    announce(client, "w2", types="Ghost", queues="elsewhere")
    enqueue(client, "Send", 3)
    enqueue(client, "Ghost", 2)
    enqueue(client, "Later", delay_ms=60_000)

    told = [check.found for check in work_checks(client) if check.what == "job"]

    assert told == [
        "mail: no live worker knows the job 'Ghost', of 2 or more tasks to do",
        "mail: no live worker knows the job 'Later', of 1 or more tasks to do",
    ]


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("mail", {"types": "Ghost"}),
        ("mail", {"types": "*"}),
        ("mail", {}),
        ("orders/raw", {"types": "", "queues": "orders/raw"}),
    ],
    ids=["one knows it", "one knows too many to say", "one does not say", "a station takes any item"],
)
def test_a_job_is_not_called_unknown_where_a_worker_may_know_it(client: Client, queue: str, said: Any) -> None:
    announce(client, types="Send")
    announce(client, "w2", **said)
    enqueue(client, "Ghost", queue=queue)

    assert "job" not in warned(client)
