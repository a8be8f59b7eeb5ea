"""A pipeline with `partitions`: equal numbers share a slot, so items move in one step, and all look like one queue."""

from collections import Counter
from itertools import count
from typing import Any

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner import Client, Item, Lease, RateLimit
from jobrunner.broker.calls.shards import ShardCounts, set_pipeline_counts, shard_counts
from jobrunner.broker.keys import Keys, is_queue, tag_of_id
from jobrunner.broker.shards import in_partition_of, is_shard, shard_name, whole_queue
from jobrunner.broker.slots import slot_of
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.queue import align_shards
from jobrunner.errors import (
    InvalidName,
    InvalidOption,
    LeaseError,
    PipelineError,
    ReportsRefused,
    ServerUnavailable,
    TargetFull,
    UsageError,
)
from jobrunner.etl import Pipeline
from tests.support.examples import examples

pytestmark = pytest.mark.timeout(60)
N = 4
_numbers = count()


@pytest.fixture
def raw_queue(way: Any) -> Any:
    queue = way.queue("orders/raw")
    queue.configure(partitions=N)
    return queue


def tags(ids: Any) -> set[str]:
    return {tag_of_id(one) or "" for one in ids}


def test_a_partition_of_a_pipeline_is_a_pipeline_in_one_slot() -> None:
    assert [shard_name("orders/raw", 0), shard_name("orders/raw", 3)] == ["orders/raw", "orders@3/raw"]
    assert whole_queue("orders@3/raw") == "orders/raw"
    assert whole_queue("orders@3") == "orders"
    assert in_partition_of("orders@3/raw", "orders/clean") == "orders@3/clean"
    assert in_partition_of("orders@3", "orders/clean") == "orders@3/clean"
    assert in_partition_of("orders/raw", "orders/clean") == "orders/clean"
    assert is_shard("orders@3/raw")
    assert is_queue("orders@3/raw")
    raw, clean = Keys("p").queue("orders@3/raw"), Keys("p").queue("orders@3/clean")
    assert raw.waiting == b"p:{orders@3}:raw:waiting"
    assert slot_of(raw.pending) == slot_of(clean.waiting) == slot_of(raw.task("x"))
    assert slot_of(raw.pending) != slot_of(Keys("p").queue("orders/raw").pending)
    with pytest.raises(InvalidName):
        Keys("p").queue("orders@3/task")


def test_items_are_spread_and_move_on_within_their_partition(way: Any, raw_queue: Any) -> None:
    ids = [raw_queue.push(number) for number in range(8)] + raw_queue.push_many(range(8, 40))
    assert tags(ids) == {"orders", "orders@1", "orders@2", "orders@3"}
    clean = way.queue("orders/clean")
    moved: list[str] = []
    while taken := raw_queue.reserve(6):
        assert all(lease.move("clean", payload=[lease.payload]) for lease in taken[:2])
        moved += [lease.id for lease in taken]
        if rest := taken[2:]:
            assert raw_queue.move_many(rest, "orders/clean", payloads=[[one.payload] for one in rest]) == [True] * len(
                rest
            )
    assert sorted(moved) == sorted(ids)
    assert raw_queue.counts()["waiting"] == raw_queue.counts()["pending"] == 0
    assert clean.counts()["waiting"] == 40
    seen: list[int] = []
    while taken := clean.reserve(9):
        assert all(tag_of_id(lease.id) == lease.queue.partition("/")[0] for lease in taken)
        seen += [lease.payload[0] for lease in taken]
        clean.commit_many(taken)
    assert sorted(seen) == list(range(40))
    assert raw_queue.totals()["moved_out"] == clean.totals()["moved_in"] == clean.totals()["succeeded"] == 40


def test_all_queues_of_a_pipeline_have_its_partitions_also_later_ones(client: Client, way: Any, raw_queue: Any) -> None:
    assert way.queue("orders/late").settings().partitions == raw_queue.settings().partitions == N
    assert way.queue("other/raw").settings().partitions == 1
    late = way.queue("orders/late")
    assert len(tags(late.push_many(range(100)))) == N
    late.pause()
    assert [client.queue(name).is_paused() for name in ("orders/late", "orders@3/late")] == [True, True]
    assert late.reserve(3) == []
    late.resume()
    assert client.queues() == ["orders/late", "orders/raw"]
    assert client.stats()["orders/late"].waiting == len(late.ids("waiting")) == 100
    assert late.purge("waiting") == 100


@pytest.mark.parametrize("before", ["broken off", "reserve"])
def test_a_later_queue_has_all_its_shards_whatever_came_before_its_first_item(
    client: Client, raw: redis.Redis, before: str
) -> None:
    """Those that had no item yet were never registered: neither the leader nor the counts knew them."""
    client.queue("orders/raw").configure(partitions=N)
    later, routes = client.queue("orders/clean"), client.queue("orders/clean")._ref.routes
    assert routes is not None
    if before == "reserve":
        assert later.reserve() == []
    else:
        steps = routes.placing([later._ref.task(Item(0))])
        asked = next(steps)
        assert steps.send(broker_of(client).run_each(asked.calls))  # type: ignore[union-attr]
        with pytest.raises(ServerUnavailable):
            steps.throw(ServerUnavailable("no server"))

    later.push(1)

    shards = {shard_name("orders/clean", number) for number in range(N)}
    assert shards <= {name.decode() for name in raw.smembers(keys_of(client).queues)}
    assert later.push(2)
    assert routes.placed_at_once(later._ref.task(Item(3))), "what is known is asked for once"


def test_a_lease_is_reported_and_refused_as_in_any_queue(way: Any, raw_queue: Any) -> None:
    raw_queue.push_many(range(40))
    taken = raw_queue.reserve(20)
    assert len({lease.queue for lease in taken}) > 1
    taken[3].commit()
    taken[5].move("clean")
    with pytest.raises(ReportsRefused) as refused:
        raw_queue.move_many(taken, "clean")
    others = [one for place, one in enumerate(refused.value.verdicts) if place not in (3, 5)]
    assert others == [True] * 18
    assert refused.value.verdicts[3] is False
    assert isinstance(refused.value.verdicts[5], LeaseError)
    assert way.queue("orders/clean").counts()["waiting"] == 19
    (lease,) = raw_queue.reserve(1)
    with pytest.raises(UsageError, match="is not of pipeline 'orders'"):
        lease.move("shop/raw")
    if lease.queue == "orders/raw":
        with pytest.raises(UsageError, match="is not of pipeline 'orders'"):
            lease.move("orders@1/raw")
    with pytest.raises(InvalidOption, match="1 payloads are given for 2 leases"):
        raw_queue.move_many([lease, lease], "clean", payloads=[1])


def test_a_target_that_a_published_pipeline_has_not_is_refused_for_all_shards(client: Client) -> None:
    line = Pipeline("orders", client)
    line.station("raw", to="out")(lambda item: item.payload)
    line.sink("out")(lambda item: None)
    client.queue("orders/raw").configure(partitions=N)
    line.push_many("raw", range(40))
    taken = line.queue("raw").reserve(20)
    with pytest.raises(PipelineError, match=r"pipeline 'orders' has no queue 'otu'; did you mean 'out'\?"):
        line.queue("raw").move_many(taken, "otu")
    assert line.queue("raw").counts()["pending"] == 20
    assert line.queue("raw").move_many(taken, "out") == [True] * 20


def test_single_items_are_found_by_their_ids(client: Client, way: Any, raw_queue: Any) -> None:
    ids = raw_queue.push_many(range(60))
    one = next(task for task in ids if tag_of_id(task) == "orders@2")
    assert way.task(one).record().queue == "orders@2/raw"
    assert way.task(one, queue="orders/raw").record().payload is not None
    assert [record.id for record in raw_queue.tasks("waiting", limit=3, after=one)]
    assert client.queue("orders/raw").push("own", id="mine") == "mine"
    assert client.task("mine", queue="orders/raw").record().payload == b'"own"'
    later = raw_queue.push("later", in_=3600)
    assert raw_queue.run_now(later)
    assert client.task(later).cancel()
    (lease,) = [lease for lease in raw_queue.reserve(60) if lease.id == one]
    assert raw_queue.delete(lease.id)


def test_a_key_keeps_its_partition_and_its_order_through_the_pipeline(way: Any, raw_queue: Any) -> None:
    raw_queue.push_many([Item([key, number], partition=f"k{key}") for number in range(20) for key in range(5)])
    while taken := raw_queue.reserve(7):
        assert raw_queue.move_many(taken, "clean") == [True] * len(taken)
    clean, seen, place = way.queue("orders/clean"), dict[int, list[int]](), dict[int, set[str]]()
    while taken := clean.reserve(7):
        for lease in taken:
            seen.setdefault(lease.payload[0], []).append(lease.payload[1])
            place.setdefault(lease.payload[0], set()).add(lease.queue)
        clean.commit_many(taken)
    assert list(seen.values()) == [list(range(20))] * 5
    assert all(len(queues) == 1 for queues in place.values())


def test_settings_reach_all_shards_and_dead_letters_stay_in_their_partition(client: Client, raw_queue: Any) -> None:
    raw_queue.configure(max_attempts=1, dead_letter_queue="orders/failed", dead_ttl=60)
    shards = [client.queue(shard_name("orders/raw", number)) for number in range(N)]
    assert [one.settings().max_attempts for one in shards] == [1] * N
    assert [one.settings().dead_letter_queue for one in shards] == [
        "orders/failed", "orders@1/failed", "orders@2/failed", "orders@3/failed"
    ]  # fmt: skip
    ids = raw_queue.push_many(range(80))
    while taken := raw_queue.reserve(10):
        raw_queue.rollback_many(taken, error="boom")
    failed = client.queue("orders/failed")
    assert sorted(failed.ids("waiting")) == sorted(ids)
    leases = failed.reserve(80) + failed.reserve(80)
    assert Counter(tag_of_id(one.id) for one in leases) == Counter(map(tag_of_id, ids))
    assert {one.queue for one in leases} == {shard_name("orders/failed", number) for number in range(N)}
    assert all(lease.move("raw") for lease in leases)
    raw_queue.configure(partitions=2 * N)
    assert client.queue(f"orders@{N}/raw").settings().dead_letter_queue == f"orders@{N}/failed"


@pytest.mark.parametrize("by", ["hand", "an earlier version"])
def test_a_dead_letter_queue_that_nobody_serves_is_known_with_all_its_shards(
    client: Client, raw: redis.Redis, raw_queue: Any, by: str
) -> None:
    """Two thirds of the dead were in no figure: a death adds no queue to the registry."""
    raw_queue.configure(max_attempts=1, dead_letter_queue="orders/failed")
    if by != "hand":
        raw.srem(keys_of(client).queues, *(shard_name("orders/failed", number) for number in range(1, N)))
        align_shards(client.queue("orders/raw"))
    raw_queue.push_many(range(80))
    while taken := raw_queue.reserve(10):
        raw_queue.rollback_many(taken, error="boom")

    assert client.stats()["orders/failed"].waiting == client.queue("orders/failed").counts()["waiting"] == 80
    failed = {shard_name("orders/failed", number) for number in range(N)}
    assert failed <= {name.decode() for name in raw.smembers(keys_of(client).queues)}


def test_limits_hold_for_all_partitions_of_each_queue(client: Client, raw_queue: Any) -> None:
    raw_queue.configure(max_inflight=6)
    client.queue("orders/clean").configure(rate=RateLimit(5, per=3600))
    for name in ("orders/raw", "orders/clean"):
        client.queue(name).push_many([Item(n, partition=f"k{n}") for n in range(60)])
    assert sum(len(client.queue("orders/raw").reserve(7)) for _ in range(9)) == 6
    assert sum(len(client.queue("orders/clean").reserve(7)) for _ in range(9)) == 5


def test_limits_that_were_there_before_are_divided_when_the_pipeline_is_partitioned(client: Client) -> None:
    client.queue("orders/clean").configure(max_inflight=5, max_attempts=3)
    client.queue("orders/raw").configure(partitions=N)
    clean = client.queue("orders/clean")
    assert client.queue("orders@3/clean").settings().max_attempts == 3
    clean.push_many([Item(n, partition=f"k{n}") for n in range(60)])
    assert sum(len(clean.reserve(7)) for _ in range(9)) == 5


def test_fewer_partitions_are_refused_while_any_queue_has_items_there(client: Client, raw_queue: Any) -> None:
    raw_queue.push_many(range(40))
    for lease in client.queue("orders/raw").reserve(40) + client.queue("orders/raw").reserve(40):
        lease.move("clean")
    with pytest.raises(InvalidOption, match=r"shard 'orders@[123]/clean' would go, and holds \d+ tasks"):
        raw_queue.configure(partitions=1)
    assert client.queue("orders/clean").purge("waiting") == 40
    raw_queue.configure(partitions=1)
    assert raw_queue.settings().partitions == client.queue("orders/clean").settings().partitions == 1
    assert tags(raw_queue.push_many(range(40))) == {"orders"}
    counts = broker_of(client).run(shard_counts(keys_of(client).queue("orders/raw")))
    assert (counts.partitions, counts.served) == (1, N)
    for queue in ("orders/raw", "orders/clean"):
        with pytest.raises(UsageError, match="had other partitions a minute ago, and its producers may still send to"):
            client.queue(queue).delete(force=True)


@pytest.mark.parametrize(
    ("limits", "is_limited"), [({}, False), ({"max_inflight": 8}, True), ({"rate": RateLimit(8, per=1)}, True)], ids=str
)
def test_the_counts_say_whether_shards_have_slices_of_a_limit(
    client: Client, raw_queue: Any, limits: dict[str, Any], is_limited: bool
) -> None:
    raw_queue.configure(**limits)
    counts = broker_of(client).run(shard_counts(keys_of(client).queue("orders/raw")))
    assert counts.is_limited is is_limited


def test_counts_change_only_from_what_was_known(client: Client) -> None:
    keys, broker = keys_of(client).queue("orders/raw"), broker_of(client)
    eight = ShardCounts(8, 8, 8)
    assert broker.run(set_pipeline_counts(keys, ShardCounts(), eight)) == eight
    assert broker.run(set_pipeline_counts(keys, ShardCounts(), ShardCounts(4, 4, 4))) == eight
    assert broker.run(set_pipeline_counts(keys, eight, ShardCounts(4, 8, 8))) == ShardCounts(4, 8, 8)


def test_damaged_counts_read_as_none(client: Client, raw: redis.Redis) -> None:
    keys = keys_of(client).queue("orders/raw")
    raw.hset(keys.shard_counts, mapping={"partitions": "x", "shards": "y", "key_shards": ""})
    assert broker_of(client).run(shard_counts(keys)) == ShardCounts()


@given(st.data())
@settings(max_examples=examples(30))
def test_every_item_is_in_one_queue_of_its_partition_whatever_is_done(client: Client, data: st.DataObject) -> None:
    """A model: where each item is. Pushes, moves to any queue, returns and growth, in any order."""
    names = ["raw", "clean", "out"]
    pipeline = f"p{next(_numbers)}"
    queues = {name: client.queue(f"{pipeline}/{name}") for name in names}
    where: dict[str, str] = {}
    held: dict[str, list[Any]] = {name: [] for name in names}
    partitions = 1
    for _ in range(data.draw(st.integers(1, 12))):
        name = data.draw(st.sampled_from(names))
        step = data.draw(st.sampled_from(["push", "reserve", "move", "release", "more"]))
        if step == "push":
            where |= dict.fromkeys(queues[name].push_many(range(data.draw(st.integers(1, 12)))), name)
        elif step == "reserve":
            held[name] += queues[name].reserve(data.draw(st.integers(1, 9)))
        elif step == "move" and held[name]:
            to = data.draw(st.sampled_from(names))
            assert all(queues[name].move_many(held[name], to))
            where |= {lease.id: to for lease in held[name]}
            held[name] = []
        elif step == "release" and held[name]:
            assert all(queues[name].release_many(held[name]))
            held[name] = []
        elif step == "more":
            partitions = data.draw(st.integers(partitions, 5))
            queues[name].configure(partitions=partitions)
    for name in names:
        counted = queues[name].counts()
        assert counted["pending"] == len(held[name])
        there = {*queues[name].ids("waiting"), *queues[name].ids("pending")}
        assert there == {task for task, place in where.items() if place == name}
    for task, name in where.items():
        record = client.task(task).record()
        assert record.queue == in_partition_of(tag_of_id(task) or "", f"{pipeline}/{name}")


def test_a_move_that_finds_its_target_full_names_the_target(client: Client) -> None:
    queue, target = client.queue("orders/raw"), client.queue("orders/clean")
    queue.configure(partitions=N)
    target.configure(max_size=N)
    queue.push_many(range(20 * N))
    held: list[Lease] = []
    while len(held) < 20 * N:
        held += queue.reserve(20 * N)

    with pytest.raises(ReportsRefused) as refused:
        queue.move_many(held, "clean")

    full = [one for one in refused.value.verdicts if isinstance(one, TargetFull)]
    assert len(full) == 20 * N - N
    assert {one.queue for one in full} == {"orders/clean"}
