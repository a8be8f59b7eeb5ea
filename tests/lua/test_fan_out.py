"""fan_out: one task ends and its children enter queues of the same pipeline, in one step."""

import pytest

from jobrunner.broker.calls import leases
from jobrunner.broker.calls.leases import Child
from jobrunner.errors import ServerFull, ServerRefused


@pytest.fixture
def lines(line):
    return line("orders/raw"), line("orders/left"), line("orders/right")


def child(to, task_id, payload=b"1", **options):
    return Child(id=task_id, to=to.keys, fields=["payload", payload, "type", ""], **options)


def spread(raw, attempt, *children, **options):
    (verdict,) = raw.run(leases.fan_out(raw.keys, attempt.id, attempt.token, children, **options))
    return verdict


def test_the_parent_ends_and_its_children_are_there(lines, clock):
    raw, left, right = lines
    attempt = raw.lease("a", payload=b"whole")
    clock.advance(5)

    verdict = spread(raw, attempt, child(left, "a1", b"\xff"), child(right, "a2"), child(left, "a3"), keep_ms=60_000)

    assert verdict == "ok"
    assert raw.ids("pending") == raw.ids("leases") == raw.ids("waiting") == []
    assert (left.ids("waiting"), right.ids("waiting")) == (["a1", "a3"], ["a2"])
    assert left.hash("a1") == {
        "id": b"a1", "queue": b"orders/left", "payload": b"\xff", "type": b"", "hops": b"1", "retry_count": b"0",
        "more": b"1", "priority": b"1", "enqueue_time": b"%d" % clock.ms, "place": b"%.1f" % (clock.ms + 0.5),
    }  # fmt: skip
    assert raw.hash("a")["finished_at"] == b"%d" % clock.ms
    assert "result" not in raw.hash("a")
    assert 0 < raw.raw.pttl(raw.keys.task("a")) <= 60_000
    assert raw.totals() == {"enqueued": 1, "succeeded": 1}
    assert (left.totals(), right.totals()) == ({"enqueued": 2}, {"enqueued": 1})
    assert left.wakes()
    assert right.wakes()
    assert [one.id for one in left.reserve(5)] == ["a1", "a3"]


def test_an_item_that_may_pass_one_station_goes_no_further(lines):
    raw, left, _ = lines
    attempt = raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), "hops", 1)
    assert spread(raw, attempt, child(left, "a1"), max_hops=1) == "hops"


def test_hops_priority_and_key_are_those_of_the_parent(lines):
    raw, left, _ = lines
    attempt = raw.lease("a", priority=2, key="tenant")
    raw.raw.hset(raw.keys.task("a"), "hops", 4)

    spread(raw, attempt, child(left, "a1"), child(left, "a2", priority=1))

    first, second = left.hash("a1"), left.hash("a2")
    assert (first["hops"], first["priority"], first["key"]) == (b"5", b"2", b"tenant")
    assert (second["hops"], second["priority"], second["key"]) == (b"5", b"1", b"tenant")


def test_a_delay_schedules_a_child(lines, clock):
    raw, left, _ = lines

    spread(raw, raw.lease("a"), child(left, "a1", delay_ms=700), child(left, "a2", delay_ms=700))

    assert left.ids("waiting") == []
    assert left.ids("scheduled") == ["a1", "a2"]
    assert left.scores("scheduled")["a1"] == clock.ms + 700


def test_delayed_children_of_one_instant_come_in_the_order_of_the_report(lines, clock):
    raw, left, _ = lines

    spread(raw, raw.lease("a"), child(left, "z", delay_ms=700), child(left, "a1", delay_ms=700))
    clock.advance(701)

    assert [one.id for one in left.reserve(2)] == ["z", "a1"]


def test_children_that_all_come_later_give_nobody_a_place_in_line(lines):
    raw, left, _ = lines

    spread(raw, raw.lease("a"), child(left, "a1", delay_ms=700))

    assert not left.raw.exists(left.keys.arrival)


def test_children_of_one_instant_stand_in_line_as_their_parents_ended(lines):
    raw, left, _ = lines
    first, second = raw.lease("a"), raw.lease("b")

    spread(raw, first, child(left, "z1"), child(left, "z2"))
    spread(raw, second, child(left, "a1"))

    assert left.ids("waiting") == ["z1", "z2", "a1"]


def test_a_parent_that_nobody_keeps_is_deleted_at_once(lines):
    raw, left, _ = lines

    assert spread(raw, raw.lease("a"), child(left, "a1")) == "ok"
    assert raw.hash("a") == {}


def test_a_queue_with_history_notes_the_parent(lines, clock):
    raw, left, _ = lines
    raw.configure(history_ms=10_000)

    spread(raw, raw.lease("a"), child(left, "a1"))

    assert raw.scores("done") == {"a": clock.ms}


def test_those_who_wait_for_the_parent_are_told(lines):
    raw, left, _ = lines
    attempt = raw.lease("a")
    raw.raw.zadd(raw.keys.waiters, {"a": 1})
    listener = raw.raw.pubsub()
    listener.subscribe(raw.keys.finished + b"a")
    assert listener.get_message(timeout=5)["type"] == "subscribe"

    spread(raw, attempt, child(left, "a1"))

    assert listener.get_message(timeout=5)["data"] == b"succeeded"
    listener.close()
    assert raw.hash("a")["finished_at"]


def test_the_end_of_a_task_of_a_flow_is_posted(lines):
    raw, left, _ = lines

    spread(raw, raw.lease("a"), child(left, "a1"), then=b"[somewhere]")

    assert raw.raw.hgetall(raw.keys.outbox) == {b"succeeded:[somewhere]": b""}
    assert "then" not in left.hash("a1")


def test_a_child_that_exists_is_left_as_it_is(lines):
    raw, left, right = lines
    right.enqueue("a1", payload=b"old")

    assert spread(raw, raw.lease("a"), child(left, "a1"), child(left, "a2"), child(left, "a2", b"again")) == "ok"
    assert left.ids("waiting") == ["a2"]
    assert (right.hash("a1")["payload"], left.hash("a2")["payload"]) == (b"old", b"1")
    assert left.totals() == {"enqueued": 1}


def test_a_queue_in_which_all_children_exist_is_left_alone(lines):
    raw, _, right = lines
    right.enqueue("a1")
    right.wakes()
    assert spread(raw, raw.lease("a"), child(right, "a1")) == "ok"
    assert (right.wakes(), right.totals()) == (False, {"enqueued": 1})


def test_refused_spreads_change_nothing(lines, clock):
    raw, left, _ = lines
    old = raw.lease("a")
    clock.advance(30_000)
    (new,) = raw.reserve()
    before = raw.snapshot()

    assert spread(raw, old, child(left, "a1")) == "lost"
    clock.advance(30_000)
    assert spread(raw, new, child(left, "a1")) == "not_reserved"
    assert raw.snapshot() == before
    (new,) = raw.reserve()
    assert spread(raw, new, child(left, "a1")) == "ok"
    assert spread(raw, new, child(left, "a1")) == "gone"
    assert left.ids("waiting") == ["a1"]


def test_the_limit_of_hops_is_kept(lines):
    raw, left, _ = lines
    attempt = raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), "hops", 3)
    before = raw.snapshot()

    assert spread(raw, attempt, child(left, "a1"), max_hops=3) == "hops"
    assert raw.snapshot() == before
    assert spread(raw, attempt, child(left, "a1"), max_hops=4) == "ok"


def test_all_children_or_none_go_into_a_queue_that_is_almost_full(lines):
    raw, left, right = lines
    right.configure(max_size=2)
    right.enqueue("there")
    attempt = raw.lease("a")
    family = [child(left, "a1"), child(right, "a2"), child(right, "a3")]
    before = raw.snapshot()

    assert spread(raw, attempt, *family) == "full"
    assert raw.snapshot() == before
    right.commit(*right.reserve())
    assert spread(raw, attempt, *family) == "ok"
    assert right.ids("waiting") == ["a2", "a3"]


def test_each_child_needs_one_place(lines):
    raw, left, _ = lines
    left.configure(max_size=2)
    left.enqueue("there")

    assert spread(raw, raw.lease("a"), child(left, "a1")) == "ok"
    assert spread(raw, raw.lease("b"), child(left, "b1")) == "full"


def test_children_that_go_over_are_taken_by_a_full_queue(lines):
    raw, left, _ = lines
    left.configure(max_size=1)
    left.enqueue("there")
    attempt = raw.lease("a")

    assert spread(raw, attempt, child(left, "a1", over=True), child(left, "a2")) == "full"
    assert spread(raw, attempt, child(left, "a1", over=True), child(left, "a2", over=True)) == "ok"
    assert left.ids("waiting") == ["there", "a1", "a2"]


def test_a_family_larger_than_the_queue_goes_into_it_when_it_is_empty(lines):
    raw, left, _ = lines
    left.configure(max_size=2)
    attempt = raw.lease("a")
    left.enqueue("there")
    family = [child(left, f"a{n}") for n in range(4)]

    assert spread(raw, attempt, *family) == "full"
    left.reserve()
    assert spread(raw, attempt, *family) == "ok"
    assert left.ids("waiting") == ["a0", "a1", "a2", "a3"]


def test_children_may_enter_the_queue_of_the_parent(lines):
    raw, _, _ = lines

    assert spread(raw, raw.lease("a"), child(raw, "a1"), child(raw, "a2")) == "ok"
    assert raw.ids("waiting") == ["a1", "a2"]
    assert raw.ids("pending") == []


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
@pytest.mark.parametrize("field", ["hops", "priority"])
def test_a_field_that_is_no_number_reads_as_not_said(lines, field, damage):
    raw, left, _ = lines
    attempt = raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), field, damage)

    assert spread(raw, attempt, child(left, "a1"), max_hops=5) == "ok"
    assert left.hash("a1")["hops"] == b"1"
    assert [one.id for one in left.reserve()] == ["a1"]


def test_a_hash_that_was_deleted_meanwhile_has_no_children(lines):
    raw, left, _ = lines
    attempt = raw.lease("a")
    raw.raw.delete(raw.keys.task("a"))
    raw.configure(max_inflight=1)
    raw.wakes()

    assert spread(raw, attempt, child(left, "a1")) == "gone"
    assert left.ids("waiting") == raw.ids("pending") == raw.ids("leases") == []
    assert raw.totals() == {"enqueued": 1, "orphaned": 1}
    assert raw.wakes()


def test_many_children_go_through(lines):
    raw, left, _ = lines
    ids = [f"a{n:04}" for n in range(5000)]

    assert spread(raw, raw.lease("a"), *[child(left, one) for one in ids]) == "ok"
    assert left.ids("waiting") == ids


def test_a_server_that_is_full_leaves_the_parent_leased(lines):
    raw, left, _ = lines
    attempt = raw.lease("a")
    before = raw.snapshot()
    raw.raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull):
            spread(raw, attempt, child(left, "a1", b"x" * 1000))
    finally:
        raw.raw.config_set("maxmemory", 0)
    assert raw.snapshot() == before


@pytest.mark.parametrize("denied", ["hset", "zadd", "hincrby", "zrem"])
def test_a_command_that_is_denied_half_way_leaves_the_parent_leased(lines, weak_broker, denied):
    raw, left, _ = lines
    attempt = raw.lease("a")

    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(
            leases.fan_out(raw.keys, attempt.id, attempt.token, [child(left, "a1")], keep_ms=60_000)
        )

    assert raw.ids("pending") == ["a"]


def test_a_spread_wakes_who_waits_for_room_among_the_leases(lines):
    raw, left, _ = lines
    raw.configure(max_inflight=1)
    held = raw.lease("a")
    raw.wakes()
    assert spread(raw, held, child(left, "a1")) == "ok"
    assert raw.wakes()
