"""reserve: waiting → pending, the first tasks of the queue, each under a lease of its own."""

import pytest

from jobrunner.broker.calls import leases
from jobrunner.errors import ServerRefused


def test_the_first_in_line_are_handed_out_in_order(mail):
    mail.enqueue(*"zmabc")

    assert [attempt.id for attempt in mail.reserve(3)] == ["z", "m", "a"]
    assert [attempt.id for attempt in mail.reserve(9)] == ["b", "c"]
    assert mail.reserve(9) == []


def test_a_task_is_in_pending_until_the_end_of_its_lease_and_nowhere_else(mail, clock):
    mail.enqueue("a", "b")
    mail.configure(keepalive_ms=7000)

    (attempt,) = mail.reserve()

    assert mail.scores("pending") == {"a": clock.ms + 7000}
    assert mail.scores("leases") == {"a": float(attempt.token)}
    assert mail.ids("waiting") == ["b"]


def test_an_attempt_says_what_its_task_says(mail, clock):
    mail.enqueue(
        "a", type="send", payload=b"\0\xff", keepalive_ms=2500, max_attempts=3, headers=b'{"x":"y"}', encoding="json"
    )

    (attempt,) = mail.reserve()

    assert (attempt.queue, attempt.id, attempt.type, attempt.payload) == ("mail", "a", "send", b"\0\xff")
    assert (attempt.number, attempt.retry_count, attempt.max_attempts) == (1, 0, 3)
    assert (attempt.keepalive_ms, attempt.deadline_ms) == (2500, clock.ms + 2500)
    assert (attempt.headers, attempt.encoding) == (b'{"x":"y"}', b"json")
    assert attempt.enqueue_time_ms == clock.ms
    assert mail.scores("pending") == {"a": attempt.deadline_ms}


def test_a_task_that_says_nothing_has_what_its_queue_says(mail, clock):
    mail.configure(keepalive_ms=4000, max_attempts=9)
    mail.enqueue("a")

    (attempt,) = mail.reserve()

    assert (attempt.keepalive_ms, attempt.deadline_ms, attempt.max_attempts) == (4000, clock.ms + 4000, 9)
    assert (attempt.type, attempt.headers, attempt.encoding) == ("", None, None)


def test_the_tasks_own_keepalive_goes_before_the_callers_before_the_queues(mail, clock):
    mail.configure(keepalive_ms=1000)
    mail.enqueue("own", keepalive_ms=3000)
    mail.enqueue("plain")

    mail.reserve(2, keepalive_ms=2000)
    assert mail.scores("pending") == {"plain": clock.ms + 2000, "own": clock.ms + 3000}
    mail.enqueue("other")
    mail.reserve()
    assert mail.scores("pending")["other"] == clock.ms + 1000


def test_every_lease_has_a_number_of_its_own(mail):
    mail.enqueue(*"abcdef")
    tokens = [attempt.token for count in (2, 3, 1) for attempt in mail.reserve(count)]

    assert len(set(tokens)) == 6


def test_attempts_count_what_ended_before(mail, clock):
    attempt = mail.lease("a")
    assert attempt.number == 1
    mail.fail(attempt)
    clock.advance(1)
    (attempt,) = mail.reserve()
    assert (attempt.number, attempt.retry_count) == (2, 1)
    clock.advance(30_000)
    (attempt,) = mail.reserve()
    assert (attempt.number, attempt.retry_count) == (3, 2)


def test_a_paused_queue_hands_nothing_out_and_says_when_to_look_again(mail, clock):
    mail.enqueue("a")
    mail.enqueue("later", delay_ms=700)
    mail.configure(paused=1)

    answer = mail.ask(5)

    assert answer.attempts == []
    assert answer.next_event_ms == clock.ms + 700
    assert mail.ids("waiting") == ["a"]


def test_a_paused_queue_still_does_its_upkeep(mail, clock):
    mail.enqueue("due", delay_ms=5)
    mail.lease("held")
    mail.configure(paused=1)
    clock.advance(30_000)

    mail.ask(1)

    assert set(mail.ids("waiting")) == {"due", "held"}
    assert mail.ids("pending") == []


def test_a_scheduled_task_is_handed_out_at_its_due_time_and_not_before(mail, clock):
    mail.enqueue("a", delay_ms=1000)

    clock.advance(999.999)
    assert mail.reserve() == []
    clock.advance(0.001)
    assert [attempt.id for attempt in mail.reserve()] == ["a"]


def test_due_order_decides_between_what_waits_and_what_was_scheduled(mail, clock):
    mail.enqueue("due third", delay_ms=300)
    mail.enqueue("due first", delay_ms=100)
    clock.advance(200)
    mail.enqueue("arrived second")
    clock.advance(200)
    mail.enqueue("arrived fourth")

    assert [attempt.id for attempt in mail.reserve(4)] == ["due first", "arrived second", "due third", "arrived fourth"]


def test_a_task_due_in_this_millisecond_goes_before_one_that_arrives_in_it(mail, clock):
    mail.enqueue("z due", delay_ms=100)
    clock.advance(100.3)
    mail.enqueue("a arrived")

    assert [attempt.id for attempt in mail.reserve(2)] == ["z due", "a arrived"]


def test_a_scheduled_task_has_its_priority_when_it_is_due(mail, clock):
    mail.enqueue("waits")
    mail.enqueue("urgent", delay_ms=10, priority=2)
    mail.enqueue("idle", delay_ms=10, priority=0)
    clock.advance(10)

    assert [attempt.id for attempt in mail.reserve(3)] == ["urgent", "waits", "idle"]


def test_a_lease_that_ended_gives_the_task_back_its_place(mail, clock):
    mail.enqueue("A", "B", "C")
    _, b = mail.reserve(2)
    mail.commit(b)
    clock.advance(30_000)
    mail.enqueue("D")

    assert mail.ids("waiting") == ["C", "D"], "nothing has happened yet"
    assert [attempt.id for attempt in mail.reserve(9)] == ["A", "C", "D"]


def test_a_lease_ends_at_its_deadline_exactly(mail, clock):
    mail.lease("a")

    clock.advance(29_999.999)
    assert mail.reserve() == []
    clock.advance(0.001)
    assert [attempt.number for attempt in mail.reserve()] == [2]


def test_a_task_that_dies_in_line_is_foreseen_to_leave_the_dead(mail, clock):
    mail.configure(dead_ttl_ms=9_000)
    mail.enqueue("a", expires_in_ms=10)
    clock.advance(10)
    answer = mail.ask()
    assert (answer.attempts, mail.ids("dead"), answer.next_event_ms) == ([], ["a"], clock.ms + 9_000)


def test_the_next_event_is_the_soonest_of_what_is_foreseen(mail, clock):
    assert mail.ask().next_event_ms is None
    mail.enqueue("later", delay_ms=50_000)
    assert mail.ask().next_event_ms == clock.ms + 50_000
    mail.lease("held")
    assert mail.ask().next_event_ms == clock.ms + 30_000
    mail.configure(dead_ttl_ms=20_000)
    mail.enqueue("doomed")
    mail.fail(*mail.reserve(), fate="dead")
    assert mail.ask().next_event_ms == clock.ms + 20_000


def test_the_answer_carries_the_clock(mail, clock):
    clock.set(1_700_000_000_000.125)
    assert mail.ask().now_ms == 1_700_000_000_000.125


def test_another_worker_is_woken_while_tasks_wait(mail):
    mail.enqueue("a", "b", "c")
    mail.wakes()

    mail.reserve(2)
    assert mail.wakes()
    mail.reserve(1)
    assert not mail.wakes()


def test_a_member_without_a_hash_is_dropped_and_counted(mail):
    mail.enqueue("a", "b")
    mail.raw.delete(mail.keys.task("a"))

    assert [attempt.id for attempt in mail.reserve(5)] == ["b"]
    assert mail.ids("waiting") == []
    assert mail.ids("pending") == ["b"]
    assert mail.totals()["orphaned"] == 1


def test_damaged_tasks_make_room_for_those_behind_them(mail):
    mail.enqueue(*(f"{n:03d}" for n in range(40)), "good")
    mail.raw.delete(*(mail.keys.task(f"{n:03d}") for n in range(40)))

    assert [attempt.id for attempt in mail.reserve()] == ["good"]
    assert mail.totals()["orphaned"] == 40


def test_a_page_of_damaged_tasks_is_left_in_bounded_slices(mail, clock):
    mail.enqueue(*(f"{n:04d}" for n in range(1200)), "good")
    mail.raw.delete(*(mail.keys.task(f"{n:04d}") for n in range(1200)))

    answer = mail.ask(1)
    assert answer.attempts == []
    assert answer.next_event_ms == clock.ms, "the caller is to come back at once"
    answers = [mail.reserve(1) for _ in range(2)]
    assert [attempt.id for attempts in answers for attempt in attempts] == ["good"]


def test_a_task_whose_key_has_another_type_is_dropped(mail):
    mail.enqueue("a", "b")
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "text")

    assert [attempt.id for attempt in mail.reserve(5)] == ["b"]
    assert mail.totals()["orphaned"] == 1
    assert not mail.raw.exists(mail.keys.task("a"))


@pytest.mark.parametrize("missing", ["type", "payload", "retry_count", "enqueue_time", "place", "queue", "id"])
def test_a_task_without_one_field_is_still_handed_out(mail, missing):
    mail.enqueue("a", type="send", payload=b"x")
    mail.raw.hdel(mail.keys.task("a"), missing)

    assert [attempt.id for attempt in mail.reserve()] == ["a"]


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf", "-inf", "1e999", "0x", " "])
@pytest.mark.parametrize(
    "field", ["keepalive_ms", "max_attempts", "retry_count", "enqueue_time", "expires_in_ms", "place", "priority"]
)
def test_a_field_that_is_no_number_reads_as_not_said(mail, clock, field, damage):
    mail.enqueue("a", keepalive_ms=9000)
    mail.raw.hset(mail.keys.task("a"), field, damage)

    (attempt,) = mail.reserve()

    assert attempt.deadline_ms == clock.ms + (30_000 if field == "keepalive_ms" else 9000)
    assert attempt.number == 1
    assert attempt.max_attempts == 5
    clock.advance(30_000)
    assert [again.id for again in mail.reserve()] == ["a"], "and its lease ends like any other"


def test_settings_that_are_no_numbers_read_as_defaults(mail, clock):
    mail.configure(keepalive_ms="nan", max_attempts="many", dead_ttl_ms="inf", dead_max="-")
    mail.enqueue("a")

    (attempt,) = mail.reserve()

    assert (attempt.deadline_ms, attempt.max_attempts) == (clock.ms + 30_000, 5)


def test_a_task_past_its_time_to_start_is_dead_and_the_next_is_handed_out(mail, clock):
    mail.enqueue("a", expires_in_ms=1000)
    mail.enqueue("b")
    clock.advance(1000)

    assert [attempt.id for attempt in mail.reserve()] == ["b"]
    assert mail.scores("dead") == {"a": clock.ms}
    assert mail.hash("a")["error"] == b"expired before it started"
    assert (mail.totals()["expired"], mail.totals()["dead"]) == (1, 1)


def test_a_task_may_start_until_the_very_end_of_its_time(mail, clock):
    mail.enqueue("a", expires_in_ms=1000)
    clock.advance(999.999)

    assert [attempt.id for attempt in mail.reserve()] == ["a"]


@pytest.mark.parametrize("take", ["reserve", "pop"])
@pytest.mark.parametrize("whose", ["the task's", "the queue's"])
@pytest.mark.parametrize("how", ["failed", "failed later", "lease ended", "snoozed"])
def test_a_task_that_started_in_time_does_not_expire_any_more(mail, clock, how, whose, take):
    if whose == "the queue's":
        mail.configure(expires_in_ms=1000)
    mail.enqueue("a", keepalive_ms=2000, **({"expires_in_ms": 1000} if whose == "the task's" else {}))
    (attempt,) = mail.reserve()
    if how == "snoozed":
        mail.release(attempt, delay_ms=1200)
    elif how != "lease ended":
        mail.fail(attempt, delay_ms=1200 if how == "failed later" else 0)
    clock.advance(2500)

    if take == "pop":
        assert [row[0] for row in mail.run(leases.pop(mail.keys, 1))] == [b"a"]
    else:
        assert [again.id for again in mail.reserve()] == ["a"]
    assert mail.ids("dead") == []


def test_a_task_that_was_handed_back_unbegun_still_expires(mail, clock):
    attempt = mail.lease("a", expires_in_ms=1000)
    mail.release(attempt)
    clock.advance(1000)

    assert mail.reserve() == []
    assert mail.ids("dead") == ["a"]


def test_a_queue_that_was_never_used_stays_without_keys(mail):
    assert mail.reserve(10) == []
    assert mail.snapshot() == {}


def test_many_tasks_fit_one_call(mail):
    ids = [f"{n:05d}" for n in range(9000, 0, -1)]
    mail.enqueue(*ids)

    assert [attempt.id for attempt in mail.reserve(9000)] == ids
    assert len(mail.ids("pending")) == len(mail.ids("leases")) == 9000


def test_a_server_that_is_full_still_hands_out(mail, clock):
    mail.lease("held")
    mail.enqueue("a", "b")
    mail.enqueue("due", delay_ms=1)
    clock.advance(40_000)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert {attempt.id for attempt in mail.reserve(5)} == {"a", "b", "due", "held"}
    finally:
        mail.raw.config_set("maxmemory", 0)


@pytest.mark.parametrize("denied", ["zadd", "hmget", "hgetall", "zrange", "zremrangebyrank", "zrem"])
def test_a_command_that_is_denied_half_way_loses_no_task(mail, weak_broker, clock, denied):
    mail.enqueue("a", "b")
    weak = weak_broker(f"-{denied}")

    with pytest.raises(ServerRefused):
        weak.run(leases.reserve(mail.keys, 2, token="weak"))

    assert set(mail.ids("waiting")) == {"a", "b"}
    clock.advance(30_000)
    assert {attempt.id for attempt in mail.reserve(9)} == {"a", "b"}


def test_a_pending_key_of_another_type_loses_no_task(mail):
    mail.enqueue("a", "b")
    mail.raw.set(mail.keys.leases, "damage")

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        mail.reserve(2)

    mail.raw.delete(mail.keys.leases)
    assert mail.ids("waiting") == ["a", "b"]


@pytest.mark.parametrize("priority", [None, 0, 2])
def test_an_attempt_knows_when_its_task_was_due(mail, clock, priority):
    began = clock.ms
    mail.enqueue("later", delay_ms=1000, priority=priority)
    mail.enqueue("now", priority=priority)
    clock.advance(5000)

    found = {attempt.id: attempt for attempt in mail.reserve(2)}

    assert found["later"].due_ms == pytest.approx(began + 1000, abs=1)
    assert (found["now"].due_ms, found["now"].enqueue_time_ms) == (0, began)


def test_a_task_that_is_tried_again_was_due_when_its_delay_ended(mail, clock):
    mail.fail(mail.lease("failed"), delay_ms=2000)
    mail.release(mail.lease("snoozed"), delay_ms=3000)
    began = clock.ms
    clock.advance(9000)

    due = {attempt.id: attempt.due_ms for attempt in mail.reserve(2)}

    assert due == {"failed": pytest.approx(began + 2000, abs=1), "snoozed": pytest.approx(began + 3000, abs=1)}


@pytest.mark.parametrize("damage", [b"-1", b"0", b"1e308", b"9" * 40, b"nan"])
def test_a_damaged_length_of_a_lease_counts_as_none(mail, raw, damage):
    mail.enqueue("a", "b")
    raw.hset(mail.keys.settings, "keepalive_ms", damage)
    raw.hset(mail.keys.task("b"), mapping={"keepalive_ms": damage, "more": 1})

    reservation = mail.run(leases.reserve(mail.keys, 2, token="t"))

    assert [attempt.keepalive_ms for attempt in reservation.attempts] == [30_000, 30_000]
    assert set(mail.scores("pending").values()) == {reservation.now_ms + 30_000}


@pytest.mark.parametrize("length", [1, 31_536_000_000])
def test_the_shortest_and_the_longest_lease_that_there_may_be(mail, raw, length):
    mail.enqueue("a")
    raw.hset(mail.keys.settings, "keepalive_ms", length)

    reservation = mail.run(leases.reserve(mail.keys, 1, token="t"))

    assert [attempt.keepalive_ms for attempt in reservation.attempts] == [length]


@pytest.mark.parametrize("limits", [{"keepalive_ms": 30_000}, {"max_tokens": 100, "interval_ms": 1000}])
def test_large_payloads_are_handed_out_a_mib_at_a_time(mail, limits):
    mail.configure(**limits)
    for n in range(7):
        mail.enqueue(f"t{n}", payload=b"x" * (400_000 if n else 3_000_000))
    found = []
    for ids in (["t0"], ["t1", "t2", "t3"], ["t4", "t5", "t6"]):
        reply = mail.ask(7, most_bytes=1 << 20)
        assert [one.id for one in reply.attempts] == ids
        found += reply.attempts
        assert reply.next_event_ms == reply.now_ms, "there may be more now"
    assert mail.ask(7, most_bytes=1 << 20).attempts == []
    assert mail.ids("waiting") == []
    assert mail.commit(*found) == ["ok"] * 7


def test_who_got_all_that_was_asked_for_was_not_cut_short(mail):
    mail.enqueue("a", payload=b"x" * 2_000_000)
    assert mail.ask(1, most_bytes=1 << 20).next_event_ms is None


def test_one_that_cannot_be_handed_out_is_passed_by_before_the_limit(mail):
    mail.enqueue("a", "b", "c", payload=b"x" * 600_000)
    mail.raw.delete(mail.keys.task("a"))
    assert [one.id for one in mail.ask(5, most_bytes=1 << 20).attempts] == ["b", "c"]
    assert mail.ids("waiting") == []


def test_another_is_woken_while_tasks_wait_that_a_reply_had_no_bytes_for(mail):
    mail.enqueue("a", "b", payload=b"x" * 1000)
    mail.wakes()

    assert [one.id for one in mail.ask(5, most_bytes=1000).attempts] == ["a"]
    assert mail.wakes()
    mail.ask(5, most_bytes=1000)
    assert not mail.wakes()


def test_the_answer_foretells_when_the_first_of_its_own_leases_ends(mail, clock):
    mail.enqueue("a")
    mail.enqueue("b", keepalive_ms=2_000)
    mail.enqueue("c", keepalive_ms=3_000)
    assert mail.ask(5).next_event_ms == clock.ms + 2_000
