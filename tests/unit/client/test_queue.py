"""Queues as queues on a real server, for threads and for asyncio alike."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from jobrunner.client.item import Item
from jobrunner.client.operations import lease as lease_operations
from jobrunner.clock import from_ms, monotonic
from jobrunner.errors import (
    ClientClosed,
    InvalidName,
    InvalidOption,
    NotReserved,
    PayloadTooLarge,
    TaskGone,
    UnknownOption,
)
from jobrunner.retry import Backoff


@pytest.fixture
def queue(way: Any) -> Any:
    return way.queue("mail")


def states(**counted: int) -> dict[str, int]:
    return {"waiting": 0, "scheduled": 0, "pending": 0, "dead": 0, "done": 0} | counted


def counts(queue: Any) -> dict[str, int]:
    return {state: queue.counts()[state] for state in states()}


@pytest.mark.parametrize("payload", [b"\x00\xff", "text", {"a": [1, None]}, 0, "", None, False, [], b""])
def test_what_is_pushed_is_reserved_as_it_was(queue: Any, payload: Any) -> None:
    pushed = queue.push(payload, headers={"trace": "7"}, keepalive=9, priority=2)
    (lease,) = queue.reserve()

    assert (lease.id, lease.queue, lease.headers, lease.attempts, lease.keepalive_ms) == (
        pushed,
        "mail",
        {"trace": "7"},
        1,
        9000,
    )
    assert lease.payload == payload
    assert type(lease.payload) is type(payload)
    assert lease.commit() is True
    assert counts(queue) == states()


def test_items_are_pushed_in_order_or_not_at_all(way: Any, queue: Any) -> None:
    ids = queue.push_many(["a", Item("b", id="mine"), "c"])

    assert queue.ids("waiting") == ids
    assert ids[1] == "mine"
    assert [item.payload for item in queue.pop(3)] == ["a", "b", "c"]
    with pytest.raises(PayloadTooLarge):
        queue.push_many(["small", b"x" * (way.settings.payload_limit + 1)])
    assert queue.push_many([]) == []
    assert counts(queue) == states()
    assert way.queues() == ["mail"]


def test_an_id_that_is_there_keeps_its_item(queue: Any) -> None:
    assert queue.push("first", id="one") == queue.push("second", id="one") == "one"
    assert [lease.payload for lease in queue.reserve(2)] == ["first"]


def test_options_nobody_knows_are_refused(queue: Any) -> None:
    with pytest.raises(UnknownOption, match="did you mean 'priority'"):
        queue.push(1, prioritty=2)
    with pytest.raises(UnknownOption, match="did you mean 'keepalive'"):
        queue.configure(keepalife=2)
    for wrong in ({"n": 0}, {"n": 10_001}, {"keepalive": 0}, {"wait": -1}):
        with pytest.raises(InvalidOption):
            queue.reserve(**wrong)


def test_a_keepalive_lasts_up_to_a_year(queue: Any, clock: Any) -> None:
    clock.set()
    year = timedelta(days=365)
    for set_it in (
        lambda length: queue.push("x", keepalive=length),
        lambda length: queue.configure(keepalive=length),
        lambda length: queue.reserve(keepalive=length),
    ):
        with pytest.raises(InvalidOption, match=r"keepalive is .* from 0 to 31536000$"):
            set_it(year + timedelta(seconds=1))
    queue.push("x", keepalive=year)
    (lease,) = queue.reserve()
    assert lease.deadline == from_ms(clock.ms) + year


def test_a_queue_that_was_never_used_is_empty(way: Any, queue: Any) -> None:
    assert (queue.reserve(), queue.pop(), queue.tasks("waiting"), queue.totals()) == ([], [], [], {})
    assert (queue.is_paused(), queue.delete("x"), queue.requeue_dead(), queue.purge("dead")) == (False, False, 0, 0)
    assert way.queues() == []
    with pytest.raises(InvalidName):
        way.queue("a name")


def test_a_waiting_item_is_not_deleted_and_the_refusal_says_what_removes_it(way: Any, queue: Any) -> None:
    queue.push("a", id="one", in_=60)
    with pytest.raises(NotReserved) as refused:
        queue.delete("one")
    remedy = f"client.task('one', queue={queue.name!r}).cancel()"
    assert remedy in str(refused.value)
    assert (way.task("one", queue=queue.name).cancel(), queue.counts()["scheduled"]) == (True, 0)


def test_a_paused_queue_hands_nothing_out(queue: Any) -> None:
    queue.push("a")
    queue.pause()
    assert (queue.is_paused(), queue.reserve(), queue.pop()) == (True, [], [])
    queue.resume()
    assert (queue.is_paused(), len(queue.reserve())) == (False, 1)


def test_settings_are_changed_by_name(queue: Any) -> None:
    queue.configure(keepalive=timedelta(minutes=1), backoff=Backoff(base=5, jitter=0), max_attempts=2)
    queue.configure(max_attempts=None)

    found = queue.settings()
    assert (found.keepalive, found.backoff.base, found.max_attempts) == (60, 5, 5)


def test_a_lease_lasts_as_its_item_says_else_the_call_else_the_queue(queue: Any, clock: Any) -> None:
    now = clock.set()
    queue.push_many([Item("own", keepalive=1), "call's"])
    own, given = queue.reserve(2, keepalive=2)
    queue.push("queue's")
    (usual,) = queue.reserve()

    assert [one.deadline for one in (own, given, usual)] == [from_ms(now + ms) for ms in (1000, 2000, 30_000)]
    clock.advance(500)
    assert own.extend()
    assert own.deadline == from_ms(now + 1500)


def test_a_failure_comes_back_after_the_backoff_of_the_queue(queue: Any, clock: Any) -> None:
    clock.set()
    queue.configure(backoff=Backoff(base=10, factor=3, jitter=0), max_attempts=3)
    task_id = queue.push("a")
    for seconds in (10, 30):
        assert queue.reserve()[0].rollback(error="boom")
        clock.advance(seconds * 1000 - 1)
        assert queue.reserve() == []
        clock.advance(1)
    assert queue.reserve()[0].rollback(delay=0, error="bang\nand more")

    assert counts(queue) == states(dead=1)
    (record,) = queue.tasks()
    assert (record.id, record.error, record.retry_count) == (task_id, "bang\nand more", 3)


def test_a_released_item_has_its_place_and_its_attempt_back(queue: Any) -> None:
    first, second = queue.push_many(["a", "b"])
    assert queue.reserve()[0].release()
    assert [(lease.id, lease.attempts) for lease in queue.reserve(2)] == [(first, 1), (second, 1)]


def test_an_item_moves_within_its_pipeline_only(way: Any) -> None:
    raw, clean = way.queue("orders/raw"), way.queue("orders/clean")
    raw.push({"n": 1}, headers={"a": "1"})
    assert raw.reserve()[0].move("clean", payload={"n": 2}, headers={"b": "2"})
    (lease,) = clean.reserve()

    assert (lease.payload, lease.headers) == ({"n": 2}, {"a": "1", "b": "2"})
    with pytest.raises(ValueError, match="not of pipeline 'orders'"):
        lease.move("others/raw")


def test_delete_acknowledges_what_is_reserved(queue: Any) -> None:
    task_id = queue.push("a")
    with pytest.raises(NotReserved):
        queue.delete(task_id)
    queue.reserve()
    assert (queue.delete(task_id), queue.delete(task_id)) == (True, False)


def test_dead_items_are_put_back_or_purged(queue: Any) -> None:
    ids = queue.push_many(range(5))
    queue.configure(max_attempts=1)
    queue.rollback_many(queue.reserve(5))
    assert counts(queue) == states(dead=5)

    assert queue.requeue_dead(ids[:2]) == 2
    assert queue.purge("dead") == 3
    assert queue.ids("waiting") == ids[:2]
    assert queue.totals()["purged"] == 3
    with pytest.raises(InvalidOption, match="choose one of waiting"):
        queue.purge("pending")


def test_all_dead_items_are_put_back_when_none_is_named(queue: Any) -> None:
    queue.push_many(range(1100))
    queue.configure(max_attempts=1)
    while leases := queue.reserve(1000):
        queue.rollback_many(leases, delay=0)
    assert queue.requeue_dead() == 1100
    assert counts(queue) == states(waiting=1100)


def test_a_page_begins_behind_the_last_id_of_the_page_before(queue: Any, trips: list[int]) -> None:
    ids = queue.push_many(range(25))
    found: list[str] = []
    sizes = []
    while page := queue.tasks("waiting", limit=10, after=found[-1] if found else None):
        found += [record.id for record in page]
        sizes.append(len(page))

    assert (found, sizes) == (ids, [10, 10, 5])
    assert trips[2:] == [2, 10, 2, 10, 2, 5, 2], "two round trips for each page, one to see the end"


def test_a_page_leaves_out_what_left_and_goes_on_behind_it(queue: Any, raw: Any, mail: Any) -> None:
    ids = queue.push_many(range(6))
    for gone in ids[:3]:
        raw.delete(mail.task(gone))

    assert [record.id for record in queue.tasks("waiting", limit=4)] == [ids[3]]
    assert [record.id for record in queue.tasks("waiting", limit=2)] == [ids[3]], "an empty page is the end only"
    assert queue.tasks("waiting", after=ids[-1]) == []


def test_a_page_behind_an_item_that_left_is_refused(queue: Any) -> None:
    first, _ = queue.push_many(list("ab"))
    queue.reserve()
    with pytest.raises(TaskGone, match=f"{first} is not waiting any more"):
        queue.tasks("waiting", after=first)
    assert [record.id for record in queue.tasks("pending")] == [first]
    for wrong in ({"state": "nowhere"}, {"limit": 0}, {"limit": 1001}):
        with pytest.raises(InvalidOption):
            queue.tasks(**wrong)


def test_a_waiting_reserve_gets_what_comes(queue: Any, client: Any, raw: Any, wait_until: Any) -> None:
    began = monotonic()
    pushing = threading.Thread(target=push_when_someone_waits, args=(client, raw, wait_until))
    pushing.start()
    (lease,) = queue.reserve(3, wait=20)
    pushing.join(30)

    assert lease.payload == "late"
    assert monotonic() - began < 10
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 0)


def push_when_someone_waits(client: Any, raw: Any, wait_until: Callable[..., Any]) -> None:
    wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
    client.queue("mail").push("late")


def test_a_waiting_reserve_wakes_for_what_is_due(queue: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_operations, "_RECHECK_S", 60.0)
    queue.push("soon", in_=0.1)
    assert [lease.payload for lease in queue.reserve(wait=40)] == ["soon"]


def test_a_waiting_reserve_gives_up_and_asks_seldom(queue: Any, trips: list[int]) -> None:
    began = monotonic()
    assert queue.reserve(wait=0.3) == []
    assert 0.3 <= monotonic() - began < 30
    assert len(trips) <= 3


def test_a_waiting_reserve_finds_what_no_hint_told_of(
    way: Any, raw: Any, keys: Any, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_operations, "_RECHECK_S", 0.05)
    way.queue("p/other").push("silent")

    def bring() -> None:
        wait_until(lambda: raw.info("clients")["blocked_clients"] == 1)
        raw.rename(keys.queue("p/other").waiting, keys.queue("p/mail").waiting)

    bringing = threading.Thread(target=bring)
    bringing.start()
    assert [lease.payload for lease in way.queue("p/mail").reserve(wait=20)] == ["silent"]
    bringing.join(30)


def test_a_closed_client_refuses_every_operation(way: Any, queue: Any) -> None:
    queue.push("a")
    (lease,) = queue.reserve()
    way.close()
    refused: list[Callable[[], Any]] = [
        lambda: queue.push("b"),
        lambda: queue.reserve(wait=5),
        lambda: queue.counts(),
        lambda: queue.settings(),
        lambda: queue.commit_many([lease]),
        lambda: queue.tasks("pending"),
        lease.commit,
        way.stats,
        way.workers,
        way.periodics,
    ]
    for operation in refused:
        with pytest.raises(ClientClosed):
            operation()


def test_both_clients_read_the_same(way: Any, client: Any) -> None:
    way.queue("mail").push("a")
    way.queue("sums").push("b")

    assert way.stats() == client.stats()
    assert {name: found.waiting for name, found in way.stats().items()} == {"mail": 1, "sums": 1}
    assert (way.workers(), way.periodics()) == ([], [])


def test_who_wants_more_than_a_slice_of_overdue_tasks_gets_them_in_their_order(queue: Any, clock: Any) -> None:
    clock.set()
    queue.push_many([Item(n, in_=1) for n in range(700)])
    clock.advance(1_000)
    assert [item.payload for item in queue.reserve(300)] == list(range(300))
    assert [item.payload for item in queue.pop(600)] == list(range(300, 700))


@pytest.mark.parametrize("take", ["reserve", "pop"])
@pytest.mark.parametrize("settings", [{}, {"fair": True}, {"partitions": 2}])
def test_an_item_is_found_behind_any_number_that_expired(
    queue: Any, clock: Any, take: str, settings: dict[str, Any]
) -> None:
    """A loop that ends when nothing is handed out left it behind."""
    clock.set()
    queue.configure(**settings)
    keys = [None] * 1600 if "fair" not in settings else [f"tenant-{n}" for n in range(1600)]
    queue.push_many([Item(n, expires_in=1, partition=key) for n, key in enumerate(keys)])
    queue.push_many([Item("first", partition="a"), Item("second", partition="b")])
    clock.advance(2_000)

    found = [*getattr(queue, take)(1), *getattr(queue, take)(1)]

    assert {item.payload for item in found} == {"first", "second"}
    assert getattr(queue, take)(1) == []


@pytest.mark.parametrize("take", ["reserve", "pop"])
def test_an_item_is_found_behind_any_number_whose_last_lease_ended_or_that_come_due_expired(
    queue: Any, clock: Any, take: str
) -> None:
    clock.set()
    queue.push_many([Item(n, max_attempts=1) for n in range(1200)])
    assert len(queue.reserve(1200, keepalive=1)) == 1200
    queue.push_many([Item(n, in_=1, expires_in=0.5) for n in range(700)])
    queue.push("there", in_=1.5)
    clock.advance(2_000)

    assert [item.payload for item in getattr(queue, take)(1)] == ["there"]
