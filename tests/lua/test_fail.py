"""fail: pending → scheduled after a delay, or → dead by request or when the attempts are spent."""

import pytest

from jobrunner.broker.calls import leases, tasks
from jobrunner.errors import ServerRefused


def deaths(mail):
    """The fields of each death that waits to be written as an event."""
    return [line.decode().split("\t") for line in mail.raw.lrange(mail.keys.deaths, 0, -1)]


def test_a_failed_task_is_scheduled_for_its_next_attempt(mail, clock):
    attempt = mail.lease("a")
    mail.wakes()

    assert mail.fail(attempt, delay_ms=1500, error="boom") == ["scheduled"]

    assert mail.scores("scheduled") == {"a": clock.ms + 1500}
    assert mail.ids("pending") == mail.ids("leases") == []
    assert (mail.hash("a")["retry_count"], mail.hash("a")["error"]) == (b"1", b"boom")
    assert mail.totals() == {"enqueued": 1, "failed": 1}
    assert mail.wakes(), "the coordinator has a new due time to look at"


def test_a_failed_task_loses_its_place_and_keeps_its_priority(mail, clock):
    attempt = mail.lease("urgent", priority=2)
    mail.enqueue("plain")
    mail.fail(attempt, delay_ms=100)
    mail.enqueue("urgent too", priority=2)
    clock.advance(100)

    assert [one.id for one in mail.reserve(3)] == ["urgent too", "urgent", "plain"]


@pytest.mark.parametrize("past_ms", [0, 0.001, 0.25, 0.499, 0.5, 0.75, 0.999])
def test_a_delay_of_nothing_waits_at_once_behind_what_arrived_before(mail, clock, past_ms):
    clock.advance(past_ms)
    mail.enqueue("a", "b")
    held = mail.reserve(2)
    mail.enqueue("c")
    mail.wakes()

    assert mail.fail(*held, delay_ms=0) == ["scheduled"] * 2

    assert mail.ids("scheduled") == []
    assert mail.wakes()
    mail.enqueue("d")
    assert [(one.id, one.number) for one in mail.reserve(9)] == [("c", 1), ("a", 2), ("b", 2), ("d", 1)]


def test_a_delay_of_nothing_is_behind_what_was_due_before(mail, clock):
    attempt = mail.lease("a")
    mail.enqueue("b", delay_ms=10)
    clock.advance(10)
    mail.fail(attempt)

    assert [one.id for one in mail.reserve(9)] == ["b", "a"]


def test_a_delay_of_nothing_keeps_its_priority(mail):
    mail.enqueue("a", priority=2)
    mail.fail(*mail.reserve())
    mail.enqueue("b")
    assert [one.id for one in mail.reserve(9)] == ["a", "b"]


def test_failures_due_at_one_instant_keep_their_order(mail, clock):
    mail.enqueue(*"zmax")
    mail.fail(*mail.reserve(4), delay_ms=100)
    clock.advance(100)

    assert [attempt.id for attempt in mail.reserve(4)] == list("zmax")


@pytest.mark.parametrize(("limit", "runs"), [(1, 1), (3, 3), (5, 5)])
def test_a_task_is_dead_after_exactly_its_attempts(mail, clock, limit, runs):
    mail.enqueue("a", max_attempts=limit)
    seen = 0
    while attempts := mail.reserve():
        seen += 1
        (verdict,) = mail.fail(*attempts, error=f"failure {seen}")

    assert (seen, verdict) == (runs, "dead")
    assert mail.scores("dead") == {"a": clock.ms}
    assert mail.ids("scheduled") == mail.ids("pending") == mail.ids("leases") == []
    found = mail.hash("a")
    assert (found["error"], found["retry_count"]) == (b"failure %d" % runs, b"%d" % runs)
    assert found["died_at"] == b"%d" % clock.ms
    assert (mail.totals()["failed"], mail.totals()["dead"]) == (runs, 1)


def test_the_queue_decides_for_tasks_that_do_not(mail):
    mail.configure(max_attempts=2)
    mail.enqueue("a")

    verdicts = [mail.fail(*mail.reserve())[0] for _ in range(2)]

    assert verdicts == ["scheduled", "dead"]


def test_no_limit_is_no_limit(mail):
    mail.enqueue("a", max_attempts=0)

    assert {mail.fail(*mail.reserve())[0] for _ in range(20)} == {"scheduled"}


def test_a_failure_without_a_retry_is_death(mail):
    assert mail.fail(mail.lease("a"), fate="dead", error="no use") == ["dead"]
    assert mail.hash("a")["error"] == b"no use"
    assert mail.hash("a")["retry_count"] == b"1"


def test_the_text_of_an_error_may_be_anything(mail):
    error = "é\n\0\r\n'; redis.call()"
    mail.fail(mail.lease("a"), error=error)

    assert mail.hash("a")["error"].decode() == error


def test_refused_reports_change_nothing(mail, clock):
    old = mail.lease("a")
    clock.advance(30_000)
    (new,) = mail.reserve()
    mail.commit(mail.lease("b"))
    released = mail.lease("c")
    mail.release(released)
    before = mail.snapshot()

    ghost = ("ghost", "1", 0, "retry", "")
    reports = [(one.id, one.token, 0, "retry", "") for one in (old, released)]
    assert mail.run(leases.fail(mail.keys, [*reports, ghost])) == ["lost", "not_reserved", "gone"]
    assert mail.snapshot() == before
    clock.advance(30_000)
    assert mail.fail(new) == ["not_reserved"]
    assert mail.snapshot() == before


def test_the_same_report_twice_in_one_call_is_one_failure(mail):
    attempt = mail.lease("a")

    assert mail.fail(attempt, attempt) == ["scheduled", "gone"]
    assert mail.hash("a")["retry_count"] == b"1"


def test_a_hash_that_was_deleted_meanwhile_does_not_come_back(mail):
    mail.enqueue("a", "b")
    held = mail.reserve(2)
    mail.raw.delete(mail.keys.task("a"))

    assert mail.fail(*held) == ["gone", "scheduled"]
    assert mail.hash("a") == {}
    assert mail.ids("waiting") == ["b"]
    assert mail.ids("pending") == []
    assert mail.totals()["orphaned"] == 1


@pytest.mark.parametrize("damage", ["", "abc", "nan", "inf"])
@pytest.mark.parametrize("field", ["retry_count", "max_attempts", "priority"])
def test_a_field_that_is_no_number_reads_as_not_said(mail, field, damage):
    attempt = mail.lease("a")
    mail.raw.hset(mail.keys.task("a"), field, damage)

    assert mail.fail(attempt) == ["scheduled"]
    assert mail.hash("a")["retry_count"] == b"1"


def test_a_task_without_a_count_of_its_attempts_failed_for_the_first_time(mail):
    held = mail.lease("a")
    mail.raw.hdel(mail.keys.task("a"), "retry_count")
    assert mail.fail(held) == ["scheduled"]
    assert mail.hash("a")["retry_count"] == b"1"


def test_a_field_of_a_newer_version_is_left_alone(mail):
    mail.enqueue("a")
    mail.raw.hset(mail.keys.task("a"), "x-new", "kept")

    mail.fail(*mail.reserve())
    mail.fail(*mail.reserve())

    assert mail.hash("a")["x-new"] == b"kept"


def test_who_waits_is_told_of_the_death_and_not_of_a_failure_before(mail, raw, keys):
    attempt = mail.lease("a", max_attempts=2)
    mail.run(tasks.show(keys, "a", queue="mail", awaited=True))
    with raw.pubsub() as ears:
        ears.subscribe(mail.keys.finished + b"a")
        ears.get_message(timeout=5)
        mail.fail(attempt)
        assert raw.zcard(mail.keys.waiters) == 1
        mail.fail(*mail.reserve())
        heard = ears.get_message(timeout=5)

    assert heard["data"] == b"dead"
    assert not raw.exists(mail.keys.waiters)


def test_a_server_that_is_full_takes_the_report(mail):
    mail.enqueue("a", "b")
    again, dead = mail.reserve(2)
    mail.raw.config_set("maxmemory", 1)
    try:
        assert mail.fail(again) == ["scheduled"]
        assert mail.fail(dead, fate="dead") == ["dead"]
    finally:
        mail.raw.config_set("maxmemory", 0)


@pytest.mark.parametrize("denied", ["zadd", "hmget", "hset", "hincrby", "zrem"])
def test_a_command_that_is_denied_half_way_loses_no_task(mail, weak_broker, clock, denied):
    attempt = mail.lease("a")

    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(leases.fail(mail.keys, [("a", attempt.token, 0, "retry", "")]))

    clock.advance(30_000)
    assert [one.id for one in mail.reserve()] == ["a"]


@pytest.mark.parametrize(("state", "delay_ms"), [("scheduled", 1), ("waiting", 0)])
def test_a_line_of_another_type_loses_no_task(mail, state, delay_ms):
    attempt = mail.lease("a")
    key = getattr(mail.keys, state)
    mail.raw.set(key, "damage")

    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        mail.fail(attempt, delay_ms=delay_ms)

    mail.raw.delete(key)
    assert mail.fail(attempt, delay_ms=delay_ms) == ["scheduled"]


def test_a_death_is_noted_for_the_leader_also_of_a_task_that_lost_a_field(mail, clock):
    mail.enqueue("a", "b", type="send", expires_in_ms=5)
    mail.raw.hdel(mail.keys.task("a"), "retry_count")
    mail.raw.hdel(mail.keys.task("b"), "type")
    clock.advance(5)
    mail.reserve()

    noted = deaths(mail)
    reason = "expired before it started"
    assert noted == [["a", "send", "0", "kept", reason], ["b", "", "0", "kept", reason]]


def test_control_characters_of_a_reason_are_blanks_in_the_notes_of_a_death(mail):
    mail.fail(mail.lease("a", type="send"), fate="dead", error="E: one\ttwo\x01three\nfour")
    assert deaths(mail) == [["a", "send", "1", "kept", "E: one two three"]]


def test_the_note_of_a_death_has_two_hundred_characters_of_its_reason(mail):
    mail.fail(mail.lease("a"), fate="dead", error="x" * 300)
    assert deaths(mail)[0][-1] == "x" * 200


def test_a_line_about_a_failure_has_two_hundred_characters_of_its_reason(mail):
    mail.fail(mail.lease("a"), error="x" * 300)
    assert mail.hash("a")["failures"].split(b"\t")[-1] == b"x" * 200


@pytest.mark.parametrize(("hops", "goes_on"), [(99, True), (100, False)])
def test_a_task_goes_through_a_hundred_dead_letter_queues_and_no_more(mail, hops, goes_on):
    """Queues whose dead letters go to each other would hand one task on without end."""
    mail.configure(dead_letter_queue="p/dlq")
    held = mail.lease("a")
    mail.raw.hset(mail.keys.task("a"), "hops", hops)
    mail.fail(held, fate="dead")
    assert mail.ids("dead") == ([] if goes_on else ["a"])
