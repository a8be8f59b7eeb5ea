"""Batches of a driver: taken, staged, decided, rolled forward; and recovery after the death of a driver."""

import itertools

import pytest

from jobrunner.broker.calls import batches
from jobrunner.client.batches import Batches, BatchLease
from jobrunner.client.client import broker_of
from jobrunner.client.item import Item
from jobrunner.coordinator.recovery import roll_forward
from jobrunner.errors import BatchLost, InvalidName, InvalidOption, ServerUnavailable, UnknownMember

_nonces = itertools.count(1)
RAW, CLEAN, LATE = "orders/raw", "orders/clean", "orders/late"


@pytest.fixture
def raw_orders(broker, keys, client, clock):
    """The batches of queue orders/raw, on a stopped clock."""
    clock.set()
    return Batches(broker, keys.queue(RAW))


def push(client, n: int, queue: str = RAW) -> list[str]:
    return client.queue(queue).push_many(range(n))


def drive(lease: BatchLease, words: list, *, rest: str = "dropped", **options) -> dict[str, int]:
    """Stages, decides and rolls forward to the end; returns the sums of the slices."""
    nonce = f"n{next(_nonces)}"
    lease.stage(nonce, words)
    lease.decide([nonce], rest=rest, **options)
    return roll(lease)


def roll(lease: BatchLease) -> dict[str, int]:
    sums = dict.fromkeys(("moved", "new", "dead", "ended", "skipped"), 0)
    while True:
        step = lease.advance()
        for name in sums:
            sums[name] += getattr(step, name)
        if step.done:
            return sums


def to(queue: str, ids: list[str], payload: bytes = b"1", more: str = "") -> list:
    return [word for one in ids for word in (one, queue, payload, more)]


def leftovers(raw, keys) -> set[bytes]:
    """Keys of batches, but for the marks of those that are done."""
    base = keys.queue(RAW).batch
    found = set(raw.scan_iter(match=base + b"*", count=1000))
    done = {key for key in found if raw.type(key) == b"hash" and raw.hget(key, "state") in (b"done", b"split")}
    assert all(raw.pttl(key) > 0 for key in done)
    return found - done


def test_a_batch_moves_its_items_with_their_ids_and_new_payloads(raw_orders, client, raw, keys, audit):
    ids = push(client, 2500)

    lease = raw_orders.take(5000, lease_s=30)
    assert (lease.size, lease.state, lease.epoch, lease.failures) == (2500, "open", 1, 0)
    assert [*lease.members(0, 1000), *lease.members(1000, 9000)] == ids
    assert audit(RAW)["pending"] == 2500
    sums = drive(lease, to("clean", ids[:400], b'{"n":1}'))

    assert sums == {"moved": 400, "new": 0, "dead": 0, "ended": 2100, "skipped": 0}
    assert lease.state == "done"
    assert client.queue(CLEAN).ids("waiting", limit=2000) == ids[:400]
    assert client.queue(CLEAN).reserve(1)[0].payload == {"n": 1}
    assert client.queue(RAW).totals() == {"enqueued": 2500, "moved_out": 400, "dropped": 2100}
    assert client.queue(CLEAN).totals() == {"moved_in": 400}
    assert leftovers(raw, keys) == set()
    assert CLEAN in {name.decode() for name in raw.smembers(keys.queues)}
    audit(RAW)
    audit(CLEAN)


def test_what_was_not_decided_is_handed_out_again_with_the_same_members(raw_orders, client, clock, raw, keys):
    ids = push(client, 10)
    old = raw_orders.take(10, lease_s=30)
    old.stage("dead", to("clean", ids))
    assert raw_orders.take(10, lease_s=30) is None
    clock.advance(30_000)

    new = raw_orders.take(10, lease_s=30)

    assert (new.id, new.epoch, new.members(0, 10)) == (old.id, 2, ids)
    for late in (old.renew, lambda: old.stage("x", to("clean", ids)), lambda: old.decide(["dead"], rest="dropped")):
        with pytest.raises(BatchLost):
            late()
    assert client.queue(CLEAN).counts()["waiting"] == 0
    drive(new, to("clean", ids))
    assert client.queue(CLEAN).ids("waiting") == ids
    assert leftovers(raw, keys) == set()


def test_a_lease_that_ended_can_decide_nothing_though_nobody_took_the_batch(raw_orders, client, clock):
    ids = push(client, 1)
    lease = raw_orders.take(1, lease_s=30)
    lease.stage("n", to("clean", ids))
    clock.advance(30_000)

    with pytest.raises(BatchLost):
        lease.decide(["n"], rest="dropped")
    with pytest.raises(BatchLost):
        lease.stage("m", to("clean", ids))
    with pytest.raises(BatchLost):
        lease.renew()


def test_a_decision_may_be_repeated_and_is_carried_out_by_anyone(raw_orders, client, clock):
    ids = push(client, 10)
    lease = raw_orders.take(10, lease_s=30)
    lease.stage("n", to("clean", ids[:5]))
    lease.decide(["n"], rest="succeeded")
    clock.advance(60_000)

    lease.decide(["n"], rest="succeeded")
    other = raw_orders.take(10, lease_s=30)
    assert (other.id, other.state) == (lease.id, "committed")
    with pytest.raises(BatchLost):
        other.stage("m", to("clean", ids))
    assert roll(other)["moved"] == 5
    assert lease.advance().done
    lease.decide(["n"], rest="succeeded")
    assert client.queue(RAW).totals() == {"enqueued": 10, "moved_out": 5, "succeeded": 5}


def test_writes_that_do_not_count_are_never_seen(raw_orders, client, raw, keys):
    ids = push(client, 4)
    lease = raw_orders.take(4, lease_s=30)
    lease.stage("failed attempt", to("clean", ids, b'"wrong"'))
    lease.stage("retried", to("clean", ids, b'"right"'))
    lease.decide(["retried"], rest="dropped")

    roll(lease)

    assert [one.payload for one in client.queue(CLEAN).reserve(9)] == ["right"] * 4
    assert leftovers(raw, keys) == set()


def test_a_batch_that_fails_twice_is_split_until_the_poison_is_alone(raw_orders, client, raw, keys, audit):
    ids = push(client, 7)
    poison, sizes = ids[4], []
    while lease := raw_orders.take(7, lease_s=30):
        members = lease.members(0, 7)
        sizes.append(len(members))
        if poison in members:
            lease.stage("n", to("clean", [poison]))
            lease.fail("no such airport", delay_s=0)
        else:
            drive(lease, to("clean", members))

    assert sorted(client.queue(CLEAN).ids("waiting")) == sorted(set(ids) - {poison})
    (dead,) = client.queue(RAW).tasks("dead")
    assert (dead.id, dead.error, dead.retry_count) == (poison, "no such airport", 5)
    assert sizes[:2] == [7, 7]
    assert leftovers(raw, keys) == set()
    assert audit(RAW)["dead"] == 1


def test_a_failed_batch_comes_back_after_its_delay_and_a_released_one_at_once(raw_orders, client, clock):
    push(client, 2)
    lease = raw_orders.take(2, lease_s=30)

    assert lease.fail("down", delay_s=5) == "again"
    assert raw_orders.take(2, lease_s=30) is None
    clock.advance(5_000)
    lease = raw_orders.take(2, lease_s=30)
    assert (lease.failures, lease.error) == (1, "down")
    lease.release()
    lease = raw_orders.take(2, lease_s=30)
    assert lease.failures == 1
    lease.release(delay_s=5)
    assert raw_orders.take(2, lease_s=30) is None
    clock.advance(5_000)
    assert raw_orders.take(2, lease_s=30).failures == 1


@pytest.mark.parametrize("arrived", [True, False])
def test_a_fill_without_a_reply_keeps_the_batch_and_its_size_is_asked_for(raw_orders, client, monkeypatch, arrived):
    """Or the members that came by it would end unseen with the decision, and a batch wait for the end of its lease."""
    push(client, 1000)
    client.queue(RAW).push(1, in_=0.001)
    run, fills = raw_orders.broker.run, []

    def is_fill(call):
        return call.script is not None and call.script.name == "batch_fill"

    def loses_the_second(call):
        if is_fill(call) and len(fills) == 1:
            fills.append(run(call)[0] if arrived else fills[0])
            raise ServerUnavailable("no reply")
        found = run(call)
        if is_fill(call):
            fills.append(found[0])
        return found

    monkeypatch.setattr(raw_orders.broker, "run", loses_the_second)
    lease = raw_orders.take(1000, lease_s=30)
    assert lease.size == fills[0]
    lease.settle_size()
    assert lease.size == fills[1]
    assert (fills[1] > fills[0]) is arrived
    lease.settle_size()
    assert len(fills) == 3, "a known size is not asked for"
    drive(lease, to("clean", lease.members(0, 1000)))
    counts = client.queue(RAW).counts(), client.queue(CLEAN).counts()
    assert [one["waiting"] + one["scheduled"] + one["pending"] for one in counts] == [1001 - fills[1], fills[1]]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_first_fill_without_a_reply_is_looked_for_by_the_next_take(
    raw_orders, client, clock, monkeypatch, raw, keys, arrived
):
    """Its members would wait for the end of the lease otherwise, and that counts against them."""
    push(client, 10)
    run = raw_orders.broker.run

    def loses_the_first(call):
        if call.script is None or call.script.name != "batch_fill":
            return run(call)
        monkeypatch.setattr(raw_orders.broker, "run", run)
        if arrived:
            run(call)
        raise ServerUnavailable("no reply")

    monkeypatch.setattr(raw_orders.broker, "run", loses_the_first)
    with pytest.raises(ServerUnavailable):
        raw_orders.take(50, lease_s=30)
    clock.advance(29_000)
    lease = raw_orders.take(50, lease_s=30)
    assert (lease.size, lease.epoch, lease.is_new) == (10, 1, True)
    clock.advance(29_000)
    assert raw_orders.take(50, lease_s=30) is None
    assert lease.dissolve() == 10
    assert leftovers(raw, keys) == set()


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("loses", [None, 1, 2])
def test_a_batch_is_taken_and_filled_behind_any_number_of_items_that_expired(
    raw_orders, client, clock, monkeypatch, fair, loses
):
    """The bound on one call of the server ended the batch: a station waited although items did."""
    queue = client.queue(RAW)
    queue.configure(fair=fair)
    queue.push_many(Item(n, expires_in=1) for n in range(1600))
    first = queue.push_many(range(3))
    clock.advance(2_000)
    run, fills = raw_orders.broker.run, []

    def sends_again(call):
        if call.script is not None and call.script.name == "batch_fill":
            fills.append(call)
            if len(fills) == loses:
                run(call)
        return run(call)

    monkeypatch.setattr(raw_orders.broker, "run", sends_again)
    lease = raw_orders.take(3, lease_s=30)
    assert lease.members(0, 9) == first

    queue.push_many(Item(n, expires_in=1) for n in range(1600))
    more = queue.push_many(range(2))
    clock.advance(2_000)
    fills.clear()
    assert raw_orders.top_up(lease, 5) == 2
    assert lease.members(0, 9) == [*first, *more]
    assert raw_orders.top_up(lease, 5) == 0


def test_a_dissolved_batch_leaves_its_items_where_they_were(raw_orders, client, raw, keys, audit):
    ids = push(client, 3)
    lease = raw_orders.take(2, lease_s=30)
    lease.stage("n", to("clean", ids[:2]))

    assert lease.dissolve() == 2

    assert client.queue(RAW).ids("waiting") == ids
    assert leftovers(raw, keys) == set()
    audit(RAW)


def test_a_row_for_a_stranger_is_refused_by_name(raw_orders, client):
    ids = push(client, 3)
    lease = raw_orders.take(2, lease_s=30)

    with pytest.raises(UnknownMember, match=ids[2]):
        lease.stage("n", to("clean", ids))
    with pytest.raises(InvalidName):
        lease.stage("n", to("no/such", ids[:2]))
    with pytest.raises(InvalidOption):
        lease.stage("n", ids)


def test_items_that_were_deleted_or_cancelled_meanwhile_are_skipped(raw_orders, client, audit):
    ids = push(client, 4)
    lease = raw_orders.take(4, lease_s=30)
    client.queue(RAW).delete(ids[0])
    client.task(ids[1], queue=RAW).cancel()

    sums = drive(lease, to("clean", ids[:3]))

    assert (sums["moved"], sums["skipped"], sums["ended"]) == (1, 1, 1)
    assert client.queue(CLEAN).ids("waiting") == [ids[2]]
    assert client.queue(RAW).totals()["cancelled"] == 1
    audit(RAW)


def test_a_full_queue_stops_the_rolling_and_loses_nothing(raw_orders, client, audit):
    ids = push(client, 6)
    client.queue(CLEAN).configure(max_size=2)
    lease = raw_orders.take(6, lease_s=30)
    lease.stage("n", to("clean", ids[:4]) + to("clean", ids[4:5], more='{"over":1}'))
    lease.decide(["n"], rest="dropped")

    step = lease.advance()
    assert (step.moved, step.full, step.done) == (2, "clean", False)
    assert (audit(RAW)["pending"], audit(CLEAN)["waiting"]) == (4, 2)
    client.queue(CLEAN).pop(1)
    step = lease.advance()
    assert (step.moved, step.full) == (1, "clean")
    client.queue(CLEAN).pop(1)
    step = lease.advance()

    assert (step.moved, step.ended, step.full, step.done) == (2, 1, None, True)
    audit(RAW)
    assert client.queue(CLEAN).totals()["moved_in"] == 5


def test_rows_steer_priority_delay_headers_and_death(raw_orders, client, clock):
    ids = push(client, 3)
    lease = raw_orders.take(3, lease_s=30)
    more = '{"priority":2,"headers":{"a":"1"}}'
    rows = to("clean", ids[:1]) + to("clean", ids[1:2], more=more) + to("late", ids[:0])
    rows += to("", ids[2:], b"no such carrier")

    assert drive(lease, rows) == {"moved": 2, "new": 0, "dead": 1, "ended": 0, "skipped": 0}

    assert client.queue(CLEAN).ids("waiting") == [ids[1], ids[0]]
    assert client.queue(CLEAN).reserve(1)[0].headers == {"a": "1"}
    (dead,) = client.queue(RAW).tasks("dead")
    assert dead.error == "no such carrier"


def test_the_limit_of_hops_ends_a_loop(broker, keys, raw_orders, client):
    push(client, 1)
    for _ in range(3):
        lease = raw_orders.take(1, lease_s=30)
        drive(lease, to("raw", lease.members(0, 1)), max_hops=3)
    lease = raw_orders.take(1, lease_s=30)

    assert drive(lease, to("raw", lease.members(0, 1)), max_hops=3)["dead"] == 1
    assert "max_hops" in client.queue(RAW).tasks("dead")[0].error


def test_a_parent_becomes_several_new_items(raw_orders, client, audit):
    (parent,) = client.queue(RAW).push_many([0])
    lease = raw_orders.take(1, lease_s=30)
    more = f'{{"new":1,"parent":"{parent}"}}'

    sums = drive(lease, to("clean", [f"{parent}.1", f"{parent}.2"], more=more), rest="succeeded")

    assert (sums["new"], sums["ended"]) == (2, 1)
    assert client.queue(CLEAN).ids("waiting") == [f"{parent}.1", f"{parent}.2"]
    assert client.queue(CLEAN).tasks("waiting")[0].fields["hops"] == b"1"
    assert client.queue(RAW).totals() == {"enqueued": 1, "succeeded": 1}
    audit(RAW)
    audit(CLEAN)


def test_a_write_is_whole_or_not_there_and_its_id_makes_it_repeatable(raw_orders, client, raw, keys, audit):
    shared = {"type": "reports.Send", "priority": 2, "max_attempts": 3}
    first = raw_orders.open(lease_s=30, batch_id="write-1", shared=shared)
    first.stage("a", to("raw", ["x"], more='{"new":1}'))
    again = raw_orders.open(lease_s=30, batch_id="write-1", shared=shared)
    with pytest.raises(BatchLost):
        first.decide(["a"], rest="dropped")

    assert drive(again, to("raw", ["x", "y"], b"{}", '{"new":1}'))["new"] == 2

    assert raw_orders.open(lease_s=30, batch_id="write-1").state == "done"
    (attempt, _) = client.queue(RAW).tasks("waiting")
    assert (attempt.type, attempt.priority, attempt.fields["max_attempts"]) == ("reports.Send", 2, b"3")
    assert client.queue(RAW).totals() == {"enqueued": 2}
    assert leftovers(raw, keys) == set()
    audit(RAW)


def test_an_aborted_or_abandoned_write_leaves_nothing(raw_orders, raw, keys, clock):
    aborted = raw_orders.open(lease_s=30)
    aborted.stage("a", to("raw", ["x"], more='{"new":1}'))
    aborted.dissolve()
    abandoned = raw_orders.open(lease_s=30)
    abandoned.stage("a", to("raw", ["x"], more='{"new":1}'))
    assert roll_forward(raw_orders, slices=9) == 0
    clock.advance(86_430_000)

    assert roll_forward(raw_orders, slices=9) == 1

    assert leftovers(raw, keys) == set()
    assert not raw.exists(keys.queue(RAW).task("x"))


@pytest.mark.parametrize("ending", ["aborted", "failed", "abandoned", "half way"])
def test_a_write_that_was_taken_back_is_not_done_and_begins_anew(raw_orders, client, raw, keys, clock, ending):
    name = {"batch_id": "micro-7", "lease_s": 30}
    first = raw_orders.open(**name, attempt="a")
    first.stage("one", to("raw", ["x"], more='{"new":1}'))
    if ending == "aborted":
        first.dissolve()
    elif ending == "failed":
        assert first.fail("boom", delay_s=0) == "dead"
    elif ending == "half way":
        broker_of(client).run(batches.failed_attempt(keys.queue(RAW), first.id, first.epoch, fate="dissolved"))
    else:
        clock.advance(86_430_000)
        assert roll_forward(raw_orders, slices=9) == 1

    again = raw_orders.open(**name, attempt="b")

    assert (again.state, again.epoch > first.epoch) == ("open", True)
    with pytest.raises(BatchLost):
        first.decide(["one"], rest="succeeded")
    assert raw.pttl(keys.queue(RAW).batch + b"micro-7") == -1
    assert drive(again, to("raw", ["x", "y"], more='{"new":1}'))["new"] == 2
    assert raw_orders.open(**name, attempt="c").state == "done"
    assert leftovers(raw, keys) == set()


def test_the_leader_knows_the_queue_of_a_write_whose_writer_dies_behind_the_decision(raw_orders, raw, keys):
    lease = raw_orders.open(lease_s=30)
    lease.stage("a", to("raw", ["x"], more='{"new":1}'))
    assert not raw.sismember(keys.queues, RAW)

    lease.decide(["a"], rest="succeeded")

    assert raw.sismember(keys.queues, RAW)


def test_who_names_the_same_attempt_shares_a_batch_and_another_attempt_takes_it_over(raw_orders, raw, keys):
    first, second = (raw_orders.open(lease_s=30, batch_id="micro-7", attempt="a") for _ in range(2))
    assert (first.epoch, second.epoch) == (1, 1)
    first.stage("one", to("raw", ["i1"], more='{"new":1}'))
    second.stage("two", to("raw", ["i2"], more='{"new":1}'))

    retry = raw_orders.open(lease_s=30, batch_id="micro-7", attempt="b")
    assert retry.epoch == 2
    with pytest.raises(BatchLost):
        first.decide(["one", "two"], rest="succeeded")

    retry.stage("three", to("raw", ["i1", "i2", "i3"], more='{"new":1}'))
    raw_orders.open(lease_s=30, batch_id="micro-7", attempt="b").decide(["three"], rest="succeeded")
    assert roll(retry)["new"] == 3
    assert raw_orders.open(lease_s=30, batch_id="micro-7", attempt="c").state == "done"
    assert raw.pttl(keys.queue(RAW).batch + b"micro-7") > 29 * 86_400_000


def test_a_new_item_has_its_own_key_and_its_instant(raw_orders, client, clock):
    at_ms = clock.ms + 60_000
    lease = raw_orders.open(lease_s=30)
    drive(
        lease,
        ["i1", "raw", b"1", f'{{"new":1,"key":"ada","at_ms":{at_ms:.0f}}}', "i2", "raw", b"2", '{"new":1,"at_ms":1}'],
    )

    record = client.task("i1", queue=RAW).record()
    assert (record.state, record.when.timestamp() * 1000, record.fields["key"]) == ("scheduled", at_ms, b"ada")
    assert client.queue(RAW).ids("waiting") == ["i2"]


def test_how_long_members_waited_is_read_of_some_that_stand_for_all(raw_orders, client, clock):
    push(client, 60)
    clock.advance(2000)
    client.queue(RAW).push_many([Item(n, in_=3) for n in range(20)])
    push(client, 20)
    clock.advance(4000)
    lease = raw_orders.take(1000, lease_s=30)

    some, all_ = lease.waits_ms(10), lease.waits_ms(1000)

    assert [items for _, items in some] == [10] * 10
    assert sum(items for _, items in all_) == len(all_) == 100
    assert {round(ms / 1000) for ms, _ in all_} == {6, 4, 1}
    assert [round(ms / 1000) for ms, _ in some] == [6] * 6 + [4] * 2 + [1] * 2


@pytest.mark.parametrize(
    ("of_queue", "own", "expired", "is_last"),
    [
        (2, None, 0, True), (3, None, 0, False), (3, None, 1, True), (3, 2, 0, True), (2, 3, 0, False),
        (0, None, 9, False),
    ],
)  # fmt: skip
def test_an_item_knows_its_last_attempt(raw_orders, client, clock, of_queue, own, expired, is_last):
    client.queue(RAW).configure(max_attempts=of_queue)
    client.queue(RAW).push("a", max_attempts=own)
    raw_orders.take(1, lease_s=60).fail("no", delay_s=0)
    for _ in range(expired):
        raw_orders.take(1, lease_s=60)
        clock.advance(60_000)
    assert raw_orders.take(1, lease_s=60).is_at_last_attempt() is is_last


def test_a_batch_of_several_or_of_a_damaged_item_knows_it_too(raw_orders, client, raw, keys):
    client.queue(RAW).configure(max_attempts=1)
    ids = push(client, 3)
    assert not raw_orders.take(2, lease_s=60).is_at_last_attempt()
    lease = raw_orders.take(2, lease_s=60)
    raw.set(keys.queue(RAW).tasks + ids[2].encode(), b"damaged")
    assert lease.is_at_last_attempt()


def test_a_batch_whose_first_reply_was_lost_comes_before_a_new_one(raw_orders, client, monkeypatch):
    """A second call that failed forgot it: its members waited for the lease, which counted as an attempt."""
    assert raw_orders.take_new(1, lease_s=60) is None  # asks once how far the server is
    push(client, 3)
    run = raw_orders.broker.run
    replies = iter(["lost", "away", "away"])

    def flaky(call):
        if (reply := next(replies, "")) == "away":
            raise ServerUnavailable(reply)
        found = run(call)
        if reply:
            raise ServerUnavailable(reply)
        return found

    monkeypatch.setattr(raw_orders.broker, "run", flaky)
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            raw_orders.take_new(1, lease_s=60)

    lease = raw_orders.take(10, lease_s=60)

    assert lease is not None
    assert (lease.size, lease.epoch) == (1, 1)
    assert client.queue(RAW).counts()["waiting"] == 2
