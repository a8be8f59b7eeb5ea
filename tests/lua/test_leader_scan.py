"""leader_scan: whether there is anything for the leader to do, in one call for many queues."""

import pytest
from msgspec.structs import replace

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.broker.calls import queues
from jobrunner.broker.calls.leader import MOST_AT_ONCE, ScanReply, leader_scan

WEEK_MS = 604_800_000


def scan(line, keys, *names, **options):
    return line.run(leader_scan(keys, names or [line.name], **options)[0])


def test_a_quiet_queue_has_nothing_to_do(mail, keys):
    mail.commit(mail.lease("a"))

    assert scan(mail, keys) == ScanReply(dead={"mail": 0}, totals={"mail": 2})
    (call,) = leader_scan(keys, ["mail"], with_workers=False)
    assert mail.run(replace(call, read=list)) == [2], "the sum alone, as most queues are quiet"


def test_a_drained_queue_holds_nothing_whatever_is_left_to_do(mail, keys, raw):
    mail.commit(mail.lease("a"))
    raw.hset(mail.keys.outbox, "x", "y")
    found = scan(mail, keys)
    assert (found.posted, found.holding, found.totals) == (["mail"], [], {"mail": 2})


def test_what_a_queue_holds_is_told_with_its_next_event(mail, clock, keys):
    mail.lease("a")
    mail.enqueue("b")

    found = scan(mail, keys)
    assert (found.holding, found.in_work, found.due) == (["mail"], ["mail"], {"mail": clock.ms + 30_000})
    assert found.totals == {"mail": 2}

    mail.enqueue("c", delay_ms=1000)
    assert scan(mail, keys).due == {"mail": clock.ms + 1000}
    assert (found.unused, found.unmarked) == ([], [])


@pytest.mark.parametrize("name", ["waiting", "scheduled", "pending", "dead", "done", "batches", "finishing"])
def test_whatever_a_queue_holds_it_is_not_unused(mail, keys, raw, name):
    mail.commit(mail.lease("a"))
    raw.zadd(getattr(mail.keys, name), {"b": 1})

    found = scan(mail, keys, unused_ms=1)
    assert (found.holding, found.unused, found.unmarked) == (["mail"], [], [])
    assert found.in_work == (["mail"] if name in ("pending", "finishing") else [])


def test_what_there_is_to_do_is_told_and_nothing_is_changed(mail, line, keys, raw):
    raw.hset(mail.keys.outbox, "x", "y")
    raw.zadd(line("shop/raw").keys.finishing, {"b": 1})
    mail.fail(mail.lease("a"), fate="dead")
    before = mail.snapshot()

    found = scan(mail, keys, "mail", "shop/clean", "shop/raw")

    assert (found.posted, found.finishing) == (["mail"], ["shop/raw"])
    assert found.dead == {"mail": 1, "shop/clean": 0, "shop/raw": 0}
    assert mail.snapshot() == before


@pytest.mark.parametrize(("settings", "after_ms"), [({}, 2_592_000_000), ({"dead_ttl_ms": 5000}, 5000)])
def test_dead_tasks_are_due_when_they_are_past_their_time(mail, clock, keys, settings, after_ms):
    mail.run(queues.configure(mail.keys, settings))
    mail.fail(mail.lease("a"), fate="dead")

    assert scan(mail, keys).due == {"mail": clock.ms + after_ms}


def test_too_many_dead_tasks_are_due_now(mail, clock, keys):
    for name in "ab":
        mail.fail(mail.lease(name), fate="dead")
    assert scan(mail, keys).due == {"mail": clock.ms + 2_592_000_000}, "no number is too many"
    mail.run(queues.configure(mail.keys, {"dead_max": 2}))
    assert scan(mail, keys).due == {"mail": clock.ms + 2_592_000_000}, "as many as are allowed"
    mail.run(queues.configure(mail.keys, {"dead_max": 1}))

    assert scan(mail, keys).due == {"mail": clock.ms}


def test_history_is_due_by_its_age_and_by_its_number(mail, clock, keys):
    mail.run(queues.configure(mail.keys, {"history_ms": 9000}))
    mail.commit(mail.lease("a"))
    clock.advance(1)
    mail.commit(mail.lease("b"))
    assert scan(mail, keys).due == {"mail": clock.ms + 8999}

    mail.run(queues.configure(mail.keys, {"history_max": 2}))
    assert scan(mail, keys).due == {"mail": clock.ms + 8999}, "as many as are allowed"
    mail.run(queues.configure(mail.keys, {"history_max": 1}))
    assert scan(mail, keys).due == {"mail": clock.ms}


def test_a_single_finished_task_is_due_by_its_age(mail, clock, keys):
    mail.configure(history_ms=9000)
    mail.commit(mail.lease("a"))
    assert scan(mail, keys).due == {"mail": clock.ms + 9000}


def test_an_outbox_that_several_queues_share_is_told_once(mail, keys, raw):
    raw.hset(keys.queue("orders/0").outbox, "x", "y")

    assert scan(mail, keys, *(f"orders/{n}" for n in range(3))).posted == ["orders"]


def test_workers_that_fell_silent_are_told(broker, keys, raw):
    for name in ("w1", "w2", "w3"):
        broker.run(leader_calls.announce(keys, name, {"host": "h"}, ttl_ms=5000))
    raw.delete(keys.worker("w2"))
    broker.run_many(leader_calls.retire(keys, "w3"))

    assert broker.run(leader_scan(keys, [])[0]) == ScanReply(silent=["w2"])
    raw.delete(keys.worker("w1"))
    assert set(broker.run(leader_scan(keys, [])[0]).silent) == {"w1", "w2"}


def test_no_more_workers_than_a_thousand_are_looked_at(broker, keys, raw):
    raw.zadd(keys.workers, {f"w{n}": n for n in range(1001)})
    assert broker.run(leader_scan(keys, [])[0]).silent == [f"w{n}" for n in range(1000)]


def test_one_call_looks_at_a_hundred_queues_and_the_workers(broker, keys, raw):
    names = [f"q{n}" for n in range(MOST_AT_ONCE + 1)]
    raw.hset(keys.queue(names[-1]).outbox, "x", "y")
    calls = leader_scan(keys, names)

    assert [len(call.keys) for call in calls] == [1 + MOST_AT_ONCE, 1]
    assert broker.run(calls[1]).posted == [names[-1]]
    assert [len(call.keys) for call in leader_scan(keys, names, with_workers=False)] == [MOST_AT_ONCE, 1]
    assert leader_scan(keys, [], with_workers=False) == []


def test_damage_of_one_queue_stays_its_own(broker, keys, raw):
    queues = [keys.queue(name) for name in "abc"]
    raw.set(queues[0].counters, "x")
    raw.hset(queues[1].counters, "dead", "many")
    raw.hset(queues[2].counters, "dead", "3")
    raw.set(queues[0].outbox, "x")
    for key in (queues[1].scheduled, queues[1].pending, queues[1].dead, queues[1].done, queues[1].settings):
        raw.set(key, "x")

    found = broker.run(leader_scan(keys, "abc")[0])
    assert (found.posted, found.dead, found.due) == (["a"], {"b": 0, "c": 3}, {})
    raw.zadd(queues[0].waiting, {"x": 1})
    assert broker.run(leader_scan(keys, "a", with_workers=False)[0]).dead == {}


def test_a_user_who_may_only_read_can_look(mail, keys, weak_broker):
    mail.commit(mail.lease("a"))
    (call,) = leader_scan(keys, ["mail"], unused_ms=WEEK_MS)
    assert weak_broker("-@write").run(call).unmarked == ["mail"]


def test_a_queue_is_unused_when_it_was_marked_and_nothing_happened_since(mail, clock, keys):
    mail.commit(mail.lease("a"))
    found = scan(mail, keys, unused_ms=WEEK_MS)
    assert (found.unmarked, found.finishing) == (["mail"], [])
    assert mail.run(queues.forget(keys, ["mail"], unused_ms=None)) == ["marked"]

    assert scan(mail, keys, unused_ms=WEEK_MS) == ScanReply(dead={"mail": 0}, totals={"mail": 2})
    clock.advance(WEEK_MS)
    assert scan(mail, keys, unused_ms=WEEK_MS).unused == ["mail"]
    assert scan(mail, keys, unused_ms=0).unused == []

    mail.commit(mail.lease("b"))
    found = scan(mail, keys, unused_ms=WEEK_MS)
    assert (found.unused, found.unmarked) == ([], ["mail"])


def test_a_mark_of_a_clock_that_was_ahead_counts_for_nothing(mail, clock, keys):
    mail.commit(mail.lease("a"))
    clock.advance(WEEK_MS)
    mail.run(queues.forget(keys, ["mail"], unused_ms=None))
    clock.advance(-WEEK_MS)

    assert scan(mail, keys, unused_ms=WEEK_MS).unmarked == ["mail"]
