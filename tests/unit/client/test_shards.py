"""A queue with `partitions`: where tasks go, and that all its shards look like one queue."""

import asyncio
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from zlib import crc32

import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner import AsyncClient, Client, Item, RateLimit, Unique, job
from jobrunner.broker.call import command
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.shards import ShardCounts
from jobrunner.broker.keys import Keys, check_id, is_queue, split_queue, tag_of_id
from jobrunner.broker.shards import is_shard, shard_name, whole_queue
from jobrunner.client.client import broker_of, keys_of
from jobrunner.client.lease import Lease
from jobrunner.client.operations import router as router_module
from jobrunner.client.operations import routing
from jobrunner.client.operations import whole_queue as whole_queue_operations
from jobrunner.client.operations.operation import run_operation
from jobrunner.client.operations.router import Router
from jobrunner.client.operations.slice_balancer import SliceBalancer
from jobrunner.client.queue import Queue
from jobrunner.client.settings_hash import write_settings
from jobrunner.clock import monotonic
from jobrunner.errors import (
    DuplicateTask,
    InvalidName,
    InvalidOption,
    LeaseLost,
    QueueFull,
    QueueNotEmpty,
    ReportsRefused,
    ServerRefused,
    ServerUnavailable,
    TaskGone,
    UsageError,
)
from jobrunner.task import Lock, Task, new_id
from tests.support.examples import examples
from tests.support.waiting import wait_for
from tests.unit.client.conftest import Awaited

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def mail(client: Client) -> Queue:
    queue = client.queue("mail")
    queue.configure(partitions=4)
    return queue


@pytest.fixture
def other_client(client: Client) -> Iterator[Client]:
    """A program that knows nothing of what the other one did."""
    with Client(client.settings.url, client.settings.prefix) as other:
        yield other


@pytest.fixture
def trips(client: Client, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls each round trip of the client had."""
    counted: list[int] = []
    broker = broker_of(client)
    replies = broker._replies

    def counting(calls: Any, *rest: Any) -> Any:
        counted.append(len(calls))
        return replies(calls, *rest)

    monkeypatch.setattr(broker, "_replies", counting)
    return counted


def shard_of(task_id: str) -> str:
    tag = tag_of_id(task_id)
    assert tag is not None
    return tag


def in_shard(client: Client, name: str) -> int:
    return client.queue(name).counts()["waiting"]


def test_names_of_shards_cannot_be_chosen_and_are_in_ids() -> None:
    assert [shard_name("mail", 0), shard_name("mail", 3)] == ["mail", "mail@3"]
    assert whole_queue("mail@3") == whole_queue("mail") == "mail"
    assert is_shard("mail@3")
    assert not any(map(is_shard, ("mail", "mail@0", "mail@", "@3", "mail@1000", "a@1@2", "shop/raw@1", "shop@1/")))
    assert is_queue("mail@3")
    assert not is_queue("mail@x")
    assert not is_queue("task@3")
    assert not is_queue("a/b@1")
    assert not is_queue("a@1/a")
    with pytest.raises(InvalidName):
        split_queue("mail@3")
    assert Keys("p").queue("mail@3").waiting == b"p:{mail@3}:mail@3:waiting"
    assert Keys("p").tag_base("mail@3") == b"p:{mail@3}:"
    made = new_id("mail@3")
    assert check_id(made) == made
    assert tag_of_id(made) == "mail@3"
    with pytest.raises(InvalidName):
        Keys("p").queue("task@3")


def test_a_plain_queue_has_no_further_key_and_no_shards(client: Client) -> None:
    queue = client.queue("plain")
    queue.push(1)
    assert queue.settings().partitions == 1
    assert client.queues() == ["plain"]


def test_tasks_without_a_key_are_spread_evenly_and_their_ids_say_where(client: Client, mail: Queue) -> None:
    ids = [mail.push(number) for number in range(80)] + mail.push_many(range(80, 400))
    spread = Counter(map(shard_of, ids))
    assert set(spread) == {"mail", "mail@1", "mail@2", "mail@3"}
    assert max(spread.values()) - min(spread.values()) <= 2
    assert {name: in_shard(client, name) for name in spread} == {**spread, "mail": 400}
    assert all(client.task(one).record().queue == shard_of(one) for one in ids[::40])
    assert client.task(ids[0], queue="mail").record().id == ids[0]


def test_what_was_there_before_is_in_the_first_shard_and_comes_out(client: Client, other_client: Client) -> None:
    old = other_client.queue("mail").push("before")
    client.queue("mail").configure(partitions=4)
    late = other_client.queue("mail")  # it knows the queue as one without partitions, for a minute
    assert shard_of(late.push("after")) == shard_of(old) == "mail"
    taken = client.queue("mail").reserve(5)
    assert [lease.payload for lease in taken] == ["before", "after"]


def test_a_key_stays_in_its_shard_in_order_also_when_the_queue_grows(client: Client, mail: Queue) -> None:
    mail.push_many([Item([number], partition=f"k{number % 7}") for number in range(70)])
    mail.configure(partitions=16)
    ids = mail.push_many([Item([number], partition=f"k{number % 7}") for number in range(70, 140)])
    assert set(map(shard_of, ids)) <= {"mail", "mail@1", "mail@2", "mail@3"}, "keys moved while tasks waited"
    assert len({shard_of(mail.push(n)) for n in range(32)}) == 16, "tasks without a key go to the new ones, too"
    got: dict[int, list[int]] = {}
    while taken := mail.reserve(50):
        for lease in taken:
            if isinstance(lease.payload, list):
                got.setdefault(lease.payload[0] % 7, []).append(lease.payload[0])
        mail.commit_many(taken)
    assert len(got) == 7
    assert all(numbers == sorted(numbers) for numbers in got.values())
    mail.configure(partitions=16)  # nothing waits: now keys are spread over all
    ids = mail.push_many([Item(number, partition=f"k{number}") for number in range(200)])
    assert len(set(map(shard_of, ids))) == 16


def test_ids_of_the_users_own_are_found_in_whatever_shard(client: Client, mail: Queue) -> None:
    own = [f"order-{number}" for number in range(20)]
    for one in own:
        assert mail.push(1, id=one) == mail.push(2, id=one) == one
    assert mail.counts()["waiting"] == 20
    places = {client.task(one, queue="mail").record().queue for one in own}
    assert len(places) > 1
    known: list[str] = []
    mail.push_many([Item(3, id=one) for one in [*own[:5], "new"]], on_clash=known.extend)
    assert sorted(known) == sorted(own[:5])
    with pytest.raises(InvalidOption, match="in several partitions of queue 'mail'"):
        mail.push_many([Item(3, id=one) for one in own], on_clash="raise")
    with pytest.raises(DuplicateTask):
        mail.push(3, id=own[0], on_clash="raise")
    assert client.task(own[0], queue="mail").cancel()
    with pytest.raises(TaskGone):
        client.task("nowhere", queue="mail").record()
    later = mail.push(1, id="later", in_=3600)
    assert mail.run_now(later)
    with pytest.raises(TaskGone):
        mail.run_now("nowhere")
    taken = mail.reserve(100)
    assert all(mail.delete(lease.id) for lease in taken)
    assert not mail.delete("nowhere")


def test_an_id_of_a_partition_that_is_not_there_is_refused(client: Client, mail: Queue, raw: redis.Redis) -> None:
    """As when tasks are copied from a server where the queue has more. No count had them, and no worker took them."""
    there, elsewhere = new_id("mail@1"), new_id("mail@40")
    assert mail.push(1, id=there) == there
    for push in (lambda: mail.push(2, id=elsewhere), lambda: mail.push_many([1, Item(2, id=elsewhere)])):
        with pytest.raises(InvalidOption, match="in a partition that queue 'mail' does not have"):
            push()
    assert [lease.id for lease in mail.reserve(9)] == [there]
    assert not raw.keys("*@40*")


def test_unique_tasks_meet_in_one_shard_and_a_key_beside_the_lock_is_refused(client: Client, mail: Queue) -> None:
    def unique(digest: str, key: str | None = None) -> Task:
        lock = Lock(digest=digest, lasts="finished", ttl_ms=60_000, on_clash="existing")
        return Task(id=new_id("mail"), queue="mail", payload=b"{}", type="j", lock=lock, key=key)

    first = [client.enqueue(unique(f"d{number}")) for number in range(10)]
    again = [client.enqueue(unique(f"d{number}")) for number in range(10)]
    assert [handle.id for handle in first] == [handle.id for handle in again]
    assert len({shard_of(handle.id) for handle in first}) > 1
    with pytest.raises(InvalidOption, match=r"job 'j' is unique by parameters that its key .* 4 partitions"):
        client.enqueue(unique("d", "k"))


def test_a_unique_job_with_a_key_among_its_parameters_is_in_the_shard_of_the_key(current: Client) -> None:
    mail = current.queue("mail")
    mail.configure(partitions=8, max_inflight_per_partition=1)

    @job(queue="mail", name="sync", partition_by="tenant", unique=Unique(by=["tenant", "table"]))
    def sync(tenant: str, table: str, _note: str = "") -> None: ...

    first = [sync.enqueue(f"t{n // 2}", f"table{n}") for n in range(20)]
    again = [sync.enqueue(f"t{n // 2}", f"table{n}", "again") for n in range(20)]
    assert [handle.id for handle in first] == [handle.id for handle in again]
    assert len({shard_of(handle.id) for handle in first}) > 3
    assert all(shard_of(one.id) == shard_of(other.id) for one, other in zip(first[::2], first[1::2], strict=True))
    assert len(all_of(mail)) == 10, "one of each tenant"


def test_reports_of_many_go_to_the_shard_of_each_lease_and_verdicts_keep_their_order(mail: Queue) -> None:
    mail.push_many(range(64))
    taken = []
    while some := mail.reserve(16):
        taken += some
    assert len(taken) == 64
    assert len({lease.queue for lease in taken}) == 4
    taken[7].release()
    with pytest.raises(ReportsRefused) as refused:
        mail.commit_many(taken, results=range(64))
    assert [index for index, verdict in enumerate(refused.value.verdicts) if verdict is not True] == [7]
    assert not isinstance(refused.value.verdicts[7], LeaseLost)
    (back,) = mail.reserve(5)
    assert mail.extend_many([back]) == [True]
    assert mail.rollback_many([back], delay=0, error="boom") == [True]
    (back,) = mail.reserve(5)
    assert back.commit()


def test_a_reserve_waits_for_all_shards(mail: Queue, other_client: Client) -> None:
    assert mail.reserve() == []
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(mail.reserve, wait=20)
        ids = other_client.queue("mail").push_many(range(8))
        (lease,) = waiting.result(timeout=20)
    assert lease.id in ids


def key_of_shard(number: int) -> str:
    return next(key for key in map(str, range(99)) if crc32(key.encode()) % 4 == number)


@pytest.fixture
def damaged(client: Client, mail: Queue, raw: redis.Redis) -> Iterator[str]:
    """A shard that had tasks when it was last asked, and answers with errors now."""
    mail.push_many(Item(number, partition=key_of_shard(number % 4)) for number in range(40))
    mail.release_many(mail.reserve(8))
    name = shard_name("mail", 1)
    assert in_shard(client, name)
    settings_key = keys_of(client).queue(name).settings
    kept = raw.dump(settings_key)
    raw.delete(settings_key)
    raw.set(settings_key, "no hash")
    yield name
    raw.restore(settings_key, 0, kept, replace=True)


def pending_of(client: Client, raw: redis.Redis) -> int:
    return sum(raw.zcard(keys_of(client).queue(shard_name("mail", number)).pending) for number in range(4))


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_reserve_returns_what_the_others_handed_out_when_one_shard_answers_with_an_error(
    client: Client, mail: Queue, damaged: str, raw: redis.Redis, how: str
) -> None:
    """Else it would be under leases that nobody holds, and each try would spend an attempt."""

    async def reserve_async(n: int) -> list[Any]:
        async with AsyncClient(client.settings.url, client.settings.prefix) as twin:
            queue = twin.queue("mail")
            with suppress(ServerRefused):
                return list(await queue.reserve(n))
            return []

    def reserve(n: int) -> list[Any]:
        if how == "async":
            return asyncio.run(reserve_async(n))
        with suppress(ServerRefused):
            return list(mail.reserve(n))
        return []

    left = 40 - raw.zcard(keys_of(client).queue(damaged).waiting)
    while left:
        taken = reserve(8)
        assert taken
        assert {shard_of(one.id) for one in taken}.isdisjoint({damaged})
        left -= len(taken)
        assert pending_of(client, raw) == 40 - raw.zcard(keys_of(client).queue(damaged).waiting) - left
    with pytest.raises(ServerRefused):
        mail.reserve(8)
    with pytest.raises(ServerRefused):
        mail.reserve(8, wait=0.1)


def test_the_others_are_read_while_the_node_is_away_that_knows_how_many_they_are(
    client: Client, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail.push_many(Item(number, partition=key_of_shard(number % 4)) for number in range(40))
    broker, routes = broker_of(client), mail._ref.routes
    assert routes is not None
    replies = broker._replies

    def is_away(call: Any) -> bool:
        return any(b"{mail}" in word for word in (*call.words, *call.keys) if isinstance(word, bytes))

    def replies_of_others(calls: Any, *meanwhile: Any) -> list[Any]:
        there = [call for call in calls if not is_away(call)]
        if not there:
            raise ServerUnavailable("no server")
        answers = iter(replies(there, *meanwhile))
        return [ServerUnavailable("no server") if is_away(call) else next(answers) for call in calls]

    monkeypatch.setattr(broker, "_replies", replies_of_others)
    routes._known_until["mail"] = 0.0
    assert {shard_of(one.id) for one in mail.reserve(30)} == {shard_name("mail", number) for number in (1, 2, 3)}
    assert routes._known_until["mail"] > 0.0, "it is not asked again at once"
    with pytest.raises(ServerUnavailable):
        mail.reserve(30)


def test_what_a_cancelled_reserve_of_a_damaged_queue_got_goes_back(
    client: Client, mail: Queue, damaged: str, raw: redis.Redis
) -> None:
    async def use() -> None:
        async with AsyncClient(client.settings.url, client.settings.prefix) as twin:
            queue = twin.queue("mail")
            await queue.release_many(await queue.reserve(8))
            queue._ref.ready[:] = queue._ref.first_shards(4)  # as before the damage
            came, goes_on = asyncio.Event(), asyncio.Event()
            run_each = broker_of(queue).run_each

            async def held_back(calls: Any) -> Any:
                answers = await run_each(calls)
                came.set()
                await goes_on.wait()
                return answers

            broker_of(queue).run_each = held_back  # type: ignore[method-assign]
            taking = asyncio.create_task(queue.reserve(8))
            await came.wait()
            taking.cancel()
            goes_on.set()
            with pytest.raises(asyncio.CancelledError):
                await taking

    asyncio.run(use())
    assert pending_of(client, raw) == 0


def test_a_waiting_reserve_gets_what_comes_into_the_shards_that_answer(
    client: Client, mail: Queue, damaged: str
) -> None:
    while True:
        try:
            mail.commit_many(mail.reserve(8))
        except ServerRefused:
            break
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(mail.reserve, wait=30)
        pushed = client.queue("mail").push(Item("later", partition=key_of_shard(2)))
        (lease,) = waiting.result(timeout=40)
    assert (lease.id, shard_of(lease.id)) == (pushed, shard_name("mail", 2))


def test_a_pop_takes_from_the_shards_that_answer(client: Client, mail: Queue, damaged: str, raw: redis.Redis) -> None:
    left = 40 - raw.zcard(keys_of(client).queue(damaged).waiting)
    while left:
        taken = mail.pop(8)
        assert {shard_of(one.id) for one in taken}.isdisjoint({damaged})
        assert taken
        left -= len(taken)
    with pytest.raises(ServerRefused):
        mail.pop(8)


def test_pages_counts_pause_purge_and_delete_are_of_the_whole_queue(
    client: Client, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = set(mail.push_many(range(100)))
    seen: list[str] = []
    page = mail.tasks("waiting", limit=7)
    while page:
        seen += [record.id for record in page]
        page = mail.tasks("waiting", limit=7, after=page[-1].id)
    assert len(seen) == 100
    assert set(seen) == ids
    by_rank = [one for start in range(0, 100, 9) for one in mail.ids("waiting", limit=9, start=start)]
    assert sorted(by_rank) == sorted(ids)
    assert mail.counts()["waiting"] == mail.totals()["enqueued"] == client.stats()["mail"].waiting == 100
    assert client.queues() == ["mail"]
    mail.pause()
    assert mail.is_paused()
    assert mail.reserve(10) == []
    mail.resume()
    mail.configure(max_attempts=1, history=60)
    mail.rollback_many(mail.reserve(100), error="boom")
    while some := mail.reserve(100):
        mail.rollback_many(some, error="boom")
    assert mail.counts()["dead"] == 100
    assert mail.requeue_dead([record.id for record in mail.tasks("dead", limit=10)]) == 10
    assert mail.requeue_dead(rate=1000) == 90
    purged: list[int] = []
    wait_for(lambda: mail.counts()["scheduled"] == 0)
    taken = mail.reserve(100)
    mail.commit_many(taken)
    assert len(mail.history()) == len(taken)
    assert client.task(mail.replay(taken[0].id)).record().queue == taken[0].queue
    assert mail.purge("waiting", progress=purged.append) == purged[-1]
    for state in ("scheduled", "dead", "done"):
        mail.purge(state)
    mail.commit_many(mail.reserve(100))
    mail.purge("done")
    with pytest.raises(UsageError, match="queue 'mail' has 4 partitions, and its producers"):
        mail.delete(force=True)
    mail.configure(partitions=1)
    mail.push(1)
    monkeypatch.setattr(whole_queue_operations, "PRODUCERS_LEARN_S", 0)
    with pytest.raises(QueueNotEmpty, match="queue 'mail' holds 1 waiting"):
        mail.delete()
    assert mail.delete(force=True)
    assert client.queues() == []


def test_a_queue_is_not_deleted_while_a_producer_may_send_to_its_other_shards(client: Client, mail: Queue) -> None:
    """Items in these would be in no count and reach no worker, as the queue no longer says that they are there."""
    with Client(client.settings.url, client.settings.prefix) as other:
        other.queue("mail").push(0)
        mail.configure(partitions=4)  # no change of the number
        mail.commit_many(mail.reserve(1))
        mail.configure(partitions=1)
        with pytest.raises(UsageError, match=r"had other partitions a minute ago, .*: delete it 6\d s later; nothing"):
            mail.delete(force=True)
        other.queue("mail").push_many([Item(n, partition=f"k{n}") for n in range(12)])
    assert mail.counts()["waiting"] == 12
    taken = [lease for _ in range(4) for lease in mail.reserve(12)]
    assert len({lease.queue for lease in taken}) > 1, "a producer that had not heard of it sent to them"
    assert len(taken) == 12


@pytest.mark.parametrize("chosen", [False, True], ids=["all", "chosen"])
def test_the_dead_of_all_shards_come_back_at_one_rate(mail: Queue, clock: Any, chosen: bool) -> None:
    clock.set()
    mail.configure(max_attempts=1)
    mail.push_many([*(Item(n, partition="busy") for n in range(36)), *range(4)])
    while held := mail.reserve(100):
        mail.rollback_many(held)
    ids = mail.ids("dead", limit=100)
    assert mail.requeue_dead(ids if chosen else None, rate=1) == 40
    for second in range(40):
        clock.advance(0 if second == 0 else 1000)
        assert abs(mail.counts()["scheduled"] - (39 - second)) <= 4, "a shard is as far as the others"
    clock.advance(4000)
    assert mail.counts()["scheduled"] == 0


def test_a_reserve_of_more_than_one_script_hands_out_is_refused(mail: Queue) -> None:
    with pytest.raises(InvalidOption, match=r"n=10001: give a whole number from 1 to 10000"):
        mail.reserve(10_001)


def test_dead_items_with_ids_of_the_users_own_are_looked_for_together(
    mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in two round trips for each id."""
    ids = [f"order-{number}" for number in range(60)]
    mail.push_many([Item(1, id=one, max_attempts=1) for one in ids])
    while held := mail.reserve(60):
        mail.rollback_many(held, delay=0)
    monkeypatch.setattr(whole_queue_operations, "_LOOKED_FOR_AT_ONCE", 100)  # pairs with 4 shards: 25 ids at a time
    asked = []
    run_many = broker_of(mail).run_many
    monkeypatch.setattr(broker_of(mail), "run_many", lambda calls: asked.append(len(calls)) or run_many(calls))

    assert mail.requeue_dead([*ids, "nowhere"]) == 60
    assert [count for count in asked if count > 1] == [100, 100, 44]
    assert len(asked) < 20
    assert mail.counts()["waiting"] == 60


@pytest.mark.parametrize("wrong", ["result", "lease"])
def test_a_batch_of_leases_with_a_wrong_one_is_refused_before_any_is_committed(mail: Queue, wrong: str) -> None:
    mail.push_many(range(64))
    held: list[Any] = mail.reserve(64)
    assert len({lease.queue for lease in held}) == 4
    results = [None] * 63 + [object()] if wrong == "result" else None
    given = held if wrong == "result" else [*held, 5]
    with pytest.raises(UsageError, match=r"cannot be stored as JSON|5 is no lease"):
        mail.commit_many(given, results)
    assert mail.counts()["pending"] == 64
    assert mail.release_many(held) == [True] * 64


def test_the_reports_on_a_batch_of_all_shards_take_the_round_trips_of_one(mail: Queue, trips: list[int]) -> None:
    mail.push_many(range(64))
    held = mail.reserve(64)
    trips.clear()
    mail.extend_many(held)
    assert len(trips) == 1
    mail.rollback_many(held)
    assert len(trips) == 3, "the back-off of the queue is read first"


def test_limits_changed_by_hand_are_known_as_such_and_outlive_their_declaration(client: Client, mail: Queue) -> None:
    keys = keys_of(client).queue("mail")

    def declare(**settings: Any) -> None:
        fields = write_settings(settings, "mail")
        broker_of(client).run(queues.declare(keys, fields, place="app:1", ttl_ms=60_000))

    declare(max_inflight=8, max_attempts=3)
    mail.configure(max_inflight=4, rate=RateLimit(5, per=60))
    assert {name: bool(one.changed_by) for name, one in mail.origins().items()} == {
        "partitions": True, "max_inflight": True, "rate": True, "max_attempts": False,
    }  # fmt: skip
    assert mail.origins()["max_inflight"].declared == 8
    mail.configure(max_inflight=8)
    assert not mail.origins()["max_inflight"].changed_by, "as it is declared again"
    mail.push_many(range(64))
    assert len(mail.reserve(9)) > 2
    with pytest.raises(InvalidOption, match="more leases are held"):
        mail.configure(max_inflight=1)
    assert not mail.origins()["max_inflight"].changed_by, "it was refused"
    mail.configure(max_inflight=9)
    declare(max_attempts=3)
    assert mail.settings().max_inflight == 9


def test_the_lowest_rate_is_one_for_a_queue_with_shards_too(mail: Queue) -> None:
    mail.configure(max_attempts=1)
    mail.push_many(range(8))
    while held := mail.reserve(100):
        mail.rollback_many(held)
    assert mail.requeue_dead(rate=0.001) == 8


def test_a_count_that_shrinks_while_items_wait_is_refused_and_nothing_is_lost(client: Client, mail: Queue) -> None:
    ids = mail.push_many(range(64))
    with pytest.raises(InvalidOption, match=r"partitions=2: shard 'mail@2' would go, and holds 16 tasks .* changed"):
        mail.configure(partitions=2)
    assert mail.settings().partitions == 4
    assert mail.counts()["waiting"] == 64
    stale = Client(client.settings.url, client.settings.prefix)
    stale.queue("mail").push_many(range(64))
    while some := mail.reserve(64):
        mail.commit_many(some)
    mail.configure(partitions=2)
    assert set(map(shard_of, mail.push_many(range(64)))) == {"mail", "mail@1"}
    late = stale.queue("mail").push_many(range(64))  # for a minute it knows of four, of which two have no backlog
    assert not set(map(shard_of, late)).isdisjoint({"mail@2", "mail@3"})
    assert mail.counts()["waiting"] == 128
    got = 0
    while some := mail.reserve(64):
        got += sum(mail.commit_many(some))
    assert got == 128
    assert ids
    stale.close()


@pytest.mark.parametrize(("name", "other"), [("limited", "limited"), ("shop/clean", "shop/raw")])
def test_settings_that_cannot_be_spread_are_refused_whatever_comes_first(
    client: Client, mail: Queue, name: str, other: str
) -> None:
    with pytest.raises(InvalidOption, match=r"max_size=2 with partitions=4 on queue 'mail'"):
        mail.configure(max_size=2)
    limited = client.queue(name)
    limited.configure(max_size=2)
    with pytest.raises(InvalidOption, match=rf"max_size=2 with partitions=3 on queue '{name}'"):
        client.queue(other).configure(partitions=3)
    assert client.queue(other).settings().partitions == 1
    limited.configure(partitions=3, max_size=None)
    with pytest.raises(InvalidOption, match="from 1 to 1000"):
        mail.configure(partitions=0)
    with pytest.raises(InvalidName, match="is a shard: push to 'mail'"):
        client.queue("mail@2").push(1)
    with pytest.raises(InvalidOption, match="is a shard"):
        client.queue("mail@2").configure(partitions=3)


def all_of(queue: Queue) -> list[Lease]:
    taken: list[Lease] = []
    while some := queue.reserve(7):
        taken += some
    return taken


def test_max_inflight_is_divided_and_never_exceeded_also_when_shards_are_added(client: Client, mail: Queue) -> None:
    mail.configure(max_inflight=10)
    assert mail.settings().max_inflight == 10
    mail.push_many([Item(n, partition=f"k{n}") for n in range(100)])
    held = all_of(mail)
    assert Counter(lease.queue for lease in held) == {"mail": 3, "mail@1": 3, "mail@2": 2, "mail@3": 2}
    mail.configure(partitions=8)
    assert all_of(mail) == []
    mail.commit_many(held[:3])
    assert len(all_of(mail)) == 3
    with pytest.raises(InvalidOption, match=r"max_inflight=9 on queue 'mail': more leases .* nothing was changed"):
        mail.configure(max_inflight=9)
    assert mail.settings().max_inflight == 10
    assert client.queue("mail@3").settings().max_inflight == 10
    mail.commit_many(mail.reserve(9))
    mail.configure(max_inflight=None)
    assert len(all_of(mail)) > 80


def test_a_limit_may_come_before_the_partitions_and_be_lower_than_their_number(client: Client) -> None:
    queue = client.queue("limited")
    queue.configure(max_inflight=8)
    queue.push_many(range(100))
    held = queue.reserve(5)
    queue.configure(partitions=4)
    held += all_of(queue)
    assert len(held) == 8
    queue.commit_many(held[5:])
    with pytest.raises(InvalidOption, match="max_inflight=4 on queue 'limited': more leases are held"):
        queue.configure(max_inflight=4)
    queue.commit_many(held[3:5])
    queue.configure(max_inflight=4, partitions=16)
    [queue.push(n) for n in range(160)]
    queue.commit_many(held[:3] + all_of(queue))
    queue.configure(max_inflight=3)
    assert len(all_of(queue)) == 3


def slices_of(client: Client, queue: str, count: int) -> list[bytes | None]:
    keys = keys_of(client)
    names = [keys.queue(shard_name(queue, number)).settings for number in range(count)]
    return [broker_of(client).run(command("HGET", name, "slice_inflight", read=lambda raw: raw)) for name in names]


def test_slices_go_with_the_limit_and_are_even_at_first(client: Client, mail: Queue) -> None:
    mail.configure(max_inflight=7)
    assert slices_of(client, "mail", 5) == [b"2", b"2", b"2", b"1", None]
    mail.configure(partitions=5)
    assert slices_of(client, "mail", 5) == [b"2", b"2", b"2", b"1", b"0"]
    mail.configure(max_inflight=14)
    assert slices_of(client, "mail", 5) == [b"3", b"3", b"3", b"3", b"2"]
    mail.configure(max_inflight=2)
    assert slices_of(client, "mail", 5) == [b"1", b"1", b"0", b"0", b"0"]
    mail.configure(max_inflight=None)
    assert slices_of(client, "mail", 5) == [None] * 5


def test_a_reserve_gets_all_of_the_limit_for_the_only_busy_key(way: Any) -> None:
    mail = way.queue("mail")
    mail.configure(partitions=8, max_inflight=16)
    mail.push_many([Item(n, partition="busy") for n in range(40)])
    held = mail.reserve(20)
    while len(held) < 16:
        some = mail.reserve(20, wait=30)
        assert some
        held += some
    assert mail.reserve(20) == []
    mail.push_many([Item(n, partition=f"other{n}") for n in range(40)])
    mail.commit_many(held)
    seen: set[str] = set()
    while len(seen) < 8:
        some = mail.reserve(16, wait=30)
        assert some, "every shard gets back what it needs"
        seen |= {lease.queue for lease in some}
        mail.commit_many(some)


def test_the_only_busy_key_gets_all_tokens_of_the_queue_and_none_twice(client: Client) -> None:
    mail = client.queue("mail")
    mail.configure(partitions=8, rate=RateLimit(16, per=3600))
    mail.push_many([Item(n, partition="busy") for n in range(40)])
    held = mail.reserve(20)
    assert len(held) < 16
    while len(held) < 16:
        some = mail.reserve(20, wait=30)
        assert some
        held += some
    assert mail.reserve(20) == []
    assert mail.pop(5) == []


@pytest.mark.parametrize("slice_", [0, 9])
def test_slices_that_a_server_lost_are_there_again_after_three_looks(client: Client, mail: Queue, slice_: int) -> None:
    mail.configure(max_inflight=8)
    keys, broker = keys_of(client).queue("mail@1"), broker_of(client)
    broker.run(command("HSET", keys.settings, "slice_inflight", slice_, read=int))
    balancer = SliceBalancer(mail._ref)
    for _ in range(2):
        assert not run_operation(broker, balancer.balancing(4))
        broker.run(command("UNLINK", keys_of(client).queue("mail").balanced, read=int))
    assert slices_of(client, "mail", 4)[1] == b"%d" % slice_, "a look is not one step and may be wrong"
    assert run_operation(broker, balancer.balancing(4))
    assert sum(int(one or 0) for one in slices_of(client, "mail", 4)) == 8


def test_the_rate_is_divided_and_a_new_shard_begins_without_tokens(client: Client, mail: Queue) -> None:
    mail.configure(rate=RateLimit(8, per=3600))
    mail.push_many([Item(n, partition=f"k{n}") for n in range(100)])
    assert len(all_of(mail)) == 8
    mail.configure(partitions=8)
    [mail.push(n) for n in range(64)]
    assert all_of(mail) == []
    mail.configure(rate=None)
    assert len(all_of(mail)) > 8


@settings(max_examples=examples(15))
@given(steps=st.lists(st.tuples(st.sampled_from(["reserve", "commit", "limit", "grow"]), st.integers(1, 12))))
def test_no_order_of_steps_exceeds_the_limit(client: Client, raw: redis.Redis, steps: list[tuple[str, int]]) -> None:
    raw.flushdb()
    client._routes.forget("mail")
    queue = client.queue("mail")
    queue.configure(partitions=3, max_inflight=20)
    queue.push_many([Item(n, partition=f"k{n}") for n in range(60)])
    bound, held = 20, list[Lease]()
    for step, number in steps:
        before = queue.counts()["pending"]
        with suppress(InvalidOption):
            if step == "reserve":
                held += queue.reserve(number)
            elif step == "commit":
                queue.commit_many(held[:number])
                del held[:number]
            elif step == "limit":
                queue.configure(max_inflight=12 + number)
                bound = 12 + number
            else:
                queue.configure(partitions=number)
        assert queue.counts()["pending"] <= max(bound, before)


def test_new_shards_have_the_settings_of_their_queue(client: Client, mail: Queue) -> None:
    mail.configure(max_attempts=3, fair=True)
    mail.pause()
    mail.configure(partitions=6)
    assert client.queue("mail@5").settings().max_attempts == 3
    assert client.queue("mail@5").settings().fair
    assert client.queue("mail@5").is_paused()
    mail.resume()
    assert not client.queue("mail@5").is_paused()
    mail.configure(fair=None)
    assert not client.queue("mail@5").settings().fair


def test_the_least_backlog_comes_first_and_a_node_counts_once(client: Client) -> None:
    keys = keys_of(client)
    nodes = {b"mail": "a", b"mail@1": "a", b"mail@2": "b", b"mail@3": "c"}

    def node_of(key: bytes) -> object:
        return nodes[key.split(b"{")[1].split(b"}")[0]]

    def place(router: Router, count: int) -> Counter[str]:
        sent = [Task(id=new_id("mail"), queue="mail", payload=b"") for _ in range(count)]
        for task in sent:
            router.place([task])
        return Counter(task.queue for task in sent)

    router = Router(keys, "mail", ShardCounts(4, 4, 4), node_of)
    placed = place(router, 600)
    assert abs(placed["mail"] + placed["mail@1"] - placed["mail@2"]) <= 2
    assert abs(placed["mail@2"] - placed["mail@3"]) <= 2
    router._take([0, 0, 1000, float("inf")])
    assert place(router, 200).keys() == {"mail", "mail@1"}


@pytest.mark.parametrize("step", [1, 2])
def test_threads_that_place_tasks_at_the_same_time_lose_no_shard(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """One thread is held up between any two steps of placing a task while another places some."""
    nodes: dict[bytes, int] = {}
    router = Router(Keys("x"), "big", ShardCounts(8, 8, 8), lambda key: nodes.setdefault(key, len(nodes) // 4))
    calls: list[int] = []

    def place(count: int) -> None:
        for _ in range(count):
            router.place_one(Task(id=new_id("big"), queue="big", payload=b""))

    def hold_up() -> float:
        calls.append(1)
        if len(calls) == step:
            other = threading.Thread(target=place, args=(21,))
            others.append(other)
            other.start()
            other.join(0.3)  # it ends at once, or waits for this one
        return 0.5

    others: list[threading.Thread] = []
    monkeypatch.setattr(random, "random", hold_up)
    place(1)
    for other in others:
        other.join()
    assert len({id(shards) for _, _, shards in router._nodes}) == 2
    assert sorted(number for _, _, shards in router._nodes for _, _, number in shards) == list(range(8))


def mails(count: int) -> list[Task]:
    return [Task(id=new_id("mail"), queue="mail", payload=b"") for _ in range(count)]


def set_clock(monkeypatch: pytest.MonkeyPatch, now: Callable[[], float]) -> None:
    """Of what a client knows of its queues, and of how their shards are filled."""
    for module in (routing, router_module):
        monkeypatch.setattr(module, "monotonic", now)


@pytest.fixture
def full_router(monkeypatch: pytest.MonkeyPatch) -> Router:
    """A router that knows of no room in any shard, on a clock that a test sets by `set_clock`."""
    set_clock(monkeypatch, lambda: 1000.0)
    router = Router(Keys("x"), "mail", ShardCounts(4, 4, 4, max_size=40), lambda _: None)
    router.place(mails(40))
    assert router.is_due
    return router


@pytest.mark.parametrize(
    "send",
    [
        lambda client: client.queue("mail").push(1),
        lambda client: client.enqueue(mails(1)[0]),
        lambda client: client.enqueue_many(mails(2)),
    ],
    ids=["push", "enqueue", "enqueue_many"],
)
def test_the_task_behind_a_refused_one_goes_where_there_is_room(
    client: Client, mail: Queue, other_client: Client, send: Any
) -> None:
    """A task of a job was refused again and again while other partitions had room: what the client knew of the full
    one stayed."""
    mail.configure(max_size=40)
    other = other_client.queue("mail")
    other.push_many([Item(n, partition=key_of_shard(shard)) for shard in (1, 2, 3) for n in range(5)])
    mail.push("measured: the first one has most room")
    for _ in range(9):
        other.push("x", partition=key_of_shard(0))

    with pytest.raises(QueueFull):
        send(client)
    send(client)


@pytest.mark.parametrize(("before", "after", "held"), [(1, 4, 40), (4, 16, 40), (16, 4, 0), (4, 1, 0)])
def test_a_producer_that_finds_a_shard_full_learns_of_other_partitions(
    client: Client, other_client: Client, monkeypatch: pytest.MonkeyPatch, before: int, after: int, held: int
) -> None:
    """It was refused for up to a minute: it knew larger parts of `max_size`, or shards that have none any more."""
    mail, producer, passed_s = client.queue("mail"), other_client.queue("mail"), 0.0
    mail.configure(partitions=before, max_size=160)
    set_clock(monkeypatch, lambda: monotonic() + passed_s)
    producer.push_many(range(held or 2 * before))
    if not held:
        mail.purge("waiting")
    mail.configure(partitions=after)
    passed_s = 2.0

    refused = 0
    for number in range(20):
        try:
            producer.push(number)
        except QueueFull:
            refused += 1
    assert refused <= 1
    assert mail.counts()["waiting"] == held + 20 - refused


@pytest.mark.parametrize(
    "send",
    [
        lambda client: client.queue("mail").push(1, wait=10),
        lambda client: client.enqueue(mails(1)[0], wait=10).id,
    ],
    ids=["push", "enqueue"],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("buffer_tasks", [0, 10])
def test_a_task_that_waits_for_room_goes_where_there_is_some(
    client: Client, mail: Queue, clock: Any, on_loop: Any, kind: Any, buffer_tasks: int, send: Any
) -> None:
    """It waited for one shard, which tasks of a busy key or later ones may fill for long, while others had room."""
    mail.configure(max_size=8)
    for shard in range(4):
        mail.push_many([Item(n, partition=key_of_shard(shard)) for n in range(2)])
    names = [shard_name("mail", shard) for shard in range(4)]
    settings_of = [keys_of(client).queue(name).settings for name in names]
    asked = [command("HGET", key, "capacity_wanted", read=lambda found: found is not None) for key in settings_of]
    awaited: list[bool] = []

    def is_awaited() -> bool:
        awaited[:] = broker_of(client).run_many(asked)
        return any(awaited)

    made = kind(client.settings.url, client.settings.prefix, now_ms=clock, buffer_tasks=buffer_tasks)
    with made if kind is Client else Awaited(made, on_loop) as way, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send, way)
        wait_for(is_awaited)
        other = names[awaited.index(False, 1)]
        client.queue(other).purge("waiting")
        assert shard_of(sending.result(30)) == other


def test_a_task_that_finds_no_room_in_time_is_refused(mail: Queue) -> None:
    mail.configure(max_size=4)
    for shard in range(4):
        mail.push(1, partition=key_of_shard(shard))
    began = monotonic()
    with pytest.raises(QueueFull):
        mail.push(2, wait=0.3)
    assert 0.3 <= monotonic() - began < 5


def test_a_full_queue_is_asked_for_its_partitions_once_a_second(
    client: Client, monkeypatch: pytest.MonkeyPatch, trips: list[int]
) -> None:
    mail, passed_s = client.queue("mail"), 0.0
    set_clock(monkeypatch, lambda: 1000.0 + passed_s)
    mail.configure(max_size=1)
    mail.push(1)

    def refused() -> list[int]:
        trips.clear()
        with pytest.raises(QueueFull):
            mail.push(2)
        return trips.copy()

    refused()
    assert [len(refused()) for _ in range(3)] == [1, 1, 1]
    passed_s = 2.0
    assert [len(refused()) for _ in range(3)] == [1, 2, 1]


def test_a_measure_that_takes_long_is_the_only_one(full_router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one forgot what was placed since the first began, and a shard got more than its part of `max_size`."""
    meanwhile, later = mails(20), mails(20)
    measure = full_router.measuring()
    next(measure)
    set_clock(monkeypatch, lambda: 5000.0)
    for task in meanwhile:
        assert not full_router.is_due
        full_router.place_one(task)
    with pytest.raises(StopIteration):
        measure.send([0] * 8)
    for task in later:
        full_router.place_one(task)

    assert set(Counter(task.queue for task in meanwhile + later).values()) == {10}


def test_of_two_threads_that_find_a_measure_due_one_measures(full_router: Router) -> None:
    """The second one forgot what the first had placed, and an enqueue with a wait could find its shard full."""
    first, second = full_router.measuring(), full_router.measuring()  # both have seen `is_due`
    next(first)

    assert list(second) == []


def test_a_measure_that_is_broken_off_keeps_no_later_one_away(
    full_router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = full_router.measuring()
    next(measure)
    assert not full_router.is_due
    measure.close()
    set_clock(monkeypatch, lambda: 1001.0)

    assert full_router.is_due


def test_a_forked_child_places_tasks_though_a_thread_of_its_parent_was_placing_one() -> None:
    router = Router(Keys("x"), "big", ShardCounts(8, 8, 8), lambda _: None)
    with router._counting:
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)  # ends a child that waits for the lock
            router.place_one(Task(id=new_id("big"), queue="big", payload=b""))
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_asyncio_twin_does_the_same(client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(client.settings.url, client.settings.prefix) as twin:
            queue = twin.queue("mail")
            await queue.configure(partitions=4)
            ids = await queue.push_many(range(64))
            assert len(set(map(shard_of, ids))) == 4
            taken = await queue.reserve(10, wait=1)
            assert all(await queue.commit_many(taken))
            assert (await queue.counts())["waiting"] == 64 - len(taken)
            assert await queue.purge("waiting") == 64 - len(taken)
            assert await queue.reserve(wait=0.05) == []
            assert await twin.queues() == ["mail"]

    asyncio.run(use())


def test_a_reserve_of_one_passes_over_shards_whose_keys_are_at_their_limits(client: Client, mail: Queue) -> None:
    """It asked the first shard that has tasks alone, and returned nothing."""
    mail.configure(max_inflight_per_partition=1)
    mail.push_many(Item(number, partition=key_of_shard(number % 4)) for number in range(8))
    taken = {shard_of(one.id): one for one in mail.reserve(4)}
    assert len(taken) == 4
    taken[shard_name("mail", 3)].commit()

    (last,) = mail.reserve(1)
    assert shard_of(last.id) == shard_name("mail", 3)
    assert mail.reserve(1) == []


def test_a_page_that_tasks_left_meanwhile_goes_on_in_its_shard(
    client: Client, mail: Queue, other_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was filled up from the next shard, and what was left of the first one was in no page."""
    mail.push_many(range(400))
    broker = broker_of(client)
    run_many, other = broker.run_many, other_client.queue("mail")
    trips: list[int] = []

    def meanwhile(calls: Any, *more: Any, **options: Any) -> Any:
        trips.append(len(calls))
        if len(trips) == 2:
            other.reserve(8)
        return run_many(calls, *more, **options)

    monkeypatch.setattr(broker, "run_many", meanwhile)
    seen: set[str] = set()
    page = mail.tasks("waiting", limit=20)
    assert len(page) < 20
    while page:
        seen |= {record.id for record in page}
        page = mail.tasks("waiting", limit=20, after=page[-1].id)

    assert len(seen) == mail.counts()["waiting"] == 392
