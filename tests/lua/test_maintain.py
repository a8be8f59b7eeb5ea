"""maintain: due scheduled → waiting, ended leases → waiting or dead, dead past their time → deleted."""

import pytest

from jobrunner.broker.calls import queues
from jobrunner.errors import ServerRefused
from jobrunner.settings import DEFAULT_RESULT_TTL_S


def kept_up(mail):
    return mail.run(queues.upkeep(mail.keys))


def test_nothing_to_do_is_no_change(mail, clock):
    mail.enqueue("later", delay_ms=100)
    mail.lease("held")
    before = mail.snapshot()

    done = kept_up(mail)

    assert (done.now_ms, done.next_event_ms, done.moved) == (clock.ms, clock.ms + 100, 0)
    assert mail.snapshot() == before


def test_a_queue_that_was_never_used_stays_without_keys(mail):
    assert kept_up(mail).next_event_ms is None
    assert mail.snapshot() == {}


def test_a_due_task_waits_at_its_due_place_and_one_worker_is_woken(mail, clock):
    due = clock.ms + 100
    mail.enqueue("z", "a", delay_ms=100)
    mail.wakes()
    clock.advance(100)

    assert kept_up(mail).moved == 2
    assert mail.ids("waiting") == ["z", "a"]
    assert mail.scores("waiting")["z"] == due
    assert mail.ids("scheduled") == []
    assert mail.wakes()


def test_every_task_of_one_instant_is_due_at_that_instant(mail, clock):
    mail.enqueue(*(f"{n:02d}" for n in range(90)), delay_ms=100)
    clock.advance(99.999)
    assert kept_up(mail).moved == 0
    clock.advance(0.001)
    assert kept_up(mail).moved == 90


def test_a_lease_that_ended_counts_as_a_failed_attempt_and_keeps_its_place(mail, clock):
    mail.enqueue("a", "b")
    before = mail.scores("waiting")
    mail.reserve()
    mail.wakes()
    clock.advance(30_000)

    assert kept_up(mail).moved == 1

    assert mail.scores("waiting") == before
    assert mail.ids("pending") == mail.ids("leases") == []
    assert (mail.hash("a")["retry_count"], mail.hash("a")["expiries"]) == (b"1", b"1")
    assert mail.totals()["recovered"] == 1
    assert "failed" not in mail.totals()
    assert mail.wakes()


def test_a_task_whose_every_lease_ends_is_dead_with_the_reason(mail, clock):
    mail.enqueue("a", max_attempts=3)
    for _ in range(3):
        mail.reserve()
        clock.advance(30_000)
        kept_up(mail)

    assert mail.ids("waiting") == mail.ids("pending") == []
    assert mail.scores("dead") == {"a": clock.ms}
    assert b"the lease of attempt 3 ended without a report" in mail.hash("a")["error"]
    assert (mail.totals()["recovered"], mail.totals()["dead"]) == (3, 1)


def test_a_limit_of_expiries_of_its_own_ends_it_sooner(mail, clock):
    mail.enqueue("a", max_attempts=9)
    mail.raw.hset(mail.keys.task("a"), "max_stalled", 2)
    mail.fail(*mail.reserve())
    for _ in range(2):
        assert mail.reserve()
        clock.advance(30_000)
        kept_up(mail)

    assert mail.ids("dead") == ["a"]


def test_a_task_without_a_limit_is_never_dead(mail, clock):
    mail.enqueue("a", max_attempts=0)
    for _ in range(20):
        assert mail.reserve()
        clock.advance(30_000)

    kept_up(mail)
    assert mail.ids("waiting") == ["a"]


def test_a_pending_member_without_a_hash_is_dropped(mail, clock):
    mail.enqueue("a", "b")
    mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))
    clock.advance(30_000)

    kept_up(mail)

    assert mail.ids("waiting") == ["b"]
    assert mail.ids("pending") == mail.ids("leases") == []
    assert mail.hash("a") == {}
    assert mail.totals()["orphaned"] == 1


def test_a_pending_member_of_another_type_is_dropped(mail, clock):
    mail.enqueue("a", "b")
    mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))
    mail.raw.set(mail.keys.task("a"), "text")
    clock.advance(30_000)

    kept_up(mail)

    assert mail.ids("waiting") == ["b"]
    assert not mail.raw.exists(mail.keys.task("a"))


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
@pytest.mark.parametrize("field", ["retry_count", "max_attempts", "place", "max_stalled", "expiries"])
def test_a_field_that_is_no_number_reads_as_not_said(mail, clock, field, damage):
    mail.lease("a")
    mail.raw.hset(mail.keys.task("a"), field, damage)
    clock.advance(30_000)

    assert kept_up(mail).moved == 1
    assert [attempt.id for attempt in mail.reserve()] == ["a"]


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
def test_a_scheduled_task_without_a_readable_place_waits_at_its_due_time(mail, clock, damage):
    mail.enqueue("a", delay_ms=100, priority=2)
    mail.raw.hset(mail.keys.task("a"), "place", damage)
    clock.advance(500)

    kept_up(mail)
    assert mail.scores("waiting") == {"a": clock.ms - 400}


def test_a_dead_task_that_is_kept_no_longer_is_known_for_as_long_as_from_its_end_on(mail, clock):
    """Its enqueue left no note, as a job's task with a made id stays known for a minute, however it ends."""
    made = "0" * 28 + "-mail"
    mail.configure(dead_ttl_ms=30_000)
    mail.fail(mail.lease(made, type="send"), fate="dead")
    clock.advance(30_000)
    kept_up(mail)

    assert mail.ids("dead") == []
    left_ms = DEFAULT_RESULT_TTL_S * 1000 - 30_000
    assert left_ms - 15_000 < mail.raw.pttl(mail.keys.task(made)) <= left_ms


def test_dead_tasks_past_their_time_go_index_and_hash(mail, clock):
    mail.configure(dead_ttl_ms=1000)
    mail.fail(mail.lease("old"), fate="dead")
    clock.advance(1)
    mail.fail(mail.lease("new"), fate="dead")

    clock.advance(998.999)
    assert kept_up(mail).moved == 0
    clock.advance(0.001)
    done = kept_up(mail)

    assert (done.moved, done.next_event_ms) == (1, clock.ms + 1)
    assert mail.ids("dead") == ["new"]
    assert mail.hash("old") == {}
    assert mail.totals()["trimmed"] == 1


def test_more_dead_tasks_than_allowed_go_the_oldest_first(mail, clock):
    mail.configure(dead_max=2)
    for one in "zyxw":
        mail.fail(mail.lease(one), fate="dead")
        clock.advance(1)

    kept_up(mail)
    assert mail.ids("dead") == ["x", "w"]
    assert mail.hash("z") == {}


@pytest.mark.parametrize("max_attempts", [1, 5])
def test_a_lease_that_ended_is_taken_back_on_a_server_that_is_full(mail, clock, max_attempts):
    mail.lease("a", max_attempts=max_attempts)
    clock.advance(30_000)
    mail.raw.config_set("maxmemory", 1)
    try:
        mail.run(queues.upkeep(mail.keys))
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert (mail.ids("pending"), mail.ids("dead" if max_attempts == 1 else "waiting")) == ([], ["a"])


@pytest.mark.parametrize("damage", ["gone", "of another type"])
def test_damaged_dead_tasks_are_not_in_the_way_of_those_behind_them(mail, clock, damage):
    mail.configure(dead_ttl_ms=1000)
    for name in "ab":
        mail.fail(mail.lease(name), fate="dead")
    mail.raw.delete(mail.keys.task("a"))
    if damage != "gone":
        mail.raw.set(mail.keys.task("a"), "damage")
    clock.advance(1000)
    mail.reserve()
    assert (mail.ids("dead"), mail.hash("b")) == ([], {})


def test_as_many_dead_tasks_as_allowed_stay_and_count_nothing(mail):
    mail.configure(dead_max=2)
    for name in "ab":
        mail.fail(mail.lease(name), fate="dead")
    mail.reserve()
    assert mail.ids("dead") == ["a", "b"]
    assert "trimmed" not in mail.totals()


def test_age_and_number_of_the_dead_are_limited_together(mail, clock):
    mail.configure(dead_max=2, dead_ttl_ms=1000)
    for one in "zyxw":
        mail.fail(mail.lease(one), fate="dead")
        clock.advance(300)

    kept_up(mail)
    assert mail.ids("dead") == ["x", "w"]
    clock.advance(400)
    kept_up(mail)
    assert mail.ids("dead") == ["w"]


def test_no_more_than_the_old_and_the_excess_go_together(mail, clock):
    mail.configure(dead_max=3, dead_ttl_ms=1000)
    held = [mail.lease(f"t{n}") for n in range(10)]
    for one in held[:6]:
        mail.fail(one, fate="dead")
    clock.advance(1000)
    for one in held[6:]:
        mail.fail(one, fate="dead")

    assert kept_up(mail).moved == 7
    assert mail.ids("dead") == ["t7", "t8", "t9"]


def test_the_dead_are_kept_a_month_unless_told_otherwise(mail, clock):
    mail.fail(mail.lease("a"), fate="dead")
    clock.advance(30 * 86_400_000 - 1)
    kept_up(mail)
    assert mail.ids("dead") == ["a"]
    clock.advance(1)
    kept_up(mail)
    assert mail.ids("dead") == []


@pytest.mark.parametrize(
    ("state", "expected"),
    [("scheduled", [100] * 12), ("pending", [500, 500, 200]), ("dead", [500, 500, 200])],
)
def test_each_kind_is_done_in_slices(mail, clock, state, expected):
    ids = [f"{n:04d}" for n in range(1200)]
    mail.enqueue(*ids, **({"delay_ms": 10} if state == "scheduled" else {}))
    if state != "scheduled":
        held = mail.reserve(1200)
        if state == "dead":
            mail.fail(*held, fate="dead")
    clock.advance(30 * 86_400_000)

    slices = []
    while (done := kept_up(mail)).moved:
        slices.append(done.moved)
        assert done.next_event_ms is None or done.next_event_ms > clock.ms or sum(slices) < 1200

    assert slices == expected


def test_due_leases_and_dead_in_one_turn(mail, clock):
    mail.configure(dead_ttl_ms=10)
    mail.fail(mail.lease("dead"), fate="dead")
    mail.lease("held")
    mail.enqueue("due", delay_ms=10)
    clock.advance(30_000)

    assert kept_up(mail).moved == 3


def test_a_clock_that_stepped_back_ends_no_lease_and_loses_no_task(mail, clock):
    mail.lease("held")
    mail.enqueue("due", delay_ms=100)
    clock.advance(-5000)
    assert kept_up(mail).moved == 0
    clock.advance(35_000)
    assert kept_up(mail).moved == 2


def test_a_server_that_is_full_is_kept_up(mail, clock):
    mail.lease("held", max_attempts=1)
    mail.lease("again")
    mail.enqueue("due", delay_ms=100)
    clock.advance(30_000)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert kept_up(mail).moved == 3
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert mail.ids("dead") == ["held"]


@pytest.mark.parametrize("denied", ["zadd", "hmget", "hset", "hincrby", "zrem"])
def test_a_command_that_is_denied_half_way_loses_no_task(mail, weak_broker, clock, denied):
    mail.lease("held")
    mail.enqueue("due", delay_ms=100)
    clock.advance(30_000)

    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(queues.upkeep(mail.keys))

    kept_up(mail)
    assert {attempt.id for attempt in mail.reserve(5)} == {"held", "due"}


def test_nothing_overtakes_overdue_tasks_that_a_large_reserve_did_not_promote(mail, clock):
    mail.enqueue(*(f"{n:03}" for n in range(501)), delay_ms=1)
    clock.advance(10)
    mail.enqueue("z")
    assert len(mail.reserve(502)) == 500, "as many as one call promotes"
    assert [attempt.id for attempt in mail.reserve(502)] == ["500", "z"]
