"""Finished tasks whose hash has no field for it: the time of their end follows from the hash's time to live."""

import pytest

from jobrunner.broker.calls import leases, tasks
from jobrunner.task import TaskState
from tests.support.waiting import wait_for

USUAL_MS = 60_000
"""How long most are kept; a test of contracts compares it with the option's default."""


@pytest.fixture
def timed(mail, clock):
    """The queue mail on the server's own clock, as everywhere but in tests."""
    clock.ms = None
    return mail


@pytest.fixture
def over(timed):
    """A lease of task a, which was reported to have succeeded."""
    attempt = timed.lease("a", type="send", payload=b"x")
    assert timed.commit(attempt, keep_ms=USUAL_MS) == ["ok"]
    return attempt


def now_ms(mail):
    seconds, micros = mail.raw.time()
    return seconds * 1000 + micros / 1000


def test_most_tasks_are_kept_as_they_are(timed, over):
    assert not timed.hash("a").keys() & {"finished_at", "outcome", "result"}
    assert USUAL_MS - 1000 < timed.raw.pttl(timed.keys.task("a")) <= USUAL_MS


def test_it_is_shown_with_the_time_it_was_over(timed, keys):
    attempt = timed.lease("a")
    before = now_ms(timed)
    timed.commit(attempt, keep_ms=USUAL_MS)
    after = now_ms(timed)
    wait_for(lambda: now_ms(timed) > after + 50)  # so that it is not the time of the question

    record = timed.run(tasks.show(keys, "a", queue="mail"))
    assert record.state is TaskState.SUCCEEDED
    assert before - 2 <= record.when.timestamp() * 1000 <= after + 2, "both ends of life and clocks are whole ms"
    assert record.result is None


def test_a_clock_that_a_test_has_stopped_shifts_no_time(timed, over, keys, clock):
    clock.set(now_ms(timed) + 3_600_000)

    when = timed.run(tasks.show(keys, "a", queue="mail")).when
    assert abs(when.timestamp() * 1000 - now_ms(timed)) < 30_000


def test_nothing_can_be_done_to_it(timed, over, keys):
    before = timed.snapshot()

    assert timed.commit(over) == timed.fail(over) == timed.release(over) == timed.extend(over) == ["gone"]
    assert timed.run(tasks.delete(timed.keys, "a")) == "gone"
    assert timed.run(tasks.cancel(timed.keys, "a", keep_ms=0)) == "gone"
    assert timed.run(tasks.requeue(timed.keys, ["a"])) == ["not_dead"]
    assert timed.enqueue("a") == [False]
    timed.run(tasks.show(keys, "a", queue="mail", awaited=True))
    assert timed.snapshot() == before


@pytest.mark.parametrize(
    ("keep_ms", "outcome", "result"),
    [(USUAL_MS, "succeeded", b"1"), (USUAL_MS, "cancelled", b""), (USUAL_MS + 1, "succeeded", b"")],
)
def test_all_others_say_when_they_ended(timed, keep_ms, outcome, result):
    timed.commit(timed.lease("a"), keep_ms=keep_ms, outcome=outcome, result=result)
    assert abs(float(timed.hash("a")["finished_at"]) - now_ms(timed)) < 30_000


@pytest.mark.parametrize(
    ("age_ms", "keep_ms"), [(USUAL_MS, USUAL_MS), (3_600_000, USUAL_MS), (3_600_000, 0), (9_000, 9_000)]
)
def test_the_index_of_history_has_the_time(timed, keys, age_ms, keep_ms):
    timed.configure(history_ms=age_ms)
    timed.commit(timed.lease("a"), keep_ms=keep_ms)

    assert "finished_at" not in timed.hash("a")
    record = timed.run(tasks.show(keys, "a", queue="mail"))
    assert record.state is TaskState.SUCCEEDED
    assert record.when.timestamp() * 1000 == pytest.approx(timed.scores("done")["a"], abs=0.01)


@pytest.mark.parametrize("keep_ms", [USUAL_MS, USUAL_MS + 1])
def test_a_hash_that_outlives_the_index_has_the_time_itself(timed, keep_ms):
    timed.configure(history_ms=keep_ms - 1)
    timed.commit(timed.lease("a"), keep_ms=keep_ms)
    assert float(timed.hash("a")["finished_at"]) == timed.scores("done")["a"]


def test_what_lost_its_index_was_over_by_now(timed, keys):
    timed.configure(history_ms=3_600_000)
    timed.commit(timed.lease("a"))
    timed.raw.delete(timed.keys.done)

    record = timed.run(tasks.show(keys, "a", queue="mail"))
    assert record.state is TaskState.SUCCEEDED
    assert abs(record.when.timestamp() * 1000 - now_ms(timed)) < 30_000


def test_an_entry_that_outlived_its_hash_ends_nothing(timed, keys):
    timed.configure(history_ms=3_600_000)
    timed.commit(timed.lease("a"))
    timed.raw.delete(timed.keys.task("a"))
    timed.enqueue("a")

    assert timed.run(tasks.show(keys, "a", queue="mail")).state is TaskState.WAITING


def test_what_was_handed_on_is_over_in_the_same_way(timed, keys):
    attempt = timed.lease("a")
    assert timed.run(leases.fan_out(timed.keys, "a", attempt.token, [], keep_ms=USUAL_MS)) == ["ok"]

    assert "finished_at" not in timed.hash("a")
    assert timed.run(tasks.show(keys, "a", queue="mail")).state is TaskState.SUCCEEDED


def test_only_tasks_that_are_over_have_an_end_of_life(timed):
    timed.enqueue("waits")
    timed.enqueue("later", delay_ms=60_000)
    timed.fail(timed.lease("dead", priority=2), fate="dead")
    timed.lease("runs", priority=2)
    timed.commit(timed.lease("over", priority=2), keep_ms=USUAL_MS)
    timed.commit(timed.lease("cancelled", priority=2), keep_ms=9000, outcome="cancelled")

    ids = ["waits", "later", "dead", "runs", "over", "cancelled", "ghost"]
    are_there = [timed.raw.pttl(timed.keys.task(one)) == -1 for one in ids]
    assert dict(zip(ids, are_there, strict=True)) == dict.fromkeys(ids[:4], True) | dict.fromkeys(ids[4:], False)
