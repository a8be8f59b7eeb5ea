"""move: pending of one queue → waiting or scheduled of another of the same pipeline, in one step."""

import pytest

from jobrunner.broker.calls import leases, queues, tasks
from jobrunner.errors import ServerRefused


@pytest.fixture
def ends(line):
    return line("orders/raw"), line("orders/clean")


def report(attempt, *, priority="", delay_ms=0, fields=()):
    return attempt.id, attempt.token, priority, delay_ms, fields


def moved(raw, clean, attempt, *, max_hops=0, over=False, **said):
    (verdict,) = raw.run(leases.move(raw.keys, clean.keys, [report(attempt, **said)], max_hops=max_hops, over=over))
    return verdict


def test_a_task_leaves_one_queue_and_enters_the_other(ends, clock):
    raw, clean = ends
    attempt = raw.lease("a", payload=b"\xff[]", headers=b'{"x":"y"}')
    clock.advance(5)

    assert moved(raw, clean, attempt) == "ok"

    assert raw.ids("pending") == raw.ids("leases") == raw.ids("waiting") == []
    assert clean.scores("waiting") == {"a": clock.ms + 0.5}
    found = clean.hash("a")
    assert (found["queue"], found["payload"], found["headers"]) == (b"orders/clean", b"\xff[]", b'{"x":"y"}')
    assert found["enqueue_time"] == b"%d" % (clock.ms - 5)
    assert raw.totals() == {"enqueued": 1, "moved_out": 1}
    assert clean.totals() == {"moved_in": 1}
    assert clean.wakes()
    assert [one.id for one in clean.reserve()] == ["a"]


@pytest.mark.parametrize("field", ["error", "expiries"])
def test_what_was_noted_of_its_failures_stays_behind(ends, field):
    raw, clean = ends
    attempt = raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), mapping={field: "1", "suspect": "1"})
    moved(raw, clean, attempt)
    assert not clean.hash("a").keys() & {"error", "expiries", "suspect"}


def test_attempts_start_anew_and_lifetime_figures_go_on(ends, clock):
    raw, clean = ends
    raw.fail(raw.lease("a"), error="boom")
    clock.advance(1)
    raw.reserve()
    clock.advance(30_000)
    (attempt,) = raw.reserve()
    assert attempt.number == 3

    moved(raw, clean, attempt)

    found = clean.hash("a")
    assert (found["retry_count"], found["total_attempts"], found["hops"]) == (b"0", b"3", b"1")
    assert "error" not in found
    assert "expiries" not in found
    (attempt,) = clean.reserve()
    assert (attempt.number, attempt.retry_count) == (1, 0)
    moved(clean, raw, attempt)
    assert (raw.hash("a")["total_attempts"], raw.hash("a")["hops"]) == (b"4", b"2")


def test_fields_change_in_the_same_step(ends):
    raw, clean = ends
    attempt = raw.lease("a", payload=b"old")

    moved(raw, clean, attempt, fields=["payload", b"", "encoding", "json", "headers", b'{"n":"1"}'])

    (attempt,) = clean.reserve()
    assert (attempt.payload, attempt.encoding, attempt.headers) == (b"", b"json", b'{"n":"1"}')


def test_a_delay_schedules_it_in_the_other_queue(ends, clock):
    raw, clean = ends

    moved(raw, clean, raw.lease("a"), delay_ms=700)

    assert clean.scores("scheduled") == {"a": clock.ms + 700}
    assert float(clean.hash("a")["place"]) == clock.ms + 700
    assert clean.ids("waiting") == []
    assert not clean.raw.exists(clean.keys.arrival), "a scheduled task leaves the clock of arrivals as it is"


@pytest.mark.parametrize(("given", "order"), [("", ["urgent", "plain"]), (0, ["plain", "urgent"])])
def test_a_priority_stays_unless_one_is_given(ends, given, order):
    raw, clean = ends
    clean.enqueue("plain")

    moved(raw, clean, raw.lease("urgent", priority=2), priority=given)

    assert clean.ids("waiting") == order


def test_a_task_goes_behind_all_that_wait_there(ends, clock):
    raw, clean = ends
    attempt = raw.lease("a old one")
    clock.advance(100)
    clean.enqueue("z")
    moved(raw, clean, attempt)

    assert clean.ids("waiting") == ["z", "a old one"]


def test_a_queue_may_move_to_itself(ends):
    raw, _ = ends

    assert moved(raw, raw, raw.lease("a")) == "ok"
    assert raw.ids("waiting") == ["a"]
    assert raw.ids("pending") == []
    assert raw.totals() == {"enqueued": 1, "moved_out": 1, "moved_in": 1}


def test_the_limit_of_hops_is_kept(ends):
    raw, clean = ends
    attempt = raw.lease("a")
    assert moved(raw, clean, attempt, max_hops=2) == "ok"
    assert moved(clean, raw, *clean.reserve(), max_hops=2) == "ok"
    (attempt,) = raw.reserve()
    before = raw.snapshot()

    assert moved(raw, clean, attempt, max_hops=2) == "hops"
    assert raw.snapshot() == before
    assert raw.commit(attempt) == ["ok"]


def test_a_paused_queue_takes_it_in_and_does_not_hand_it_out(ends):
    raw, clean = ends
    clean.run(queues.configure(clean.keys, {"paused": 1}))

    assert moved(raw, clean, raw.lease("a")) == "ok"
    assert clean.ids("waiting") == ["a"]
    assert clean.reserve() == []


def test_refused_moves_change_nothing(ends, clock):
    raw, clean = ends
    old = raw.lease("a")
    clock.advance(30_000)
    (new,) = raw.reserve()
    before = raw.snapshot()

    assert moved(raw, clean, old) == "lost"
    assert moved(clean, raw, new) == "lost"
    clock.advance(30_000)
    assert moved(raw, clean, new) == "not_reserved"
    assert raw.snapshot() == before
    raw.commit(*raw.reserve())
    assert moved(raw, clean, new) == "gone"


def test_of_two_moves_of_one_lease_one_wins(ends):
    raw, clean = ends
    attempt = raw.lease("a")

    assert moved(raw, clean, attempt) == "ok"
    assert moved(raw, clean, attempt) == "lost"
    assert raw.commit(attempt) == ["lost"]


def test_the_total_of_attempts_goes_on_in_a_dead_letter_queue(ends, clock):
    raw, failed = ends
    raw.configure(dead_letter_queue="orders/clean", max_attempts=2)
    raw.fail(raw.lease("a"), error="boom")
    clock.advance(1)
    raw.reserve()
    clock.advance(30_000)
    assert raw.reserve() == []

    (attempt,) = failed.reserve()
    assert (attempt.number, failed.hash("a")["total_attempts"]) == (1, b"2")
    failed.fail(attempt, fate="dead")
    failed.run(tasks.requeue(failed.keys, ["a"]))
    (attempt,) = failed.reserve()
    assert (attempt.number, failed.hash("a")["total_attempts"]) == (1, b"3")
    assert moved(failed, raw, attempt) == "ok"
    assert raw.hash("a")["total_attempts"] == b"4"


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
@pytest.mark.parametrize("field", ["retry_count", "total_attempts", "hops", "priority"])
def test_a_field_that_is_no_number_reads_as_not_said(ends, field, damage):
    raw, clean = ends
    attempt = raw.lease("a")
    raw.raw.hset(raw.keys.task("a"), field, damage)

    assert moved(raw, clean, attempt, max_hops=5) == "ok"
    assert clean.hash("a")["hops"] == b"1"
    assert [one.id for one in clean.reserve()] == ["a"]


def test_a_hash_that_was_deleted_meanwhile_does_not_come_back(ends):
    raw, clean = ends
    attempt = raw.lease("a")
    raw.raw.delete(raw.keys.task("a"))

    assert moved(raw, clean, attempt) == "gone"
    assert not raw.raw.exists(raw.keys.task("a"))


@pytest.mark.parametrize("damage", [None, b"no hash"])
def test_a_task_without_a_readable_hash_frees_its_place_at_once(ends, damage):
    """It was pending until its lease ended: a limit of the queue, and of its partition, counted it."""
    raw, clean = ends
    raw.configure(max_inflight=2, key_inflight=1)
    lost, kept = raw.lease("a", key="k"), raw.lease("b", key="other")
    raw.enqueue("next", key="k")
    raw.raw.delete(raw.keys.task("a"))
    if damage:
        raw.raw.set(raw.keys.task("a"), damage)
    raw.wakes()

    assert moved(raw, clean, lost) == "gone"

    assert (raw.ids("pending"), raw.ids("leases")) == (["b"], ["b"])
    assert (raw.raw.exists(raw.keys.task("a")), raw.totals()["orphaned"]) == (0, 1)
    assert (clean.totals(), clean.wakes(), raw.wakes()) == ({}, False, True)
    assert [one.id for one in raw.reserve()] == ["next"]
    assert moved(raw, clean, kept) == "ok"


def test_of_several_reports_the_others_are_carried_out(ends):
    raw, clean = ends
    held = [raw.lease(name) for name in "abc"]
    raw.raw.delete(raw.keys.task("b"))
    assert raw.run(leases.move(raw.keys, clean.keys, [report(one) for one in held])) == ["ok", "gone", "ok"]
    assert (raw.ids("pending"), clean.ids("waiting")) == ([], ["a", "c"])
    assert raw.totals() == {"enqueued": 3, "moved_out": 2, "orphaned": 1}
    assert clean.totals() == {"moved_in": 2}


def test_a_server_that_is_full_takes_the_report(ends):
    """A pipeline that had filled its server could not drain: no item came to the sink, whose ends free memory."""
    raw, clean = ends
    attempt, later = raw.lease("a"), raw.lease("b")
    raw.raw.config_set("maxmemory", 1)
    try:
        assert moved(raw, clean, attempt, fields=["payload", b"x" * 1000]) == "ok"
        assert moved(raw, clean, later, delay_ms=1000) == "ok"
        assert moved(raw, clean, attempt) == "lost"
    finally:
        raw.raw.config_set("maxmemory", 0)
    assert (clean.ids("waiting"), clean.ids("scheduled")) == (["a"], ["b"])
    assert clean.hash("a")["payload"] == b"x" * 1000


@pytest.mark.parametrize("denied", ["zadd", "hset", "hdel", "hincrby", "zrem"])
def test_a_command_that_is_denied_half_way_loses_no_task(ends, weak_broker, clock, denied):
    raw, clean = ends
    raw.fail(raw.lease("a"))
    clock.advance(1)
    (attempt,) = raw.reserve()

    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(leases.move(raw.keys, clean.keys, [report(attempt)]))

    assert "a" in raw.ids("pending") + clean.ids("waiting")


def move_all(raw, clean, attempts, **options):
    return raw.run(leases.move(raw.keys, clean.keys, [report(one) for one in attempts], **options))


def test_a_batch_goes_in_one_step_and_keeps_its_order(ends, clock):
    raw, clean = ends
    raw.enqueue("c", "a", "b")
    attempts = raw.reserve(3)

    assert move_all(raw, clean, attempts) == ["ok"] * 3
    assert clean.ids("waiting") == ["c", "a", "b"]
    assert raw.ids("pending") == raw.ids("leases") == []
    assert raw.totals()["moved_out"] == clean.totals()["moved_in"] == 3
    clean.enqueue("d")
    assert clean.ids("waiting") == ["c", "a", "b", "d"]


def test_each_report_of_a_batch_has_its_own_verdict_and_fields(ends, clock):
    raw, clean = ends
    raw.enqueue("gone", "plain", "set", "later", "lost")
    gone, plain, with_fields, later, lost = raw.reserve(5)
    raw.raw.delete(raw.keys.task("gone"))
    raw.release(lost)
    raw.reserve()
    said = [
        report(gone), report(plain), report(with_fields, fields=["payload", b"1", "headers", b"{}"]),
        report(later, delay_ms=50, priority=2), report(lost), report(plain),
    ]  # fmt: skip

    verdicts = raw.run(leases.move(raw.keys, clean.keys, said))

    assert verdicts == ["gone", "ok", "ok", "ok", "lost", "gone"]
    assert clean.ids("waiting") == ["plain", "set"]
    assert clean.scores("scheduled") == {"later": clock.ms + 50}
    assert (clean.hash("set")["payload"], clean.hash("plain")["payload"]) == (b"1", b"{}")
    assert "headers" not in clean.hash("plain")
    assert clean.hash("later")["priority"] == b"2"
    assert sorted(raw.ids("pending")) == ["lost"]
    assert clean.totals() == {"moved_in": 3}


def test_a_queue_that_gets_full_takes_the_first_and_refuses_the_rest(ends, clock):
    """KEU-34: max_size reached: refused, the item stays leased where it is."""
    raw, clean = ends
    clean.configure(max_size=3)
    clean.enqueue("there")
    raw.enqueue("a", "b", "c")
    attempts = raw.reserve(3)

    assert move_all(raw, clean, attempts) == ["ok", "ok", "full"]
    assert clean.ids("waiting") == ["there", "a", "b"]
    assert raw.ids("pending") == raw.ids("leases") == ["c"]
    before = raw.snapshot()
    assert move_all(raw, clean, attempts[2:]) == ["full"]
    assert raw.snapshot() == before
    clean.reserve()
    assert move_all(raw, clean, attempts[2:]) == ["ok"]


def test_what_goes_over_is_taken_by_a_full_queue_all_the_same(ends):
    raw, clean = ends
    clean.configure(max_size=1)
    clean.enqueue("there")

    assert moved(raw, clean, raw.lease("a"), over=True) == "ok"
    assert clean.ids("waiting") == ["there", "a"]


def test_those_at_the_limit_of_hops_take_no_room(ends):
    raw, clean = ends
    clean.configure(max_size=1)
    raw.enqueue("tired", "fresh")
    attempts = raw.reserve(2)
    raw.raw.hset(raw.keys.task("tired"), "hops", 7)

    assert move_all(raw, clean, attempts, max_hops=7) == ["hops", "ok"]
    assert raw.ids("pending") == ["tired"]


def test_a_move_to_itself_while_full_goes_behind_all_that_wait(ends):
    raw, _ = ends
    raw.configure(max_size=1)
    attempt = raw.lease("a")
    raw.enqueue("b")

    assert moved(raw, raw, attempt) == "full"
    assert moved(raw, raw, attempt, over=True) == "ok"
    assert raw.ids("waiting") == ["b", "a"]


def test_a_large_batch_goes_through(ends):
    raw, clean = ends
    raw.enqueue(*[f"{n:05}" for n in range(9000)])
    attempts = raw.reserve(9000)

    assert move_all(raw, clean, attempts) == ["ok"] * 9000
    assert clean.ids("waiting") == [f"{n:05}" for n in range(9000)]
    assert raw.ids("pending") == []


def test_an_empty_batch_changes_nothing(ends):
    raw, clean = ends
    raw.enqueue("a")
    before = raw.snapshot()

    assert move_all(raw, clean, []) == []
    assert raw.snapshot() == before


def test_a_move_wakes_who_waits_for_room_among_the_leases(ends):
    raw, clean = ends
    raw.configure(max_inflight=1)
    held = raw.lease("a")
    raw.wakes()
    moved(raw, clean, held)
    assert raw.wakes()


def test_moves_that_are_due_at_one_instant_keep_their_order(ends):
    raw, clean = ends
    for one in "ba":
        moved(raw, clean, raw.lease(one), delay_ms=700)
    assert clean.ids("scheduled") == ["b", "a"]


@pytest.mark.parametrize("delay_ms", [0, 500])
def test_the_time_to_start_by_of_an_item_that_began_stays_behind(ends, clock, delay_ms):
    raw, clean = ends
    attempt = raw.lease("a", expires_in_ms=60_000)
    clock.advance(29_000)
    assert moved(raw, clean, attempt, delay_ms=delay_ms) == "ok"
    clock.advance(60_000)

    assert [one.id for one in clean.reserve()] == ["a"]


@pytest.mark.parametrize("own", [{}, {"expires_in_ms": 60_000}])
def test_an_item_that_moves_within_its_queue_has_begun_there(ends, clock, own):
    raw, _ = ends
    raw.configure(expires_in_ms=60_000)
    assert moved(raw, raw, raw.lease("a", **own)) == "ok"
    clock.advance(60_000)

    assert [one.id for one in raw.reserve()] == ["a"]


@pytest.mark.parametrize("before_ms", [0, 60_000])
def test_the_limit_of_the_next_queue_holds_there_and_counts_from_the_push(ends, clock, before_ms):
    raw, clean = ends
    clean.configure(expires_in_ms=60_000)
    attempt = raw.lease("a", keepalive_ms=90_000)
    clock.advance(before_ms)
    assert moved(raw, clean, attempt) == "ok"
    clock.advance(60_000 - before_ms)

    assert clean.reserve() == []
    assert clean.ids("dead") == ["a"]
