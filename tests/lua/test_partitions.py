"""Limits per key, and keys that take turns."""

import itertools
from contextlib import contextmanager

import pytest

from jobrunner.broker.calls import leases, new_tasks, queues, tasks
from jobrunner.task import Task

HOUR_US = 3_600_000_000


@pytest.fixture
def add(mail):
    """add("a1", "a2", …): tasks whose key is the first letter of their id; "-…" has none."""

    def enqueue(*ids, **options):
        options = {"payload": b""} | options
        sent = [Task(id=one, queue="mail", key=None if one[0] == "-" else one[0], **options) for one in ids]
        return mail.run(new_tasks.enqueue(mail.keys, sent))

    return enqueue


def limit(mail, **fields):
    mail.run(queues.configure(mail.keys, fields))


def taken(mail, count=1):
    return [attempt.id for attempt in mail.reserve(count)]


@contextmanager
def full(mail):
    """A server that has reached its maxmemory."""
    mail.raw.config_set("maxmemory", 1)
    try:
        yield
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_no_more_is_taken_than_asked_for_where_tasks_have_two_priorities(mail, add):
    limit(mail, fair=1)
    add("b0", "c0")
    add("a0", priority=2)
    assert taken(mail) == ["a0"]


def test_a_new_key_has_its_turn_behind_those_that_wait(mail, add):
    limit(mail, fair=1)
    add("a0", "z0", "a1")
    assert taken(mail) == ["a0"]
    add("b0")
    assert taken(mail, 3) == ["z0", "a1", "b0"]


@pytest.mark.parametrize(
    "limits",
    [{"max_tokens": 1, "interval_us": HOUR_US}, {"max_inflight": 1}, {"slice_inflight": 1, "max_inflight": 4}],
    ids=["rate", "max_inflight", "slice"],
)
@pytest.mark.parametrize("priority", [0, 1, 2])
def test_a_limit_of_the_queue_that_is_reached_lets_no_key_through(mail, add, limits, priority):
    limit(mail, fair=1, **limits)
    add("a0", "b0", "c0", priority=priority)
    assert taken(mail, 3) == ["a0"]
    assert taken(mail, 3) == []
    assert mail.ids("pending") == ["a0"]


def test_keys_take_turns(mail, add):
    limit(mail, fair=1)
    add(*(f"a{n}" for n in range(6)))
    add("b0", "b1", "c0")
    assert taken(mail, 4) == ["a0", "b0", "c0", "a1"]
    assert [taken(mail) for _ in range(4)] == [["b1"], ["a2"], ["a3"], ["a4"]]


def test_who_comes_late_waits_for_one_round_not_for_the_backlog(mail, add):
    limit(mail, fair=1)
    add(*(f"a{n}" for n in range(9)), *(f"b{n}" for n in range(9)))
    assert taken(mail, 4) == ["a0", "b0", "a1", "b1"]
    add("c0")
    assert "c0" in taken(mail, 3)


def test_within_a_key_the_order_is_that_of_the_line(mail, add, clock):
    limit(mail, fair=1, keepalive_ms=1000)
    add("a0", "a1", "a2")
    add("a9", delay_ms=500)
    add("b0")
    assert taken(mail, 2) == ["a0", "b0"]
    clock.advance(1000)
    assert taken(mail, 9) == ["a0", "b0", "a1", "a2", "a9"], "a returned task has its place, and its partition its turn"


def test_a_higher_priority_goes_before_every_turn(mail, add):
    limit(mail, fair=1)
    add("a0", "b0")
    add("a1", "a2", priority=2)
    add("c0", priority=0)
    assert taken(mail, 9) == ["a1", "a2", "a0", "b0", "c0"]


def test_tasks_without_a_key_take_turns_as_one(mail, add):
    limit(mail, fair=1)
    add("-0", "-1", "-2", "a0")
    assert taken(mail, 9) == ["-0", "a0", "-1", "-2"]


def test_no_key_holds_more_leases_than_it_may(mail, add):
    limit(mail, key_inflight=2)
    add(*(f"a{n}" for n in range(5)), "b0", "-0", "-1", "-2")
    held = mail.reserve(99)
    assert sorted(attempt.id for attempt in held) == ["-0", "-1", "-2", "a0", "a1", "b0"]
    assert taken(mail, 9) == []
    by_id = {attempt.id: attempt for attempt in held}
    mail.commit(by_id["a0"])
    assert taken(mail, 9) == ["a2"]
    mail.fail(by_id["a1"], delay_ms=60_000)
    mail.release(by_id["b0"])
    assert sorted(taken(mail, 9)) == ["a3", "b0"]


@pytest.mark.parametrize("way", ["commit", "fail", "release", "delete", "cancel by its lease"])
def test_what_leaves_wakes_who_waits_for_its_key(mail, add, clock, way):
    limit(mail, key_inflight=1, keepalive_ms=1000)
    add("a0", "a1")
    (held,) = mail.reserve(9)
    mail.wakes()
    if way == "delete":
        mail.run(tasks.delete(mail.keys, held.id))
    elif way == "cancel by its lease":
        clock.advance(1000)
        mail.run(queues.counts(mail.keys))
    else:
        getattr(mail, way)(held)
    assert mail.wakes()


def test_a_lease_that_was_renewed_counts_and_one_that_ended_does_not(mail, add, clock):
    limit(mail, key_inflight=1, keepalive_ms=1000)
    add("a0", "a1")
    (held,) = mail.reserve(9)
    clock.advance(900)
    mail.extend(held, keepalive_ms=1000)
    clock.advance(900)
    assert taken(mail, 9) == []
    clock.advance(100)
    assert taken(mail, 9) == ["a0"]


def test_every_key_has_a_bucket_of_its_own(mail, add, clock):
    limit(mail, key_tokens=2, key_interval_us=10_000_000)
    add(*(f"a{n}" for n in range(5)), *(f"b{n}" for n in range(5)), "-0", "-1", "-2")
    assert sorted(taken(mail, 99)) == ["-0", "-1", "-2", "a0", "a1", "b0", "b1"]
    clock.advance(4_999.999)
    assert taken(mail, 9) == []
    assert mail.ask(9).next_event_ms <= clock.ms + 11
    clock.advance(0.001)
    assert sorted(taken(mail, 9)) == ["a2", "b2"]
    assert mail.ask(9).next_event_ms == clock.ms + 5000


def test_a_token_that_flows_fast_is_not_polled_for(mail, add, clock):
    limit(mail, key_tokens=1, key_interval_us=1000)
    add("a0", "a1")
    assert taken(mail, 9) == ["a0"]
    clock.advance(5)
    assert mail.ask(9).next_event_ms == clock.ms + 10


def test_a_key_waits_for_no_more_than_a_token_when_the_clock_stepped_back_a_little(mail, add, clock):
    """By less than in which all its tokens flow."""
    limit(mail, key_tokens=2, key_interval_us=10_000_000)
    add("a0", "a1", "a2")
    assert taken(mail, 9) == ["a0", "a1"]
    clock.advance(-10_000)
    assert mail.ask(9).next_event_ms == clock.ms + 5000


def test_a_key_that_may_hold_one_more_lease_waits_for_its_token_alone(mail, add, clock):
    limit(mail, key_inflight=2, key_tokens=1, key_interval_us=5_000_000)
    add("a0", "a1")
    assert taken(mail, 9) == ["a0"]
    assert mail.ask(9).next_event_ms == clock.ms + 5000
    clock.advance(5000)
    assert taken(mail, 9) == ["a1"]


def test_what_a_rate_of_keys_notes_ends(mail, add):
    limit(mail, key_tokens=1, key_interval_us=5_000_000)
    add("a0", "b0")
    assert taken(mail) == ["a0"]
    assert 0 < mail.raw.pttl(mail.keys.base + b"mail:bucket:a") <= 10_000
    mail.run(leases.pop(mail.keys, 1))
    assert not mail.raw.exists(mail.keys.base + b"mail:holders"), "without a limit of leases nobody holds one"


def test_a_task_that_did_not_begin_gives_its_key_one_token_back(mail, add):
    limit(mail, key_tokens=3, key_interval_us=HOUR_US)
    add(*(f"a{n}" for n in range(6)))
    held = mail.reserve(9)
    assert len(held) == 3
    mail.release(held[0])
    assert taken(mail, 9) == ["a0"]


def test_limits_of_queue_and_key_hold_together_and_burn_no_tokens(mail, add):
    limit(mail, key_tokens=5, key_interval_us=HOUR_US, max_inflight=3, max_tokens=10, interval_us=HOUR_US)
    add(*(f"a{n}" for n in range(9)), "b0")
    assert len(mail.reserve(99)) == 3
    assert mail.reserve(99) == []
    assert float(mail.raw.hget(mail.keys.bucket, "level")) == 7 * HOUR_US


def test_a_popped_task_takes_a_token_of_its_key_and_no_room(mail, add):
    limit(mail, key_tokens=2, key_interval_us=HOUR_US, key_inflight=1)
    add("a0", "a1", "a2", "b0")
    assert sorted(row[0] for row in mail.run(leases.pop(mail.keys, 9))) == [b"a0", b"a1", b"b0"]


@pytest.mark.parametrize("limits", [{"fair": 1}, {"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": HOUR_US}])
def test_a_call_ends_with_the_round_of_turns_that_spent_its_bytes(mail, add, limits):
    limit(mail, **limits)
    keys = [chr(0x4E00 + n) for n in range(110)]
    add(*(f"{key}0" for key in keys), payload=b"x" * 1000)
    add("z1", priority=0)
    rounds = [[f"{key}0" for key in keys[at : at + 50]] for at in (0, 50, 100)]

    for ids in rounds[:2]:
        reply = mail.ask(999, most_bytes=1500)
        assert ([one.id for one in reply.attempts], reply.is_cut_short) == (ids, True)
    reply = mail.ask(20, most_bytes=20_000)
    assert ([one.id for one in reply.attempts], reply.is_cut_short) == ([*rounds[2], "z1"], False)


def test_a_pop_ends_with_the_round_of_turns_that_spent_its_bytes(mail, add):
    limit(mail, fair=1)
    add(*(f"{chr(0x4E00 + n)}0" for n in range(60)), payload=b"x" * 1000)

    found = [len(mail.run(leases.pop(mail.keys, 99, most_bytes=1))) for _ in range(3)]

    assert found == [50, 10, 0]


def test_turns_go_on_where_the_bytes_of_a_call_ended(mail, add):
    limit(mail, fair=1)
    keys = [chr(0x4E00 + n) for n in range(60)]
    add(*(f"{key}{n}" for key in keys for n in range(2)), payload=b"x" * 1000)

    found = [one.id for _ in range(3) for one in mail.ask(99, most_bytes=1).attempts]

    assert found == [f"{key}{n}" for n in range(2) for key in keys]


def test_sorted_tasks_still_wait_and_can_be_taken_out(mail, add):
    limit(mail, fair=1, key_inflight=1)
    add(*(f"a{n}" for n in range(5)), "b0")
    mail.reserve(1)
    found = mail.run(queues.counts(mail.keys))
    assert (found.waiting, found.pending) == (5, 1)
    mail.run(tasks.cancel(mail.keys, "a1", keep_ms=60_000))
    mail.raw.delete(mail.keys.task("a2"))
    mail.commit(*mail.reserve(9))
    mail.run(leases.pop(mail.keys, 1))
    assert mail.run(queues.purge(mail.keys, "waiting")) > 0
    assert mail.run(queues.counts(mail.keys)).waiting == 0
    assert mail.reserve(9) == []


def test_going_by_key_can_be_switched_off_and_on(mail, add):
    limit(mail, fair=1)
    add(*(f"a{n}" for n in range(4)), "b0", "b1")
    assert taken(mail, 2) == ["a0", "b0"]
    limit(mail, fair="")
    add("c0")
    assert taken(mail, 2) == ["a1", "a2"], "the order of the line"
    limit(mail, fair=1)
    assert taken(mail, 9) == ["a3", "b1", "c0"]


def test_a_queue_without_partitions_any_more_keeps_none_of_their_keys(mail, add):
    limit(mail, key_inflight=1)
    add("a0", "b0", "c0")
    assert taken(mail, 1) == ["a0"]
    add("a1")
    limit(mail, key_inflight=1, fair=1)
    limit(mail, max_inflight=1)
    assert taken(mail, 1) == []
    limit(mail, max_inflight="")
    mail.raw.zadd(mail.keys.base + b"mail:unsure", {"a": 1})
    limit(mail, key_inflight="", fair="")
    assert [taken(mail, 1) for _ in range(3)] == [["b0"], ["c0"], ["a1"]]
    assert taken(mail, 1) == []

    left = {key.removeprefix(mail.keys.base + b"mail:") for key in mail.raw.keys(mail.keys.base + b"mail:*")}
    assert left <= {b"arrival", b"counters", b"leases", b"pending", b"wake"}
    assert not mail.raw.hkeys(mail.keys.settings)


@pytest.mark.parametrize(
    ("waiting", "wanted", "got", "is_cut_short"), [(510, 505, 500, True), (3, 505, 3, False), (3, 2, 2, False)]
)
def test_a_queue_whose_partitions_end_hands_out_a_slice_and_has_the_worker_ask_again_for_the_rest(
    mail, add, clock, waiting, wanted, got, is_cut_short
):
    limit(mail, fair=1)
    add(*(f"{'abc'[n % 3]}{n}" for n in range(waiting)))
    limit(mail, fair="")

    reply = mail.ask(wanted)

    assert [one.id for one in reply.attempts] == [f"{'abc'[n % 3]}{n}" for n in range(got)]
    assert (reply.next_event_ms == clock.ms) == is_cut_short


def test_a_moved_or_requeued_task_keeps_its_key(line, mail, add):
    limit(mail, fair=1, key_inflight=1)
    add("a0", "a1", "b0", max_attempts=1)
    mail.fail(*mail.reserve(9))
    mail.run(tasks.requeue(mail.keys, ["a0"]))
    assert taken(mail, 9) == ["a1"], "a1 is in front of a0, and partition a may have one task in flight"


def test_many_keys_at_their_limits_hold_up_no_other(mail, add):
    limit(mail, key_inflight=1)
    numbers = itertools.product(range(700), (0, 1))
    sent = [Task(id=f"{n:04}-{m}", queue="mail", payload=b"", key=f"k{n}") for n, m in numbers]
    mail.run(new_tasks.enqueue(mail.keys, sent))
    first = {attempt.id for _ in range(9) for attempt in mail.reserve(200)}
    assert first == {f"{n:04}-0" for n in range(700)}
    mail.run(new_tasks.enqueue(mail.keys, [Task(id="late", queue="mail", payload=b"", key="late")]))
    assert [attempt.id for _ in range(4) for attempt in mail.reserve(9)] == ["late"]


def test_a_task_that_did_not_start_in_time_costs_its_key_nothing(mail, add, clock):
    limit(mail, key_inflight=1, fair=1)
    add("a0", "b0", expires_in_ms=1000)
    add("a1", "a2")
    clock.advance(1000)
    assert taken(mail, 1) == ["a1"]
    assert taken(mail, 9) == []
    assert mail.ids("dead") == ["a0", "b0"]


@pytest.mark.parametrize("limits", [{"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": HOUR_US}], ids=str)
def test_a_task_of_a_blocked_key_brings_it_into_no_rotation(mail, add, limits):
    limit(mail, **limits)
    add("a0", "a1")
    assert taken(mail, 9) == ["a0"]
    assert mail.raw.zrange(mail.keys.base + b"mail:blocked", 0, -1) == [b"a"]
    add("a2")
    add("a3", "a4")
    assert not mail.raw.exists(mail.keys.base + b"mail:rotation:0")


def test_the_next_task_of_a_key_at_its_limit_blocks_it_at_once(mail, add):
    limit(mail, key_inflight=1)
    add("a0")
    assert taken(mail) == ["a0"]
    add("a1")
    assert mail.raw.zrange(mail.keys.base + b"mail:blocked", 0, -1) == [b"a"]
    assert not mail.raw.exists(mail.keys.base + b"mail:rotation:0")


def test_a_pop_that_looked_at_some_of_the_keys_at_their_limit_says_that_there_may_be_more(mail):
    """It said that the queue was empty, though a pop takes no lease, and the keys may give tasks."""
    limit(mail, key_inflight=1, key_tokens=9, key_interval_us=HOUR_US)
    sent = [Task(id=f"{n}-{turn}", queue="mail", payload=b"", key=f"k{n:03}") for n in range(150) for turn in (0, 1)]
    for first in range(0, 300, 100):
        mail.run(new_tasks.enqueue(mail.keys, sent[first : first + 100]))
    while mail.reserve(100):
        pass
    assert mail.raw.zcard(mail.keys.base + b"mail:blocked") == 150
    for n in range(100):  # those that come first have no token either
        mail.raw.hset(mail.keys.base + b"mail:bucket:k%03d" % n, mapping={"level": 0})

    assert mail.run(leases.pop(mail.keys, 10)) is None
    assert len(mail.run(leases.pop(mail.keys, 10))) == 10


@pytest.mark.parametrize("way", ["purge", "remove"])
def test_a_key_that_many_tasks_leave_is_looked_at_once(mail, way):
    """Each task looked at up to four keys of its partition, and removed it from three sets: the server was blocked."""
    mail.configure(fair=1)
    sent = [Task(id=f"{n}", queue="mail", payload=b"", key=f"k{n % 20}") for n in range(60)]
    mail.run(new_tasks.enqueue(mail.keys, sent))
    mail.raw.config_resetstat()

    if way == "purge":
        assert mail.run(queues.purge(mail.keys, "waiting")) == 60
    else:
        assert mail.run(tasks.remove(mail.keys, [one.id for one in sent])) == ["ok"] * 60

    stats = mail.raw.info("commandstats")
    assert stats["cmdstat_exists"]["calls"] == 20
    assert mail.raw.keys(mail.keys.base + b"mail:rotation*") == mail.raw.keys(mail.keys.base + b"mail:partition*") == []


def test_a_removed_task_costs_its_key_nothing(mail, add):
    limit(mail, key_inflight=1)
    add("a0")
    assert mail.run(tasks.remove(mail.keys, ["a0"])) == ["ok"]
    assert taken(mail) == []
    assert not mail.raw.exists(mail.keys.base + b"mail:inflight")
    add("a1")
    assert taken(mail) == ["a1"]


@pytest.mark.parametrize("changed", [{"fair": 1}, {"key_tokens": 5, "key_interval_us": HOUR_US}], ids=str)
def test_a_key_that_is_at_its_limit_also_after_a_change_stays_blocked_and_comes_free_with_its_lease(
    mail, add, changed
):
    limit(mail, key_inflight=1)
    add("a0", "a1")
    (held,) = mail.reserve()
    assert taken(mail) == []
    limit(mail, **changed)
    assert taken(mail) == []
    assert mail.raw.zrange(mail.keys.base + b"mail:blocked", 0, -1) == [b"a"]
    mail.commit(held)
    assert taken(mail) == ["a1"]


def test_keys_that_an_earlier_call_left_unsure_are_checked(mail, add):
    limit(mail, key_inflight=1)
    add("a0", "a1")
    (held,) = mail.reserve()
    assert taken(mail) == []
    mail.commit(held)
    mail.raw.rename(mail.keys.base + b"mail:blocked", mail.keys.base + b"mail:unsure")
    assert taken(mail) == ["a1"]


def test_a_blocked_key_without_a_task_is_blocked_no_more_when_it_is_looked_at(mail, add):
    limit(mail, key_inflight=1)
    add("a0")
    assert taken(mail) == ["a0"]
    mail.raw.zadd(mail.keys.base + b"mail:blocked", {"a": 0})
    add("b0")
    assert taken(mail) == ["b0"]
    assert not mail.raw.exists(mail.keys.base + b"mail:blocked")


def test_a_server_that_is_full_hands_out_what_comes_free(mail, add, clock):
    limit(mail, key_tokens=1, key_interval_us=5_000_000)
    add("a0", "a1")
    assert taken(mail, 9) == ["a0"]
    clock.advance(5000)
    with full(mail):
        assert taken(mail, 9) == ["a1"]


def test_a_task_that_is_released_is_in_its_partition_at_once_where_keys_have_a_rate(mail, add):
    limit(mail, key_tokens=1, key_interval_us=HOUR_US)
    add("a0", "a1")
    (held,) = mail.reserve()
    mail.release(held)
    assert mail.raw.zrange(mail.keys.base + b"mail:partition:0:a", 0, -1) == [b"a0", b"a1"]
    assert not mail.raw.exists(mail.keys.base + b"mail:rotation:0")


def test_a_task_that_is_snoozed_for_no_time_is_in_its_partition_at_once(mail, add):
    limit(mail, fair=1)
    add("a0", "a1")
    (held,) = mail.reserve()
    mail.release(held, delay_ms=0)
    assert mail.raw.zrange(mail.keys.base + b"mail:partition:0:a", 0, -1) == [b"a1", b"a0"]


def test_a_server_that_is_full_hands_out_what_partitions_held(mail, add):
    limit(mail, fair=1)
    add("a0", "b0", "a1", "b1")
    with full(mail):
        assert taken(mail, 2) == ["a0", "b0"]
    limit(mail, fair="")
    with full(mail):
        assert taken(mail, 9) == ["a1", "b1"]


@pytest.mark.parametrize("limits", [{"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": HOUR_US}], ids=str)
def test_a_key_at_its_limit_is_blocked_when_a_task_of_it_comes_due(mail, add, clock, limits):
    limit(mail, **limits, keepalive_ms=60_000)
    add("a0")
    add("a1", delay_ms=1000)
    assert taken(mail) == ["a0"]
    clock.advance(1000)
    mail.run(queues.upkeep(mail.keys))

    assert mail.ids("waiting") == ["a1"]
    assert mail.raw.zrange(mail.keys.base + b"mail:blocked", 0, -1) == [b"a"]
    assert not mail.raw.exists(mail.keys.base + b"mail:rotation:0")


@pytest.mark.parametrize(("damage", "order"), [(None, ["a0", "a1"]), ("x", ["a0", "a1"]), (1e12, ["a0", "a1"])])
def test_a_task_returns_from_its_partition_to_its_place(mail, add, damage, order):
    limit(mail, fair=1)
    add("a0", "a1")
    if damage is not None:
        mail.raw.hset(mail.keys.task("a0"), "place", damage)
    limit(mail, fair="")
    assert [taken(mail) for _ in range(2)] == [[one] for one in order]


def test_a_cancelled_task_whose_lease_ended_frees_its_key(mail, add, clock):
    limit(mail, key_inflight=1, keepalive_ms=1000)
    add("a0", "b0")
    mail.reserve(2)
    clock.advance(1000)
    assert mail.run(tasks.cancel(mail.keys, "a0", keep_ms=0)) == "ok"
    assert mail.raw.hgetall(mail.keys.base + b"mail:inflight") == {b"b": b"1"}


@pytest.mark.parametrize(
    "changed", [{"key_inflight": 2}, {"key_tokens": 5}, {"key_interval_us": 1}, {"fair": 1}], ids=str
)
def test_a_change_of_a_limit_has_blocked_keys_checked_again(mail, changed):
    limit(mail, key_inflight=1, key_tokens=1, key_interval_us=HOUR_US)
    assert not mail.raw.hexists(mail.keys.settings, "recheck")
    limit(mail, key_inflight=1, max_inflight=7)
    assert not mail.raw.hexists(mail.keys.settings, "recheck"), "no limit of a key was changed"

    limit(mail, **changed)

    assert mail.raw.hexists(mail.keys.settings, "recheck") == ("fair" not in changed)


def test_a_damaged_task_is_dropped_and_costs_its_key_nothing(mail, add):
    limit(mail, key_inflight=1, fair=1)
    add("a0", "a1", "b0")
    mail.raw.delete(mail.keys.task("a0"))
    mail.raw.delete(mail.keys.task("b0"))
    mail.raw.set(mail.keys.task("b0"), "damage")
    assert taken(mail, 9) == ["a1"]
    assert mail.totals()["orphaned"] == 2


def test_a_commit_of_more_than_a_thousand_frees_the_places_of_all(mail):
    mail.configure(key_inflight=5000)
    mail.enqueue(*[f"t{n}" for n in range(1001)], key="k")
    held = [one for _ in range(5) for one in mail.reserve(500)]
    assert len(held) == 1001
    mail.run(leases.commit(mail.keys, [(one.id, one.token, 0, "succeeded", b"", b"", "") for one in held]))
    of_limits = [mail.keys.waiting.replace(b"waiting", name) for name in (b"inflight", b"holders")]
    assert mail.raw.exists(*of_limits) == 0


@pytest.mark.parametrize(
    "limits",
    [{"max_tokens": 1, "interval_us": HOUR_US}, {"max_inflight": 1}],
    ids=["rate", "max_inflight"],
)
def test_a_key_that_comes_free_is_not_polled_while_the_queue_is_at_its_own_limit(mail, add, clock, limits):
    """A worker asked every 10 ms for a key whose token had come, for as long as the queue itself had none."""
    limit(mail, key_tokens=1, key_interval_us=1_000_000, **limits)
    add("a1", "a2", "b1")
    assert taken(mail, 3) == ["a1"]
    clock.advance(2000)

    found = mail.ask(3)

    assert found.attempts == []
    assert found.next_event_ms == clock.ms + 28_000, "when the first lease ends, before the token of the queue"


def test_a_task_without_a_partition_ends_while_others_hold_their_partitions(mail, add):
    limit(mail, key_inflight=1)
    add("a1", "-1", "a2")
    held = {attempt.id: attempt for attempt in mail.reserve(3)}
    assert held.keys() == {"a1", "-1"}
    mail.commit(held["-1"])
    assert taken(mail) == []
    mail.commit(held["a1"])
    assert taken(mail) == ["a2"]
