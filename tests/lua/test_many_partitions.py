"""Runnable tasks are found at once behind many partitions at their limits and behind a long backlog of one partition.

Row R40 runs it with 100 000.
"""

import pytest

from jobrunner.broker.calls import leases, new_tasks, queues, tasks
from jobrunner.task import Task

MANY = 3000
HOUR_US = 3_600_000_000


def add(mail, *ids, **options):
    """Tasks whose partition is the part of the id before the dash."""
    sent = [Task(id=one, queue="mail", payload=b"", key=one.partition("-")[0], **options) for one in ids]
    for first in range(0, len(sent), 500):
        mail.run(new_tasks.enqueue(mail.keys, sent[first : first + 500]))


def limit(mail, **fields):
    mail.run(queues.configure(mail.keys, fields))


def leave_stale(mail, *task_ids):
    """Takes tasks out of the queue as 0.1.0 cancelled and deleted them: their partitions list them further."""
    mail.raw.zrem(mail.keys.waiting, *task_ids)
    mail.raw.delete(*(mail.keys.task(one) for one in task_ids))


def test_more_than_a_thousand_partitions_of_one_call_have_their_turns(mail):
    limit(mail, fair=1)
    sent = [Task(id=f"k{n}", queue="mail", payload=b"", key=f"k{n}") for n in range(1001)]
    mail.run(new_tasks.enqueue(mail.keys, sent))
    assert sum(len(mail.reserve(500)) for _ in range(4)) == 1001


def ids(attempts):
    return [attempt.id for attempt in attempts]


@pytest.fixture
def blocked(mail):
    """So many keys with one task running and one waiting. Returns what runs."""
    limit(mail, key_inflight=1, keepalive_ms=60_000)
    add(mail, *(f"k{n}-{m}" for n in range(MANY) for m in (0, 1)))
    held = []
    while got := mail.reserve(500):
        held += got
    assert len(held) == MANY
    return held


def test_a_call_is_answered_in_full_while_so_many_may_run(mail):
    limit(mail, key_inflight=1)
    add(mail, *(f"k{n}-0" for n in range(2000)))
    assert [len(mail.reserve(500)) for _ in range(5)] == [500, 500, 500, 500, 0]


def test_a_free_key_is_found_at_the_first_look_whatever_is_blocked(mail, blocked):
    assert mail.reserve() == []
    add(mail, *(f"k{n}-2" for n in range(MANY)), "new-0")
    assert ids(mail.reserve()) == ["new-0"]
    assert not mail.raw.exists(mail.keys.base + b"mail:rotation:0"), "no key is in it that is blocked or empty"


@pytest.mark.parametrize("fields", [{"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": HOUR_US}], ids=str)
def test_a_free_key_is_found_when_the_others_have_used_up_their_limit_before_more_comes(mail, fields):
    limit(mail, **fields, keepalive_ms=60_000)
    add(mail, *(f"k{n}-0" for n in range(MANY)))
    held = []
    while got := mail.reserve(500):
        held += got
    if "key_tokens" in fields:
        mail.commit(*held)
    add(mail, *(f"k{n}-1" for n in range(MANY)))

    for n in range(3):
        add(mail, f"new{n}-0")
        (new,) = mail.reserve()
        assert new.id == f"new{n}-0"
        mail.commit(new)
    if "key_inflight" in fields:
        mail.commit(held[7])
        assert ids(mail.reserve(9)) == [held[7].id.replace("-0", "-1")]


@pytest.mark.parametrize("way", ["commit", "fail", "release", "delete", "move"])
def test_a_report_lets_the_next_one_of_its_key_run(line, mail, blocked, way):
    one = blocked[MANY // 2]
    if way == "delete":
        mail.run(tasks.delete(mail.keys, one.id))
    elif way == "move":
        mail.run(leases.move(mail.keys, mail.keys, [(one.id, one.token, "", 0, ())]))
    else:
        getattr(mail, way)(one)
    assert [attempt.id.partition("-")[0] for attempt in mail.reserve(9)] == [one.id.partition("-")[0]]


def test_leases_that_end_free_their_keys(mail, blocked, clock):
    clock.advance(60_000)
    got = set()
    while found := mail.reserve(500):
        got |= {one.id.partition("-")[0] for one in found}
    assert len(got) == MANY


def test_a_raised_limit_and_none_at_all_free_all_keys(mail, blocked):
    add(mail, *(f"k{n}-2" for n in range(MANY)))
    for change in ({"key_inflight": 2}, {"key_inflight": "", "fair": 1}):
        limit(mail, **change)
        taken = 0
        for _ in range(100):
            reply = mail.ask(500)
            taken += len(reply.attempts)
            if not reply.attempts and reply.next_event_ms != reply.now_ms:
                break
        assert taken == MANY


def test_tokens_that_come_free_all_keys_at_once_by_the_slice(mail, clock):
    limit(mail, key_tokens=1, key_interval_us=HOUR_US, keepalive_ms=36_000_000)
    add(mail, *(f"k{n}-{m}" for n in range(MANY) for m in (0, 1)))
    while mail.reserve(500):
        pass
    assert mail.ask().next_event_ms == clock.ms + 3_600_000
    add(mail, "new-0")
    assert ids(mail.reserve()) == ["new-0"]
    clock.advance(3_600_000)
    assert sum(len(mail.reserve(500)) for _ in range(MANY // 500)) == MANY


def test_a_call_that_frees_a_slice_of_keys_without_a_task_says_that_there_are_more(mail, clock):
    limit(mail, key_tokens=1, key_interval_us=HOUR_US, keepalive_ms=36_000_000)
    add(mail, *(f"k{n:03}-{m}" for n in range(120) for m in (0, 1)))
    while mail.reserve(500):
        pass
    gone = [f"k{n:03}-1" for n in range(100)]
    mail.raw.zrem(mail.keys.waiting, *gone)
    mail.raw.delete(*[mail.keys.task(one) for one in gone])
    clock.advance(3_600_000)
    first = mail.ask(1)
    assert (ids(first.attempts), first.next_event_ms) == ([], clock.ms)
    assert len(mail.reserve(500)) == 20


def test_a_key_that_is_free_again_is_blocked_no_more(mail, clock):
    limit(mail, key_tokens=1, key_interval_us=5_000_000, keepalive_ms=60_000)
    add(mail, "a-0", "a-1")
    mail.reserve()
    assert mail.ask().next_event_ms == clock.ms + 5000
    clock.advance(5000)
    assert ids(mail.reserve()) == ["a-1"]
    assert mail.ask().next_event_ms == clock.ms + 55_000, "the end of the first lease"


def test_a_queue_with_partitions_in_which_nothing_waits_foresees_nothing(mail):
    limit(mail, fair=1)
    assert (mail.ask().attempts, mail.ask().next_event_ms) == ([], None)


def test_what_an_older_version_left_counted_is_freed_by_and_by(mail):
    limit(mail, key_inflight=1)
    add(mail, "a-0", "a-1")
    (held,) = mail.reserve()
    mail.raw.zrem(mail.keys.pending, held.id)
    mail.raw.zrem(mail.keys.leases, held.id)
    assert ids(mail.reserve()) == ["a-1"]


def test_a_ring_with_blocked_keys_of_an_older_version_is_cleared(mail, blocked):
    base = mail.keys.base + b"mail:"
    mail.raw.zunionstore(base + b"rotation:0", [base + b"blocked"])
    mail.raw.zadd(base + b"rotation:0", {f"k{n}": 0 for n in range(MANY)})
    mail.raw.delete(base + b"blocked")
    add(mail, "new-0")
    looks = 0
    while not (found := mail.ask()).attempts:
        looks += 1
        assert found.next_event_ms == found.now_ms, "a caller without a task polls again at once"
        assert looks < 20
    assert ids(found.attempts) == ["new-0"]


def test_who_comes_behind_a_backlog_of_one_key_has_the_next_turn(mail):
    limit(mail, fair=1)
    add(mail, *(f"a-{n}" for n in range(MANY)))
    mail.reserve()
    add(mail, "b-0", "b-1")
    assert ids(mail.reserve(4))[:3].count("b-0") == 1


def test_so_has_who_comes_behind_one_that_was_there_before_the_setting(mail):
    add(mail, *(f"a-{n:04}" for n in range(MANY)))
    limit(mail, fair=1)
    add(mail, "b-0")
    assert "b-0" in ids(mail.reserve(2))
    taken = ids(mail.reserve(1))
    while found := mail.reserve(400):
        taken += ids(found)
    assert len(taken) == MANY - 1


def test_a_retry_and_what_was_scheduled_have_their_turn_too(mail, clock):
    limit(mail, fair=1)
    add(mail, "b-0", "c-0")
    held = mail.reserve(2)
    add(mail, "d-0", delay_ms=10)
    add(mail, *(f"a-{n}" for n in range(MANY)))
    mail.fail(held[0])
    mail.release(held[1])
    clock.advance(10)
    assert {one.partition("-")[0] for one in ids(mail.reserve(4))} == {"a", "b", "c", "d"}


def test_switched_off_old_and_new_keep_the_order_of_the_line(mail):
    limit(mail, fair=1)
    add(mail, *(f"a-{n:04}" for n in range(MANY)))
    mail.reserve()
    limit(mail, fair="")
    add(mail, "high-0", priority=2)
    add(mail, "b-0")
    assert ids(mail.reserve(3)) == ["high-0", "a-0001", "a-0002"]
    taken = []
    while found := mail.reserve(700):
        taken += ids(found)
        if len(taken) < MANY:
            add(mail, f"n-{len(taken)}")
    assert taken[: MANY - 2] == [*(f"a-{n:04}" for n in range(3, MANY)), "b-0"], "steady load starves no partition"
    left = {key.rpartition(b":mail:")[2] for key in mail.raw.scan_iter(match=mail.keys.base + b"mail:*")}
    assert not [key for key in left if key.startswith((b"partition:", b"rotation:", b"blocked"))], "none is left behind"


def test_a_pop_takes_what_is_blocked_by_leases_only(mail, blocked):
    assert mail.run(leases.pop(mail.keys, 1))[0][0].endswith(b"-1")
    assert mail.reserve() == []


def test_stale_entries_of_a_key_do_not_keep_the_server(mail):
    limit(mail, fair=1)
    add(mail, *(f"a-{n}" for n in range(MANY)), "b-0")
    leave_stale(mail, *(f"a-{n}" for n in range(MANY)))
    found = [mail.reserve(5) for _ in range(MANY // 500 + 3)]
    assert [one.id for some in found for one in some] == ["b-0"]


def test_a_priority_that_changed_leaves_no_second_entry(mail):
    limit(mail, fair=1)
    add(mail, "a-0", priority=0)
    leave_stale(mail, "a-0")
    add(mail, "a-0", priority=2)
    add(mail, "b-0")
    assert ids(mail.reserve(9)) == ["a-0", "b-0"]


def test_an_entry_of_a_higher_priority_that_was_given_up_puts_nobody_in_front(mail):
    limit(mail, fair=1)
    add(mail, "a-0", priority=2)
    leave_stale(mail, "a-0")
    add(mail, "a-1", "a-0")
    assert ids(mail.reserve(9)) == ["a-1", "a-0"]


def test_a_call_looks_past_a_bounded_number_of_tasks_that_are_unfit(mail, clock):
    limit(mail, fair=1)
    add(mail, *(f"k-{n}" for n in range(600)), expires_in_ms=10)
    add(mail, "k-fit")
    clock.advance(10)

    reply = mail.ask()
    assert reply.attempts == []
    assert reply.next_event_ms == clock.ms
    assert len(mail.ids("waiting")) == 101
    assert ids(mail.reserve()) == ["k-fit"]


@pytest.mark.parametrize("blocked_by", [{"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": 5_000_000}], ids=str)
def test_a_reserve_says_when_a_limit_of_keys_lifts(mail, clock, blocked_by):
    limit(mail, **blocked_by, keepalive_ms=60_000)
    add(mail, "a-0", "a-1")
    assert ids(mail.reserve()) == ["a-0"]
    at = mail.ask().next_event_ms
    assert at == clock.ms + (5000 if "key_tokens" in blocked_by else 60_000), "a token, or else the end of the lease"


def test_a_reserve_of_a_queue_whose_keys_are_free_foresees_nothing_of_them(mail, clock):
    limit(mail, key_tokens=5, key_interval_us=5_000_000, max_tokens=1, interval_us=7_000_000, keepalive_ms=60_000)
    add(mail, "a-0", "b-0")
    assert ids(mail.reserve(9)) == ["a-0"]
    assert mail.ask().next_event_ms == clock.ms + 7000


def test_a_call_that_reads_a_bound_of_tasks_without_their_partitions_says_that_there_are_more(mail, clock):
    add(mail, *(f"k-{n}" for n in range(501)))
    limit(mail, fair=1)
    first = mail.ask(501)
    assert len(first.attempts) == 500
    assert first.next_event_ms == clock.ms
    assert len(mail.reserve(501)) == 1


def test_the_first_token_of_all_keys_is_the_one_foreseen(mail, clock):
    limit(mail, key_tokens=1, key_interval_us=5_000_000, keepalive_ms=60_000)
    for key in "ab":
        add(mail, f"{key}-0", f"{key}-1")
        assert ids(mail.reserve()) == [f"{key}-0"]
        clock.advance(1000)
    assert mail.ask().next_event_ms == clock.ms + 3000


def test_a_key_behind_more_stale_entries_than_one_call_reads_has_its_turn_in_the_next(mail):
    limit(mail, fair=1)
    add(mail, "k-0")
    mail.raw.zadd(mail.keys.base + b"mail:partition:0:k", {f"ghost{n}": n for n in range(600)})
    assert mail.reserve() == []
    assert ids(mail.reserve()) == ["k-0"]


def test_tasks_without_a_key_are_not_counted(mail):
    limit(mail, key_inflight=1)
    add(mail, "-0", "k-0")
    assert len(mail.reserve(2)) == 2
    assert mail.raw.hgetall(mail.keys.base + b"mail:holders") == {b"k-0": b"k"}
    assert mail.raw.hgetall(mail.keys.base + b"mail:inflight") == {b"k": b"1"}


def test_a_lease_that_ended_without_being_counted_off_is_counted_off_once(mail):
    """As an older version may end one: of its key, two others hold."""
    limit(mail, key_inflight=3)
    add(mail, "k-0")
    assert ids(mail.reserve()) == ["k-0"]
    mail.raw.hset(mail.keys.base + b"mail:inflight", "k", 3)
    mail.raw.zrem(mail.keys.pending, "k-0")
    add(mail, "k-1")
    assert ids(mail.reserve()) == ["k-1"]
    assert mail.raw.hgetall(mail.keys.base + b"mail:inflight") == {b"k": b"3"}
    assert mail.raw.hgetall(mail.keys.base + b"mail:holders") == {b"k-1": b"k"}


def test_the_level_of_a_rate_counts_in_tokens_when_the_interval_changes(mail, clock):
    limit(mail, max_tokens=4, interval_us=4_000_000)
    mail.enqueue(*"abcdefgh")
    assert len(mail.reserve(1)) == 1
    limit(mail, max_tokens=4, interval_us=8_000_000)
    assert len(mail.reserve(9)) == 3, "three were left"
    clock.advance(4000)
    assert len(mail.reserve(9)) == 2


@pytest.mark.parametrize("priority", [None, 0, 2])
def test_what_was_purged_keeps_nobody_from_what_comes_after_it(mail, priority):
    limit(mail, fair=1)
    add(mail, *(f"k{n % 3}-{n}" for n in range(1500)), priority=priority)
    mail.run(queues.configure(mail.keys, {"fair": ""}))
    add(mail, "k0-without")
    limit(mail, fair=1)
    while mail.run(queues.purge(mail.keys, "waiting", count=400)):
        pass
    assert indexes(mail) == set()

    add(mail, "k0-new", "k1-new", priority=priority)
    assert ids(mail.reserve(5)) == ["k0-new", "k1-new"]


def test_a_slice_of_a_purge_leaves_the_others_in_their_partitions(mail):
    limit(mail, fair=1)
    add(mail, "a-1", "b-1", "a-2", "b-2", "a-3", "b-3")
    left = [one.decode() for one in mail.raw.zrange(mail.keys.waiting, 3, -1)]
    mail.run(queues.purge(mail.keys, "waiting", count=3))
    assert sorted(ids(mail.reserve(6))) == sorted(left)
    assert indexes(mail) == set()


def test_a_queue_that_has_partitions_no_more_keeps_no_index_of_tasks_that_were_deleted(mail):
    """There are more partitions than one step unlinks, and each has another task that waits."""
    limit(mail, fair=1)
    add(mail, *(f"k{n}-{m}" for n in range(450) for m in (0, 1)))
    leave_stale(mail, *(f"k{n}-0" for n in range(450)))
    limit(mail, fair="")

    found = []
    while got := ids(mail.reserve(100)):
        found += got
    assert found == [f"k{n}-1" for n in range(450)]
    assert indexes(mail) == set()
    assert b"parked" not in mail.raw.hkeys(mail.keys.settings)


def indexes(mail):
    prefix = mail.keys.base + b"mail:"
    return {key.removeprefix(prefix) for key in mail.raw.keys(prefix + b"partition:*")}


WAYS_OUT = {
    "cancel": lambda mail, task_ids: [mail.run(tasks.cancel(mail.keys, one, keep_ms=1)) for one in task_ids],
    "remove": lambda mail, task_ids: mail.run(tasks.remove(mail.keys, task_ids)),
    "purge": lambda mail, task_ids: mail.run(queues.purge(mail.keys, "waiting", count=len(task_ids))),
}
LIMITS = [{"fair": 1}, {"key_inflight": 1}, {"key_tokens": 1, "key_interval_us": HOUR_US}]


@pytest.mark.parametrize("priority", [None, 0, 2])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("way", WAYS_OUT)
def test_tasks_that_leave_a_queue_leave_nothing_of_their_partitions(mail, way, limits, priority):
    """More than one call of a reserve would examine. The tasks of `a` are blocked when they leave."""
    limit(mail, keepalive_ms=60_000, **limits)
    add(mail, "a-first", priority=priority)
    mail.reserve()
    add(mail, *(f"{key}-{n}" for key in ("a", *(f"k{number}" for number in range(300))) for n in (0, 1)))
    add(mail, "a-2", "k0-2", priority=priority)
    mail.reserve(301 if limits == {"fair": 1} else 300)
    left = mail.ids("waiting")
    assert len(left) > 300

    WAYS_OUT[way](mail, left)

    assert (mail.ids("waiting"), traces(mail)) == ([], set())


@pytest.mark.parametrize(("stays", "leaves"), [(None, 2), (2, None), (0, 2), (2, 0), (0, None)])
@pytest.mark.parametrize("index", ["blocked", "unsure"])
def test_a_partition_whose_last_task_of_one_priority_leaves_is_blocked_for_the_others(mail, stays, leaves, index):
    limit(mail, key_inflight=1, keepalive_ms=60_000)
    add(mail, "a-0")
    mail.reserve()
    add(mail, "a-1", priority=stays)
    add(mail, "a-2", priority=leaves)
    add(mail, "b-0")
    blocked = mail.keys.base + b"mail:" + index.encode()
    if index == "unsure":
        mail.raw.rename(mail.keys.base + b"mail:blocked", blocked)

    mail.run(tasks.cancel(mail.keys, "a-2", keep_ms=1))
    assert mail.raw.zrange(blocked, 0, -1) == [b"a"]
    assert len([key for key in traces(mail) if key.endswith(b":a")]) == 1

    mail.run(tasks.cancel(mail.keys, "a-1", keep_ms=1))
    assert traces(mail) == {b"partition:0:b", b"rotation:0"}


def test_a_partition_keeps_its_turn_while_it_has_another_task(mail):
    limit(mail, fair=1)
    add(mail, "a-0", "a-1", "b-0", "b-1")
    assert ids(mail.reserve(1)) == ["a-0"]
    add(mail, "b-2")
    mail.run(tasks.cancel(mail.keys, "b-0", keep_ms=1))
    assert ids(mail.reserve(9)) == ["b-1", "a-1", "b-2"]


def test_a_reserve_of_an_empty_queue_drops_what_older_versions_left_of_its_partitions(mail):
    """More partitions than one call drops. Their rates go on."""
    limit(mail, key_tokens=2, key_interval_us=HOUR_US)
    add(mail, *(f"k{n}-{m}" for n in range(450) for m in (0, 1)), priority=2)
    assert len(mail.reserve(450)) == 450
    leave_stale(mail, *mail.ids("waiting"))
    assert len(traces(mail)) > 400

    assert [mail.reserve() for _ in range(4)] == [[]] * 4

    assert traces(mail) == set()
    assert len(mail.raw.keys(mail.keys.base + b"mail:bucket:*")) == 450


@pytest.mark.parametrize("index", ["rotation:-1", "rotation:0", "rotation:1", "blocked", "unsure"])
def test_a_reserve_of_an_empty_queue_drops_each_index_of_its_partitions(mail, index):
    limit(mail, fair=1)
    mail.raw.zadd(mail.keys.base + b"mail:" + index.encode(), {"a": 0})
    assert mail.reserve() == []
    assert traces(mail) == set()


def test_a_task_that_was_waiting_before_its_queue_had_partitions_leaves_those_of_others(mail):
    add(mail, "a-0")
    limit(mail, fair=1)
    add(mail, "a-1")
    before = traces(mail)
    mail.run(tasks.remove(mail.keys, ["a-0"]))
    assert traces(mail) == before
    assert ids(mail.reserve(9)) == ["a-1"]


def traces(mail):
    """Keys of the queue that exist only while tasks wait in partitions."""
    prefix = mail.keys.base + b"mail:"
    found = {key.removeprefix(prefix) for key in mail.raw.keys(prefix + b"*")}
    return {word for word in found if word.startswith((b"partition:", b"rotation:")) or word in (b"blocked", b"unsure")}
