"""queue_bulk_counts: the counts of many queues in one call; list_workers: the heartbeats of all workers in one call."""

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.stats import MOST_AT_ONCE, bulk_counts, list_workers


def surveyed(mail):
    (found,) = mail.run(bulk_counts([mail.keys])[0])
    return found


def test_it_tells_what_counts_tells(mail):
    mail.fail(mail.lease("dead"), fate="dead")
    mail.lease("held")
    mail.enqueue("later", delay_ms=100)
    mail.enqueue("a", "b")

    assert surveyed(mail).counts == mail.run(queues.counts(mail.keys))


def test_what_is_due_and_what_ended_counts_as_waiting_and_nothing_is_changed(mail, clock):
    mail.enqueue("later", delay_ms=100)
    mail.lease("held")
    clock.advance(30_000)
    before = mail.snapshot()

    found = surveyed(mail).counts
    assert (found.waiting, found.scheduled, found.pending) == (2, 0, 0)
    assert mail.snapshot() == before


@pytest.mark.parametrize("oldest", [0, 1, 2])
def test_the_oldest_is_told_whatever_its_priority(mail, clock, oldest):
    mail.enqueue("old", priority=oldest)
    since = clock.ms
    clock.advance(5000)
    for priority in range(3):
        mail.enqueue(f"new{priority}", priority=priority)

    assert int(surveyed(mail).oldest_due_ms) == since


def test_the_oldest_is_told_to_the_fraction(mail, clock):
    mail.enqueue("a")
    assert surveyed(mail).oldest_due_ms == clock.ms + 0.5


def test_nothing_is_the_oldest_where_no_place_can_be_read(mail):
    mail.raw.zadd(mail.keys.waiting, {"damaged": 9e15})
    found = surveyed(mail)
    assert (found.counts.waiting, found.oldest_due_ms) == (1, None)


def test_the_end_of_a_pause_is_told(mail, clock):
    mail.run(queues.configure(mail.keys, {"paused": clock.ms + 500}))

    found = surveyed(mail)
    assert (found.counts.paused, found.pause_ends_ms) == (True, clock.ms + 500)


def test_limits_are_told_as_they_are_stored(mail):
    assert surveyed(mail).limits == {}
    mail.run(queues.configure(mail.keys, {"max_inflight": 7, "max_size": ""}))

    assert surveyed(mail).limits == {"max_inflight": b"7"}


def test_many_queues_are_told_in_order_and_damage_of_one_stays_its_own(broker, keys, raw):
    named = [keys.queue(f"q{n}") for n in range(MOST_AT_ONCE + 1)]
    raw.set(named[1].waiting, "x")
    raw.zadd(named[2].dead, {"a": 1, "b": 2})

    calls = bulk_counts(named)
    found = [one for call in calls for one in broker.run(call)]

    assert [len(call.keys) for call in calls] == [MOST_AT_ONCE, 1]
    assert "WRONGTYPE" in found[1]
    assert [one.counts.dead for one in found if not isinstance(one, str)][:3] == [0, 2, 0]


def test_a_user_who_may_only_read_can_survey(mail, weak_broker):
    mail.enqueue("a")
    (found,) = weak_broker("-@write").run(bulk_counts([mail.keys])[0])
    assert found.counts.waiting == 1


def test_the_crew_are_those_who_are_not_silent(broker, keys, raw):
    for name in ("w1", "w2"):
        broker.run(leader_calls.announce(keys, name, {"host": "h"}, ttl_ms=5000))
    raw.delete(keys.worker("w1"))

    assert broker.run(list_workers(keys)) == [("w2", {"host": b"h"})]


def test_a_queue_that_holds_nothing_is_told_of_in_few_commands(mail, raw, clock):
    mail.commit(mail.lease("done"))
    mail.run(queues.configure(mail.keys, {"max_inflight": 7, "paused": clock.ms + 500}))
    before = raw.info("commandstats")

    found = surveyed(mail)

    after = raw.info("commandstats")
    run = {name: stats["calls"] - before.get(name, {"calls": 0})["calls"] for name, stats in after.items()}
    assert sum(run.values()) <= 6, run  # two of them are the call itself and this question
    assert found.counts == mail.run(queues.counts(mail.keys))
    assert found.counts.totals["succeeded"] == 1
    assert (found.limits, found.pause_ends_ms, found.oldest_due_ms) == ({"max_inflight": b"7"}, clock.ms + 500, None)


@pytest.mark.parametrize("waiting", [False, True])
def test_a_due_task_that_nobody_moved_is_the_oldest(mail, clock, waiting):
    """The age of a queue without a live worker stayed 0, so that no alert fired."""
    mail.enqueue("later", delay_ms=100)
    due_ms = clock.ms + 100
    clock.advance(5000)
    if waiting:
        mail.enqueue("new")

    assert int(surveyed(mail).oldest_due_ms) == due_ms


def test_a_task_whose_lease_ended_waits_since_then(mail, clock):
    mail.lease("held")
    clock.advance(35_000)
    mail.enqueue("new")

    assert surveyed(mail).oldest_due_ms == clock.ms - 5000


def test_tasks_that_are_not_due_and_leases_that_last_are_not_the_oldest(mail, clock):
    mail.enqueue("later", delay_ms=100)
    mail.lease("held")
    mail.enqueue("new")

    assert int(surveyed(mail).oldest_due_ms) == clock.ms
