"""`jobrunner workers`."""

from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.broker.calls.leader import announce
from jobrunner.client.client import Client, broker_of, keys_of

IDS = ("web1.4711.9f02ab", "web2.4711.00c0de")


@pytest.fixture
def two(client: Client) -> Callable[[str], dict[str, bytes]]:
    """Announces two workers; the callable is a heartbeat of one of them, which returns the commands for it."""

    def heartbeat(worker_id: str) -> dict[str, bytes]:
        host, pid, _ = worker_id.split(".")
        said = {"host": host, "pid": pid, "queues": "mail", "concurrency": 4}
        return broker_of(client).run(announce(keys_of(client), worker_id, said, ttl_ms=60_000)).commands

    for one in IDS:
        heartbeat(one)
    return heartbeat


def test_workers_are_listed(cli: Callable[..., Any], client: Client, two: Any) -> None:
    assert [worker["id"] for worker in cli("workers", "list", "--json").value] == list(IDS)
    lines = cli("workers", "list").out.splitlines()
    assert lines[0].split()[:3] == ["WORKER", "STATE", "STARTED"]
    assert [line.split()[:2] for line in lines[1:]] == [[IDS[0], "open"], [IDS[1], "open"]]


def test_a_worker_that_stops_is_listed_as_such(cli: Callable[..., Any], client: Client) -> None:
    said = {"host": "web1", "pid": 7, "queues": "mail", "stopping": "1", "quiet": "1", "gate": "memory"}
    broker_of(client).run(announce(keys_of(client), IDS[0], said, ttl_ms=60_000))

    assert cli("workers", "list").out.splitlines()[1].split()[:2] == [IDS[0], "stopping"]


def test_without_workers_the_list_says_how_to_start_one(cli: Callable[..., Any], client: Client) -> None:
    result = cli("workers", "list")

    assert (result.code, result.out) == (0, "")
    assert "jobrunner work" in result.err


@pytest.mark.parametrize(
    ("command", "expected"), [("quiet", {"quiet": b"1"}), ("resume", {"quiet": b"0"}), ("stop", {"stop": b"1"})]
)
@pytest.mark.parametrize("named", [IDS[1], "00c0de"])
def test_a_command_reaches_the_worker_that_is_named_and_no_other(
    cli: Callable[..., Any], two: Any, command: str, expected: dict[str, bytes], named: str
) -> None:
    assert cli("workers", command, named, "--json").value == {"worker": IDS[1], "command": command}

    assert (two(IDS[0]), two(IDS[1])) == ({}, expected)


def test_a_part_that_two_workers_have_and_one_that_none_has_are_refused(cli: Callable[..., Any], two: Any) -> None:
    both, none = cli("workers", "stop", "4711"), cli("workers", "stop", "web3")

    assert (both.code, none.code) == (1, 1)
    assert all(one in both.err for one in IDS)
    assert "there is no worker 'web3'" in none.err
    assert IDS[0] in none.err
    assert (two(IDS[0]), two(IDS[1])) == ({}, {})
