"""`max_size` of a queue with partitions: each shard has a part, and the parts are never more than the bound."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner import AsyncClient, Client, Item, job
from jobrunner.broker.call import Call, command
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import ShardCounts
from jobrunner.broker.shards import shard_name
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.queue import align_shards
from jobrunner.client.settings_hash import write_settings
from jobrunner.errors import InvalidOption, LeaseError, QueueFull
from tests.support.examples import examples

pytestmark = pytest.mark.timeout(60)
NAMES = pytest.mark.parametrize("name", ["mail", "shop/raw"])


def parts(client: Client, name: str, count: int = 4) -> list[int | None]:
    """The bound of each shard; None without one."""
    calls: list[Call[Any]] = []
    for number in range(count):
        keys = keys_of(client).queue(shard_name(name, number))
        calls.append(command("HMGET", keys.settings, "max_size", "slice_size", read=lambda reply: reply))
    found = broker_of(client).run_many(calls)
    return [None if bound is None else int(part if part is not None else bound) for bound, part in found]


@given(st.integers(1, 10_000), st.integers(1, 100), st.integers(0, 50))
def test_parts_are_the_bound_together_and_differ_by_one(most: int, spread: int, more: int) -> None:
    found = [part or 0 for part in ShardCounts(spread, spread + more, spread).parts(most)]
    assert sum(found) == most
    assert max(found[:spread]) - min(found[:spread]) <= 1
    assert not any(found[spread:])


@NAMES
def test_a_queue_is_filled_up_to_its_bound_and_never_above(client: Client, name: str) -> None:
    queue = client.queue(name)
    queue.configure(partitions=4, max_size=50)
    assert queue.settings().max_size == 50
    assert parts(client, name) == [13, 13, 12, 12]
    ids = queue.push_many(range(30)) + [queue.push(number) for number in range(20)]
    with pytest.raises(QueueFull):
        queue.push("one more")
    assert queue.counts()["waiting"] == len(ids) == 50
    queue.pop(1)
    while True:  # until it is the turn of the shard that has room
        try:
            queue.push("fits again")
            break
        except QueueFull:
            continue
    assert queue.counts()["waiting"] == 50


@NAMES
def test_a_batch_that_does_not_fit_into_one_shard_adds_nothing_to_the_others(client: Client, name: str) -> None:
    queue = client.queue(name)
    queue.configure(partitions=4, max_size=40)
    with pytest.raises(
        QueueFull, match=r"queue '(mail|shop/raw)' has no room for these tasks: .* hold 10 .* nothing was added"
    ) as full:
        queue.push_many(range(41))
    assert (full.value.queue, full.value.max_size) == (name, 10)
    assert queue.counts()["waiting"] == 0, "a caller that tries again adds none of them twice"
    mine = [Item(number, id=f"i{number}") for number in range(12)]
    queue.push_many(mine)
    queue.push_many(range(28))
    assert queue.push_many(mine) == [item.id for item in mine], "items that are in the queue already need no room"
    assert queue.counts()["waiting"] == 40


@NAMES
def test_a_declared_bound_that_leaves_shards_no_part_holds_and_so_do_the_limits_beside_it(
    client: Client, name: str
) -> None:
    """A worker only warns of it, and works."""
    queue = client.queue(name)
    queue.configure(partitions=4)
    fields = write_settings({"max_size": 2, "max_inflight": 1}, name)
    broker_of(client).run(queues.declare(keys_of(client).queue(name), fields, place="app:1", ttl_ms=60_000))
    with pytest.raises(InvalidOption, match="max_size=2 with partitions=4"):
        align_shards(queue)
    assert parts(client, name) == [1, 1, 0, 0]
    for number in range(2):
        queue.push(number)
    with pytest.raises(QueueFull):
        queue.push("one more")
    assert len(queue.reserve(4)) == 1


@job(name="sizes.note", queue="mail")
def note(number: int) -> None: ...


def test_a_batch_of_jobs_that_does_not_fit_into_one_shard_adds_none(current: Client) -> None:
    queue = current.queue("mail")
    queue.configure(partitions=4, max_size=40)
    with pytest.raises(QueueFull, match="nothing was added; try again later"):
        note.enqueue_many([note.bind(number) for number in range(41)])
    assert queue.counts()["waiting"] == 0
    assert len(note.enqueue_many([note.bind(number) for number in range(40)])) == 40


def test_a_batch_of_jobs_of_which_one_queue_is_full_says_that_others_may_be_there(current: Client) -> None:
    current.queue("mail").configure(max_size=1)
    note.enqueue(1)
    with pytest.raises(QueueFull, match=r"queue 'mail' has no room for 1 more: .* others of the same call may"):
        note.enqueue_many([note.bind(2), note.using(queue="other").bind(3)])
    assert current.queue("other").counts()["waiting"] == 1


def test_a_batch_that_waits_in_vain_says_that_a_part_may_be_there(client: Client) -> None:
    queue = client.queue("mail")
    queue.configure(partitions=4, max_size=40)
    with pytest.raises(QueueFull, match="others of the same call may have been added"):
        queue.push_many([*range(9), *(Item(n, partition="busy") for n in range(11))], wait=0.05)


@NAMES
@pytest.mark.parametrize("in_", [0, 3600], ids=["waiting", "scheduled"])
def test_a_shard_that_a_key_fills_keeps_no_other_task_from_the_room_of_the_others(
    client: Client, name: str, in_: int
) -> None:
    queue = client.queue(name)
    queue.configure(partitions=4, max_size=400)
    queue.push_many([Item(number, partition="busy", in_=in_) for number in range(100)])
    with Client(client.settings.url, client.settings.prefix) as other:
        producer = other.queue(name)
        for number in range(300):
            producer.push(number)
    assert queue.counts()["waiting"] + queue.counts()["scheduled"] == 400


def test_pushes_at_the_same_time_fill_a_queue_to_its_bound(client: Client) -> None:
    client.queue("mail").configure(partitions=4, max_size=40)

    async def push_all() -> list[Any]:
        async with AsyncClient(client.settings.url, client.settings.prefix) as other:
            queue = other.queue("mail")
            with pytest.raises(QueueFull):
                await queue.push_many(range(41))
            return await asyncio.gather(*[queue.push(number) for number in range(40)], return_exceptions=True)

    found = asyncio.run(push_all())
    assert [one for one in found if not isinstance(one, str)] == []


def test_the_error_of_a_full_partition_has_a_public_name(client: Client) -> None:
    client.queue("mail").configure(partitions=4, max_size=40)
    with pytest.raises(QueueFull) as refused:
        client.queue("mail").push_many(range(41))
    assert refused.type is QueueFull


@NAMES
def test_parts_follow_the_bound_and_the_number_of_partitions(client: Client, name: str) -> None:
    queue = client.queue(name)
    queue.configure(max_size=40, partitions=2)
    assert parts(client, name, 2) == [20, 20]
    queue.configure(partitions=4)
    assert parts(client, name) == [10] * 4
    queue.configure(max_size=80)
    assert parts(client, name) == [20] * 4
    queue.configure(max_size=8)
    assert parts(client, name) == [2] * 4
    queue.configure(partitions=1)
    assert parts(client, name) == [8, 0, 0, 0]
    queue.configure(partitions=4, max_size=None)
    assert parts(client, name) == [None] * 4
    queue.push_many(range(100))


@NAMES
def test_a_bound_below_the_number_of_partitions_is_refused(client: Client, name: str) -> None:
    queue = client.queue(name)
    queue.configure(max_size=5)
    with pytest.raises(InvalidOption, match=rf"max_size=5 with partitions=8 on queue '{name}': each partition"):
        queue.configure(partitions=8)
    queue.configure(partitions=4)
    with pytest.raises(InvalidOption, match="max_size=3 with partitions=4"):
        queue.configure(max_size=3)
    assert parts(client, name) == [2, 1, 1, 1]


def test_a_move_into_a_full_partition_is_refused_and_the_item_stays(client: Client) -> None:
    raw, clean = client.queue("shop/raw"), client.queue("shop/clean")
    clean.configure(partitions=4, max_size=4)
    raw.push_many([Item(number, partition="one") for number in range(3)])
    first, *others = raw.reserve(3)
    assert first.move("clean")
    with pytest.raises(LeaseError, match="max_size"):
        others[0].move("clean")
    assert clean.counts()["waiting"] == 1
    assert others[0].commit()


@pytest.fixture
def watched(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[list[int | None]]:
    """The parts after each round trip of the client."""
    seen: list[list[int | None]] = []
    broker = broker_of(client)
    run_many = broker.run_many
    monkeypatch.setattr(broker, "run_many", lambda calls: _noting(run_many, calls, client, seen))
    return seen


def _noting(run_many: Any, calls: list[Call[Any]], client: Client, seen: list[list[int | None]]) -> Any:
    done = []
    for call in calls:  # singly, as shards are on different nodes
        done += run_many([call])
        raw = [run_many([command("HMGET", keys_of(client).queue(shard_name("watched", n)).settings, "max_size",
                                 "slice_size", read=lambda reply: reply)])[0] for n in range(6)]  # fmt: skip
        seen.append([None if bound is None else int(bound if part is None else part) for bound, part in raw])
    return done


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(6, 40)), min_size=2, max_size=5))
@settings(max_examples=examples(15))
def test_parts_are_never_above_the_larger_bound_while_it_changes(
    client: Client, watched: list[list[int | None]], changes: list[tuple[int, int]]
) -> None:
    queue, before = client.queue("watched"), 0
    for partitions, most in changes:
        watched.clear()
        queue.configure(partitions=partitions, max_size=most)
        assert sum(part or 0 for part in watched[-1]) == most
        if before:
            assert max(sum(part or 0 for part in seen) for seen in watched) <= max(before, most)
        before = most
