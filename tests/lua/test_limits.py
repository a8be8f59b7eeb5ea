"""Limits of a queue: room for leases, tokens, pauses, size: judged where tasks are handed out or added."""

import pytest

from jobrunner.broker.calls import leases, new_tasks, queues, tasks
from jobrunner.errors import QueueFull
from jobrunner.task import Task

HOUR_US = 3_600_000_000


def limit(mail, **fields):
    mail.run(queues.configure(mail.keys, fields))


def fill(mail, count):
    mail.run(new_tasks.enqueue(mail.keys, [Task(id=f"t{n:04}", queue="mail", payload=b"") for n in range(count)]))


def test_there_are_never_more_leases_than_max_inflight(mail):
    limit(mail, max_inflight=5)
    fill(mail, 8)

    held = mail.reserve(3)
    assert len(mail.reserve(9)) == 2
    assert mail.reserve(9) == []

    mail.commit(held[0])
    mail.fail(held[1])
    mail.release(held[2])
    assert [attempt.id for attempt in mail.reserve(9)] == ["t0002", "t0005", "t0006"]


def test_a_shard_keeps_to_its_slice_of_the_limits_of_its_queue(mail):
    limit(mail, max_inflight=5, slice_inflight=2)
    fill(mail, 8)
    assert len(mail.reserve(9)) == 2

    limit(mail, max_inflight="", slice_inflight="", max_tokens=5, slice_tokens=3, interval_us=HOUR_US)
    assert len(mail.reserve(9)) == 3
    assert mail.reserve(9) == []


def test_a_worker_is_not_to_ask_again_for_a_token_that_is_left(mail, clock):
    limit(mail, max_tokens=2, interval_us=1_000_000, keepalive_ms=60_000)
    fill(mail, 1)
    assert mail.ask(2).next_event_ms == clock.ms + 60_000, "the end of the lease"

    fill(mail, 3)
    assert mail.ask(2).next_event_ms == clock.ms + 500, "the next token"


def test_a_lease_that_ended_makes_room_in_the_same_call(mail, clock):
    limit(mail, max_inflight=1, keepalive_ms=1000)
    fill(mail, 2)
    mail.reserve(1)

    clock.advance(1000)

    assert [attempt.id for attempt in mail.reserve(9)] == ["t0000"]


def test_a_lowered_limit_takes_nothing_back_and_hands_nothing_out(mail):
    fill(mail, 10)
    held = mail.reserve(8)
    limit(mail, max_inflight=5)

    mail.commit(*held[:3])
    assert mail.reserve(9) == []
    mail.commit(held[3])
    assert len(mail.reserve(9)) == 1


def test_what_leaves_a_capped_queue_wakes_a_sleeper(mail, line):
    limit(mail, max_inflight=1)
    fill(mail, 9)
    for leave in (mail.commit, mail.fail, mail.release, lambda held: mail.run(tasks.delete(mail.keys, held.id))):
        (held,) = mail.reserve()
        mail.wakes()
        leave(held)
        assert mail.wakes()
    mail.reserve()
    mail.wakes()


def test_an_uncapped_queue_wakes_nobody_for_a_commit(mail):
    fill(mail, 1)
    (held,) = mail.reserve()
    mail.wakes()
    mail.commit(held)
    assert not mail.wakes()


@pytest.mark.parametrize(
    ("tokens", "interval_us", "each_us"), [(15, HOUR_US, 240e6), (1000, 1e6, 1e3), (2000, 60e6, 30e3)]
)
def test_a_full_bucket_may_be_spent_at_once_and_refills_evenly(mail, clock, tokens, interval_us, each_us):
    """MDQ-14, MDQ-16: a token of 15 an hour is there at 240 s, and not a microsecond before."""
    limit(mail, max_tokens=tokens, interval_us=int(interval_us))
    fill(mail, tokens + 10)

    assert len(mail.reserve(tokens + 10)) == tokens
    clock.advance((each_us - 1) / 1000)
    assert mail.reserve(9) == []
    clock.advance(1 / 1000)
    assert len(mail.reserve(9)) == 1
    clock.advance(3 * each_us / 1000)
    assert len(mail.reserve(9)) == 3


def test_a_bucket_is_never_fuller_than_full(mail, clock):
    """MDQ-13: five hours of 15 an hour are 15."""
    limit(mail, max_tokens=15, interval_us=HOUR_US)
    fill(mail, 99)
    assert len(mail.reserve(99)) == 15
    clock.advance(5 * 3_600_000)
    assert len(mail.reserve(99)) == 15


@pytest.mark.parametrize(("tokens", "interval_s", "total"), [(1, 1, 61), (10, 10, 70)])
def test_one_rate_with_two_bursts(mail, clock, tokens, interval_s, total):
    """MDQ-18: in 60 s, asked each second, at most the bucket and 60 more."""
    limit(mail, max_tokens=tokens, interval_us=interval_s * 1_000_000)
    fill(mail, 200)
    taken = 0
    for _ in range(61):
        taken += len(mail.reserve(200))
        clock.advance(1000)
    assert taken == total


def test_a_window_has_no_edge(mail, clock):
    """MDQ-12: ten at 9.9 s leave nothing for 10.1 s."""
    limit(mail, max_tokens=10, interval_us=10_000_000)
    fill(mail, 30)
    clock.advance(9900)
    assert len(mail.reserve(10)) == 10
    clock.advance(200)
    assert mail.reserve(10) == []


def test_no_token_is_burnt_by_another_limit(mail):
    """MDQ-19: three leases cost three tokens, an empty answer none."""
    limit(mail, max_tokens=100, interval_us=1_000_000, max_inflight=3)
    fill(mail, 50)
    assert len(mail.reserve(50)) == 3
    assert mail.reserve(50) == []
    assert float(mail.raw.hget(mail.keys.bucket, "level")) == 97 * 1_000_000


def test_a_task_that_cannot_be_handed_out_costs_no_token(mail):
    limit(mail, max_tokens=2, interval_us=HOUR_US)
    fill(mail, 4)
    mail.raw.delete(mail.keys.task("t0000"))
    assert [attempt.id for attempt in mail.reserve(9)] == ["t0001", "t0002"]


@pytest.mark.parametrize("delay_ms", ["", "~0"], ids=["to its place", "of an unknown job"])
@pytest.mark.parametrize("fields", [{"max_tokens": 4}, {"max_tokens": 9, "slice_tokens": 4}], ids=["queue", "shard"])
def test_a_task_that_is_handed_back_unbegun_costs_no_token(mail, delay_ms, fields):
    """As by a worker that stops: with few tokens an hour, a deployment held the queue up for long."""
    limit(mail, interval_us=HOUR_US, **fields)
    fill(mail, 9)
    held = mail.reserve(9)
    assert len(held) == 4
    mail.release(held[0], held[1], delay_ms=delay_ms)
    mail.release(held[0], held[1], delay_ms=delay_ms)  # again, as its reply was lost
    assert len(mail.reserve(9)) == 2


@pytest.mark.parametrize("delay_ms", ["", "~0"], ids=["to its place", "of an unknown job"])
def test_one_task_that_is_handed_back_unbegun_returns_its_token(mail, delay_ms):
    limit(mail, max_tokens=2, interval_us=HOUR_US)
    fill(mail, 3)
    mail.release(mail.reserve(2)[0], delay_ms=delay_ms)
    assert len(mail.reserve(3)) == 1


@pytest.mark.parametrize("delay_ms", ["!", 0], ids=["to its place", "to the end"])
def test_a_task_that_had_begun_keeps_its_token(mail, delay_ms):
    limit(mail, max_tokens=4, interval_us=HOUR_US)
    fill(mail, 9)
    mail.release(*mail.reserve(9), delay_ms=delay_ms)
    assert mail.reserve(9) == []


def test_a_bucket_that_takes_tokens_back_is_never_fuller_than_full(mail, clock):
    limit(mail, max_tokens=4, interval_us=HOUR_US)
    fill(mail, 9)
    held = mail.reserve(4)
    clock.advance(3_600_000)
    mail.release(*held)
    assert len(mail.reserve(9)) == 4


def test_a_partition_gets_its_tokens_back_too(mail, clock):
    limit(mail, key_tokens=2, key_interval_us=HOUR_US)
    for key in ("a", "b"):
        sent = [Task(id=f"{key}{n}", queue="mail", payload=b"", key=key) for n in range(4)]
        mail.run(new_tasks.enqueue(mail.keys, sent))
    mail.enqueue("free")
    held = {attempt.id: attempt for attempt in mail.reserve(9)}
    assert sorted(held) == ["a0", "a1", "b0", "b1", "free"]
    assert mail.reserve(9) == []

    mail.release(held["a0"], held["a1"], held["free"])
    mail.release(held["b0"], delay_ms="!")
    assert sorted(attempt.id for attempt in mail.reserve(9)) == ["a0", "a1", "free"]
    assert 0 < mail.raw.pttl(mail.keys.bucket + b":a") <= 2 * 3_600_000


@pytest.mark.parametrize("step_ms", [-5000, -3_600_000])
def test_a_clock_that_steps_back_neither_fills_nor_drains(mail, clock, step_ms):
    """MDQ-29"""
    limit(mail, max_tokens=10, interval_us=10_000_000)
    fill(mail, 40)
    assert len(mail.reserve(7)) == 7
    clock.advance(step_ms)
    assert len(mail.reserve(9)) == 3
    clock.advance(1000)
    assert len(mail.reserve(9)) == 1


def test_an_empty_bucket_fills_on_after_a_clock_stepped_back(mail, clock):
    """Nothing is handed out that would write the bucket, so the refusal notes from when on tokens flow."""
    limit(mail, max_tokens=10, interval_us=10_000_000)
    fill(mail, 40)
    assert len(mail.reserve(40)) == 10
    clock.advance(-5000)
    assert mail.reserve(9) == []
    clock.advance(2000)
    assert len(mail.reserve(9)) == 2


def test_partitions_that_wait_for_a_token_get_it_after_a_clock_stepped_back(mail, clock):
    """And no more than it should, nor more leases than it may."""
    limit(mail, key_tokens=2, key_interval_us=10_000_000, key_inflight=5)
    for key in ("a", "b"):
        sent = [Task(id=f"{key}{n}", queue="mail", payload=b"", key=key) for n in range(9)]
        mail.run(new_tasks.enqueue(mail.keys, sent))
    assert len(mail.reserve(9)) == 4
    clock.advance(-600_000)
    assert mail.reserve(9) == []
    clock.advance(4900)
    assert mail.reserve(9) == []
    clock.advance(200)
    assert sorted(attempt.id for attempt in mail.reserve(9)) == ["a2", "b2"]
    clock.advance(10_000)
    assert sorted(attempt.id for attempt in mail.reserve(9)) == ["a3", "a4", "b3", "b4"]
    clock.advance(10_000)
    assert mail.reserve(9) == []


def test_many_partitions_get_their_tokens_after_a_clock_stepped_back(mail, clock):
    limit(mail, key_tokens=1, key_interval_us=1_000_000)
    sent = [Task(id=f"{key}-{n}", queue="mail", payload=b"", key=str(key)) for key in range(450) for n in range(2)]
    mail.run(new_tasks.enqueue(mail.keys, sent))
    assert len(mail.reserve(450)) == 450
    clock.advance(-600_000)
    for _ in range(5):
        assert mail.reserve(450) == []
    clock.advance(1000)
    assert sum(len(mail.reserve(450)) for _ in range(5)) == 450


@pytest.mark.parametrize("field", ["level", "at", "interval"])
@pytest.mark.parametrize("damage", [None, "x"])
def test_a_damaged_bucket_is_full(mail, field, damage):
    limit(mail, max_tokens=2, interval_us=HOUR_US)
    fill(mail, 9)
    assert len(mail.reserve(9)) == 2
    mail.raw.hdel(mail.keys.bucket, field)
    if damage:
        mail.raw.hset(mail.keys.bucket, field, damage)
    assert len(mail.reserve(9)) == 2
    assert mail.reserve(9) == []


def test_a_bucket_keeps_its_level_when_the_rate_changes(mail, clock):
    limit(mail, max_tokens=10, interval_us=10_000_000)
    fill(mail, 40)
    mail.reserve(10)
    limit(mail, max_tokens=20, interval_us=HOUR_US)
    assert mail.reserve(9) == []
    clock.advance(180_000)
    assert len(mail.reserve(9)) == 1


def test_popping_takes_tokens_but_no_room(mail):
    limit(mail, max_tokens=3, interval_us=HOUR_US, max_inflight=1)
    fill(mail, 9)
    assert len(mail.run(leases.pop(mail.keys, 9))) == 3
    assert mail.run(leases.pop(mail.keys, 9)) == []


def test_the_answer_foretells_when_a_limit_lifts(mail, clock):
    limit(mail, max_tokens=1, interval_us=4_000_000)
    fill(mail, 3)
    assert mail.ask(1).next_event_ms is None or mail.ids("waiting")
    assert mail.ask(1).next_event_ms == clock.ms + 4000
    limit(mail, max_tokens=1, interval_us=1_000)
    clock.advance(1)
    mail.reserve(1)
    found = mail.ask(5).next_event_ms
    assert found is not None
    assert clock.ms < found <= clock.ms + 11


def test_a_pause_with_an_end_ends(mail, clock):
    fill(mail, 1)
    limit(mail, paused="+5000")
    assert mail.run(queues.counts(mail.keys)).paused
    assert mail.ask(1).next_event_ms == clock.ms + 5000
    clock.advance(4999.999)
    assert mail.reserve() == []
    clock.advance(0.001)
    assert not mail.run(queues.counts(mail.keys)).paused
    assert len(mail.reserve()) == 1


def test_a_paused_queue_is_not_looked_at_again_when_its_bucket_has_a_token(mail, clock):
    limit(mail, max_tokens=1, interval_us=1_000_000)
    fill(mail, 3)
    mail.reserve()
    limit(mail, paused="+5000")
    assert mail.ask().next_event_ms == clock.ms + 5000


def test_a_full_queue_refuses_the_whole_batch(mail, clock):
    limit(mail, max_size=3)
    fill(mail, 2)
    before = mail.snapshot()
    with pytest.raises(QueueFull, match=r"'mail' has no room for 2 more: it may hold 3 .*; try again") as full:
        mail.enqueue("x", "y")
    assert (full.value.queue, full.value.max_size, full.value.wanted) == ("mail", 3, 2)
    with pytest.raises(QueueFull, match=r"no room for 4 more: .*; send at most 3 at once, or raise max_size"):
        mail.enqueue("w", "x", "y", "z")
    assert mail.snapshot() == before

    assert mail.enqueue("x") == [True]
    assert mail.enqueue("x") == [False], "a task that is there already needs no capacity"
    with pytest.raises(QueueFull):
        mail.enqueue("late", delay_ms=1000)
    mail.reserve(1)
    assert mail.enqueue("y") == [True]


@pytest.mark.parametrize("damage", ["abc", "nan", "-"])
def test_a_size_that_is_no_number_is_none(mail, damage):
    mail.configure(max_size=damage)
    fill(mail, 3)
    assert len(mail.reserve(9)) == 3


def test_a_queue_over_its_size_takes_an_enqueue_of_what_is_there(mail):
    fill(mail, 3)
    limit(mail, max_size=1)
    same = Task(id="t0001", queue="mail", payload=b"")
    assert mail.run(new_tasks.enqueue(mail.keys, [same])) == [False]


def test_a_move_into_a_full_queue_is_refused_and_the_lease_stays(line):
    """KEU-34"""
    raw, packed = line("orders/raw"), line("orders/packed")
    raw.enqueue("a")
    packed.enqueue("b")
    limit(packed, max_size=1)
    (held,) = raw.reserve()
    moved = raw.run(leases.move(raw.keys, packed.keys, [(held.id, held.token, "", 0, ())]))
    assert moved == ["full"]
    assert raw.ids("pending") == ["a"]
    assert raw.commit(held) == ["ok"]


def test_a_task_without_a_word_of_its_own_expires_as_its_queue_says(mail, clock):
    """MOABX-05: also while it was delayed."""
    limit(mail, expires_in_ms=1000)
    mail.enqueue("now")
    mail.enqueue("later", delay_ms=2000)
    mail.enqueue("patient", expires_in_ms=9000)
    clock.advance(2000)
    assert [attempt.id for attempt in mail.reserve(9)] == ["patient"]
    assert sorted(mail.ids("dead")) == ["later", "now"]
    assert mail.hash("later")["error"] == b"expired before it started"
    mail.run(tasks.requeue(mail.keys, ["now"]))
    assert [attempt.id for attempt in mail.reserve(9)] == ["now"]


def test_where_no_dead_are_kept_they_are_gone_at_once(mail):
    """MOABX-03"""
    limit(mail, dead_ttl_ms=0)
    held = mail.lease("a")
    assert mail.fail(held, fate="dead") == ["dead"]
    assert (mail.hash("a"), mail.ids("dead")) == ({}, [])
    assert (mail.totals()["dead"], mail.totals()["trimmed"]) == (1, 1)


def test_deaths_that_no_leader_reads_are_kept_for_a_day(mail):
    mail.fail(mail.lease("a"), fate="dead")
    assert 86_000_000 < mail.raw.pttl(mail.keys.deaths) <= 86_400_000


def test_a_thousand_deaths_are_kept_for_the_events_of_the_leader(mail):
    mail.raw.rpush(mail.keys.deaths, *(["x"] * 999))
    for name in "ab":
        mail.fail(mail.lease(name), fate="dead")
    assert mail.raw.llen(mail.keys.deaths) == 1000
    assert mail.raw.lindex(mail.keys.deaths, -1).startswith(b"a\t")


def test_the_dead_are_forwarded_in_the_same_step(line, clock):
    """D-13"""
    raw, failed = line("orders/raw"), line("orders/failed")
    limit(raw, dead_letter_queue="orders/failed", max_attempts=1, keepalive_ms=1000)
    raw.enqueue("told", "silent", payload=b"x")
    told, _ = raw.reserve(2)
    clock.advance(5)
    raw.fail(told, error="why")
    clock.advance(1000)
    assert raw.reserve(9) == []

    assert failed.ids("waiting") == ["told", "silent"]
    assert raw.ids("dead") == raw.ids("pending") == []
    assert failed.wakes()
    found = failed.hash("told")
    assert (found["queue"], found["error"], found["retry_count"]) == (b"orders/failed", b"why", b"0")
    assert float(found["place"]) == failed.scores("waiting")["told"], "where a release puts it back"
    assert (found["more"], failed.hash("silent")["more"]) == (b"1", b"1"), "a reserve is to read all of its fields"
    assert (raw.totals()["dead"], raw.totals()["moved_out"], failed.totals()["moved_in"]) == (2, 2, 2)
    assert failed.reserve()[0].payload == b"x"


def test_a_forwarded_task_begins_anew_and_does_not_expire_in_the_queue_of_the_dead(line, clock):
    raw, failed = line("orders/raw"), line("orders/failed")
    limit(raw, dead_letter_queue="orders/failed", max_attempts=1)
    held = raw.lease("a", expires_in_ms=1000)
    raw.raw.hset(raw.keys.task("a"), mapping={"expiries": 1, "suspect": 1, "unknown_since": 1, "lock": "digest"})
    raw.fail(held, fate="unbegun")
    clock.advance(2000)

    assert not failed.hash("a").keys() & {"expires_in_ms", "expiries", "suspect", "unknown_since", "lock"}
    assert [one.id for one in failed.reserve()] == ["a"]


def test_a_suspect_whose_lease_ends_is_none_in_the_queue_of_the_dead(line, clock):
    raw, failed = line("orders/raw"), line("orders/failed")
    limit(raw, dead_letter_queue="orders/failed", max_attempts=1, keepalive_ms=1000)
    raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), "suspect", 1)
    clock.advance(1000)
    raw.reserve()
    assert (failed.ids("waiting"), "suspect" in failed.hash("a")) == (["a"], False)


def test_two_queues_that_forward_to_each_other_come_to_an_end(line):
    there, back = line("loop/a"), line("loop/b")
    limit(there, dead_letter_queue="loop/b", max_attempts=1)
    limit(back, dead_letter_queue="loop/a", max_attempts=1)
    there.enqueue("a")
    for _ in range(50):
        for here in (there, back):
            here.fail(*here.reserve())
    assert there.ids("waiting") == ["a"]
    there.fail(*there.reserve())
    assert there.ids("dead") == ["a"]


def test_a_forwarded_task_keeps_its_priority(line):
    raw, failed = line("orders/raw"), line("orders/failed")
    limit(raw, dead_letter_queue="orders/failed", max_attempts=1)
    failed.enqueue("there")
    raw.fail(raw.lease("urgent", priority=2), raw.lease("usual"), raw.lease("last", priority=0))
    assert failed.ids("waiting") == ["urgent", "there", "usual", "last"]


def test_what_comes_after_a_forwarded_task_is_behind_it(line):
    raw, failed = line("orders/raw"), line("orders/failed")
    limit(raw, dead_letter_queue="orders/failed", max_attempts=1)
    raw.fail(raw.lease("z"))
    failed.enqueue("a")
    assert failed.ids("waiting") == ["z", "a"]


@pytest.mark.parametrize("paused", ["", "1"])
def test_a_limit_far_below_what_is_leased_is_not_asked_again_at_once(mail, clock, paused):
    """The bound on one call was below 0, so each reserve said "ask again at once": 600 times as many commands."""
    fill(mail, 520)
    assert len(mail.reserve(512)) == 512
    limit(mail, max_inflight=5, paused=paused)

    found = mail.ask(8)

    assert (found.attempts, found.is_cut_short) == ([], False)
    assert found.next_event_ms == clock.ms + 30_000, "when the first lease ends"
