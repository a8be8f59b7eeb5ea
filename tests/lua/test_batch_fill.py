"""batch_fill: waiting → pending, the first in line, as members of one batch."""

import pytest

from jobrunner.broker.calls import batches, queues
from jobrunner.errors import BatchLost

WEEK_MS = 604_800_000


def fill(line, count=10, *, had=0, epoch=1, batch="b", lease_ms=1000, turn=None):
    turn = had + 1 if turn is None else turn
    return line.run(batches.fill(line.keys, batch, epoch, had=had, count=count, lease_ms=lease_ms, turn=turn))


def members(line, batch="b"):
    return line.run(batches.members(line.keys, batch, 0, 99))


def test_the_first_in_line_become_members_and_stand_in_pending_for_a_week(mail, clock):
    mail.enqueue("a", "b", "c")

    assert fill(mail, 2) == (2, clock.ms + 1000, False)

    assert members(mail) == ["a", "b"]
    assert mail.ids("waiting") == ["c"]
    assert mail.scores("pending") == dict.fromkeys("ab", clock.ms + WEEK_MS)
    assert len(set(mail.scores("leases").values())) == 1
    assert mail.scores("batches") == {"b": clock.ms + 1000}
    assert mail.reserve(9)[0].id == "c"


def test_nothing_is_made_when_nothing_waits(mail):
    assert fill(mail) == (0, 0.0, False)
    assert mail.raw.keys(mail.keys.batch + b"*") == []


def test_a_queue_that_keeps_history_notes_when_a_member_was_handed_out(mail, clock):
    mail.configure(history_ms=10_000)
    mail.enqueue("a")
    clock.advance(5)
    fill(mail)
    assert mail.hash("a")["started_at"] == b"%d" % clock.ms

    mail.configure(history_ms="")
    mail.enqueue("b")
    fill(mail, batch="c")
    assert "started_at" not in mail.hash("b")


def test_the_same_call_again_adds_nothing(mail):
    mail.enqueue("a", "b", "c", "d")

    assert fill(mail, 2)[:2] == fill(mail, 2)[:2]
    assert fill(mail, 1, had=2)[:2] == fill(mail, 1, had=2)[:2]

    assert members(mail) == ["a", "b", "c"]


def test_a_call_that_comes_late_for_the_second_time_adds_nothing_that_its_caller_does_not_know(mail):
    mail.enqueue("a")
    fill(mail, 1)
    assert fill(mail, 5, had=1, turn=2)[0] == 1, "the caller goes on with one member"
    mail.enqueue("b")
    assert fill(mail, 5, had=1, turn=2)[0] == 1, "it was held up on a connection that broke"
    assert members(mail) == ["a"]
    assert mail.ids("waiting") == ["b"]
    assert fill(mail, 5, had=1, turn=3)[0] == 2


def test_a_call_that_a_bound_ended_says_that_more_may_wait(mail, clock):
    mail.enqueue(*[f"expired{n}" for n in range(600)], expires_in_ms=1)
    mail.enqueue("a")
    clock.advance(500)

    assert fill(mail, 1) == (0, 0.0, True)
    assert fill(mail, 1) == (1, clock.ms + 1000, False), "a batch that does not exist is filled by the same call again"

    mail.enqueue(*[f"gone{n}" for n in range(600)], expires_in_ms=1)
    mail.enqueue("b")
    clock.advance(500)
    for _ in range(2):
        assert fill(mail, 1, had=1, turn=2)[::2] == (1, True), "sent again it changes nothing, and is asked once more"
    assert fill(mail, 1, had=1, turn=3)[::2] == (2, False)
    assert members(mail) == ["a", "b"]


def test_a_call_behind_tasks_that_come_due_says_that_more_may_wait(mail, clock):
    mail.enqueue(*[f"late{n}" for n in range(1200)], delay_ms=10, expires_in_ms=1)
    clock.advance(500)

    assert fill(mail, 1)[::2] == (0, True)


def test_only_the_holder_adds_more(mail, clock):
    mail.enqueue("a", "b")
    fill(mail, 1)
    before = mail.snapshot()

    with pytest.raises(BatchLost):
        fill(mail, 1, had=1, epoch=2)
    with pytest.raises(BatchLost):
        fill(mail, 1, had=1, batch="unknown")
    clock.advance(1000)
    with pytest.raises(BatchLost):
        fill(mail, 1, had=1)
    assert mail.snapshot() == before


def test_limits_hold_as_for_reserve(mail):
    mail.enqueue("a", "b", "c")
    mail.configure(max_inflight=2)
    assert fill(mail)[0] == 2
    mail.configure(max_inflight=0)
    mail.run(queues.configure(mail.keys, {"paused": 1}))
    assert fill(mail, had=2)[0] == 2
    mail.run(queues.configure(mail.keys, {"paused": "", "max_tokens": 1, "interval_us": 1_000_000}))
    assert fill(mail, had=2, turn=4)[0] == 3


def test_damage_and_what_expired_do_not_become_members(mail, clock):
    mail.enqueue("damaged", "late", "fit")
    mail.raw.delete(mail.keys.task("damaged"))
    mail.raw.hset(mail.keys.task("late"), mapping={"expires_in_ms": 5, "more": 1})
    mail.raw.hset(mail.keys.task("fit"), mapping={"expires_in_ms": 5, "more": 1, "retry_count": 1})
    clock.advance(10)

    assert fill(mail)[0] == 1

    assert members(mail) == ["fit"]
    assert mail.ids("dead") == ["late"]
    assert mail.totals()["orphaned"] == 1


@pytest.mark.parametrize(("left", "wakes"), [(0, False), (1, True)])
def test_a_worker_is_woken_for_what_is_left(mail, left, wakes):
    mail.enqueue("a", "b", *"c"[:left])
    mail.wakes()
    assert fill(mail, 2)[0] == 2
    assert mail.wakes() == wakes


def test_a_task_that_may_still_start_becomes_a_member(mail, clock):
    mail.enqueue("a", expires_in_ms=5)
    clock.advance(4)
    assert fill(mail)[0] == 1
    assert members(mail) == ["a"]


def test_leases_of_others_count_for_the_cap(mail):
    mail.configure(max_inflight=3)
    mail.lease("held")
    mail.enqueue("a", "b", "c")
    assert fill(mail)[0] == 2
