"""An address that leads to another server after a failover, as a DNS name or a virtual IP does, while the connections
to the old primary, which is a replica by now, stay open."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobrunner import Client
from jobrunner.broker.call import command
from jobrunner.broker.calls import leases, new_tasks
from jobrunner.broker.calls.server import confirmation
from jobrunner.errors import OutcomeUnknown, ServerRefused, ServerUnavailable
from jobrunner.task import Task
from tests.support.server import Server

Connect = Callable[..., Any]
DEMOTION = command("REPLICAOF", "127.0.0.1", "1", read=bytes)
PROMOTION = command("REPLICAOF", "NO", "ONE", read=bytes)


class Failover(NamedTuple):
    """`url` leads to the first server, and from `happen` on to the second."""

    url: str
    happen: Callable[[], None]
    now: Server


@pytest.fixture(params=["yes", "no"], ids=["READONLY", "MASTERDOWN"])
def failover(request: pytest.FixtureRequest, start_server: Callable[..., Server], tmp_path: Path) -> Failover:
    """The old primary refuses writes alone, or everything until it has the data of the new one."""
    old, new = start_server(**{"replica-serve-stale-data": request.param}), start_server()
    way = tmp_path / "s"
    way.symlink_to(old.socket)

    def happen() -> None:
        demote(old)
        way.unlink()
        way.symlink_to(new.socket)

    return Failover(f"unix://{way}", happen, new)


def demote(server: Server) -> None:
    with server.connect() as raw:
        raw.execute_command(*DEMOTION.words)


def enqueue(mail: Any, name: str) -> Any:
    return new_tasks.enqueue(mail, [Task(id=name, queue="mail", payload=b"x")])


def test_a_write_that_a_replica_refuses_goes_to_the_primary_that_the_address_leads_to_now(
    connect: Connect, failover: Failover, mail: Any
) -> None:
    driver = connect(failover.url)
    driver.run(enqueue(mail, "a"))
    failover.happen()
    driver.run(enqueue(mail, "b"))

    with failover.now.connect() as raw:
        assert raw.zrange(mail.waiting, 0, -1) == [b"b"]


def test_so_does_what_may_not_be_repeated_as_it_was_refused(connect: Connect, failover: Failover, mail: Any) -> None:
    driver = connect(failover.url)
    driver.run(enqueue(mail, "a"))
    failover.happen()

    assert driver.run(leases.pop(mail, 1)) == []


@pytest.mark.parametrize("failover", ["yes"], indirect=True)  # else PING is refused, too, and all calls are sent again
def test_no_connection_to_the_old_primary_is_used_again(connect: Connect, failover: Failover, mail: Any) -> None:
    driver = connect(failover.url, confirmation=confirmation("replicated", 1.0))
    driver.run(enqueue(mail, "a"))
    failover.happen()
    answered = command("PING", read=bytes, repeatable=False)  # a confirmation is for all or none, and this is done
    with pytest.raises(ServerRefused, match="read only replica"):
        driver.write([answered, enqueue(mail, "b")])
    driver.run(enqueue(mail, "c"))

    with failover.now.connect() as raw:
        assert b"c" in raw.zrange(mail.waiting, 0, -1)


def test_an_address_that_leads_to_a_replica_is_told_at_once(
    connect: Connect, start_server: Callable[..., Server], mail: Any
) -> None:
    server = start_server()
    demote(server)

    with pytest.raises(ServerRefused, match=r"is a replica and takes no writes: .* the URL must lead to its primary"):
        connect(server.url, retry_timeout_s=60).run(enqueue(mail, "a"))


def test_what_was_done_before_a_server_became_a_replica_is_told_as_done(
    connect: Connect, start_server: Callable[..., Server], mail: Any
) -> None:
    driver = connect(start_server().url)
    driver.run(enqueue(mail, "a"))
    added, _, refused = driver.run_each([enqueue(mail, "b"), DEMOTION, enqueue(mail, "c")])

    assert added == [True]
    assert isinstance(refused, ServerRefused)


def test_of_calls_that_a_replica_refused_in_part_that_part_is_sent_again(
    connect: Connect, start_server: Callable[..., Server], mail: Any
) -> None:
    server = start_server()
    driver = connect(server.url)
    driver.run_many([leases.pop(mail, 1), enqueue(mail, "a")])
    popped, _, added, _, popped_later = driver.run_each(
        [leases.pop(mail, 1), DEMOTION, enqueue(mail, "b"), PROMOTION, leases.pop(mail, 1)]
    )

    assert (len(popped), popped_later, added) == (1, [], [True])
    with server.connect() as raw:
        assert raw.zrange(mail.waiting, 0, -1) == [b"b"]


@pytest.mark.parametrize("durability", ["none", "replicated"])
def test_where_no_primary_is_found_what_was_done_is_done_and_the_rest_was_not_sent(
    connect: Connect, failover: Failover, mail: Any, durability: str
) -> None:
    driver = connect(failover.url, retry_timeout_s=0, confirmation=confirmation(durability, 1.0))
    driver.run(enqueue(mail, "a"))
    Path(failover.url.removeprefix("unix://")).unlink()

    with pytest.raises(OutcomeUnknown):
        driver.write([enqueue(mail, "b"), DEMOTION, enqueue(mail, "c")])
    with pytest.raises(ServerUnavailable):
        driver.write([enqueue(mail, "d"), enqueue(mail, "e")])


def test_items_that_are_sent_before_the_reply_to_others_arrive_at_the_new_primary(failover: Failover) -> None:
    def payloads() -> Any:
        yield from range(1500)
        failover.happen()
        yield from range(1500, 4000)

    with Client(failover.url) as client:
        client.queue("mail").push_all(payloads())
        there = client.queue("mail").counts()["waiting"]

    assert there >= 2500
