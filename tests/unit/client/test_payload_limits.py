"""Payloads from nothing to 64 MB, and the limit, which is refused before anything is sent."""

from typing import Any

import pytest

from jobrunner import Item
from jobrunner.client.client import Client, keys_of
from jobrunner.errors import InvalidOption, PayloadTooLarge, UsageError
from jobrunner.task import Task, new_id
from tests.support.server import Server

MIB = 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 4096, MIB])
def test_a_payload_up_to_the_limit_travels_as_it_is(way: Any, size: int) -> None:
    way.queue("mail").push(b"x" * size)

    (lease,) = way.queue("mail").reserve()
    assert lease.payload == b"x" * size


def test_one_byte_more_is_refused_with_both_sizes_and_nothing_is_sent(way: Any, trips: list[int]) -> None:
    with pytest.raises(PayloadTooLarge, match=rf"{MIB + 1} bytes, the limit is {MIB}.*payload_limit"):
        way.queue("mail").push(b"x" * (MIB + 1))
    assert trips == []


@pytest.mark.parametrize(
    ("payloads", "said"), [(range(100_001), "100,001 items"), ([b"x" * MIB] * 65, "65 items with 65.0 MiB")]
)
def test_more_than_one_step_may_hold_is_refused_and_nothing_is_pushed(
    way: Any, trips: list[int], payloads: Any, said: str
) -> None:
    with pytest.raises(UsageError, match=rf"push_many of {said}.*up to 100,000 items and 64 MiB at a time"):
        way.queue("mail").push_many(payloads)
    assert trips == []


def test_headers_have_a_limit_of_their_own(way: Any, trips: list[int]) -> None:
    largest = {"tenant": "t1", "trace": "x" * (64 * 1024 - 26)}

    with pytest.raises(InvalidOption, match="headers of 65,537 bytes, such as 'trace': give 65,536 at most"):
        way.queue("line/mail").push(1, headers=largest | {"trace": largest["trace"] + "x"})
    assert trips == []
    way.queue("line/mail").push(1, headers=largest)
    (lease,) = way.queue("line/mail").reserve()
    assert lease.headers == largest
    with pytest.raises(InvalidOption, match="headers of"):
        lease.move("line/late", headers={"more": "y"})


def enqueue(way: Any, *payloads: bytes, headers: bytes | None = None) -> None:
    way.enqueue_many([Task(id=new_id("mail"), queue="mail", payload=one, headers=headers) for one in payloads])


def test_many_large_payloads_go_a_mib_at_a_time(way: Any, trips: list[int]) -> None:
    enqueue(way, b"the queue is registered now")
    del trips[:]
    enqueue(way, *[b"x" * 400_000] * 6)
    assert trips == [1, 1, 1]
    enqueue(way, b"x" * MIB, b"x", b"x")
    assert trips == [1, 1, 1, 1, 1]
    assert way.queue("mail").counts()["waiting"] == 10


def test_what_is_taken_at_once_is_bounded_in_bytes_and_the_rest_stays_in_its_place(way: Any) -> None:
    queue = way.queue("mail")
    queue.push_many([Item(b"x" * MIB, id=f"{n:02}") for n in range(40)])

    first = queue.reserve(5000)
    second = queue.reserve(5000, committing=first)
    popped = queue.pop(1000)

    assert [[one.id for one in taken] for taken in (first, second, popped)] == [
        [f"{n:02}" for n in ids] for ids in (range(16), range(16, 32), range(32, 40))
    ]
    assert queue.commit_many(second) == [True] * 16
    assert queue.totals() == {"enqueued": 40, "succeeded": 40}


def test_partitions_share_the_bytes_of_one_call_and_are_asked_again(way: Any, trips: list[int]) -> None:
    queue = way.queue("mail")
    queue.configure(partitions=2)
    queue.push_many([Item(b"x" * MIB, partition=f"k{n}") for n in range(40)])

    taken = queue.reserve(5000)
    assert len(taken) == 16
    assert len({one.queue for one in taken}) == 2
    del trips[:]
    assert len(queue.reserve(5000)) >= 8
    assert trips == [2], "both are known to have more"


def test_headers_count_too(way: Any, trips: list[int]) -> None:
    enqueue(way, b"the queue is registered now")
    del trips[:]
    enqueue(way, b"x", b"y", headers=b'{"long":"' + b"x" * 600_000 + b'"}')
    assert trips == [1, 1]


def test_dead_items_are_given_a_large_payload_a_mib_at_a_time(way: Any, trips: list[int]) -> None:
    queue = way.queue("mail")
    queue.configure(max_attempts=1)
    queue.push_many(range(7))
    queue.rollback_many(queue.reserve(7))
    dead = [record.id for record in queue.tasks("dead")]
    del trips[:]
    assert queue.requeue_dead(dead, payload="x" * 400_000) == 7
    assert trips == [1] * 5, "four of two items, and a note"
    assert {record.payload for record in queue.tasks("waiting")} == {"x" * 400_000}


@pytest.mark.slow
def test_a_limit_of_64_mib_carries_64_mib_and_not_one_byte_more(server: Server, client: Client) -> None:
    with Client(server.url, keys_of(client).prefix, payload_limit=64 * MIB) as large:
        large.queue("mail").push(b"x" * (64 * MIB))
        (lease,) = large.queue("mail").reserve()
        assert len(lease.payload) == 64 * MIB
        lease.commit()
        with pytest.raises(PayloadTooLarge):
            large.queue("mail").push(b"x" * (64 * MIB + 1))
