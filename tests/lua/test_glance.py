"""glance: whether there is anything for the leader to do, in one call for many queues."""

from jobrunner.broker.calls import coordination
from jobrunner.broker.calls.glance import MOST_AT_ONCE, Glance, glance


def test_a_quiet_queue_has_nothing_to_do(mail, keys):
    mail.lease("a")
    mail.enqueue("b")

    assert mail.run(glance(keys, [mail.keys])[0]) == Glance(dead={"mail": 0})


def test_what_there_is_to_do_is_told_and_nothing_is_changed(mail, line, keys, raw):
    raw.hset(mail.keys.outbox, "x", "y")
    raw.zadd(line("shop/raw").keys.closing, {"b": 1})
    mail.fail(mail.lease("a"), fate="dead")
    before = mail.snapshot()

    queues = [keys.queue(name) for name in ("mail", "shop/clean", "shop/raw")]
    found = mail.run(glance(keys, queues)[0])

    assert found == Glance(posted=["mail"], closing=["shop/raw"], dead={"mail": 1, "shop/clean": 0, "shop/raw": 0})
    assert mail.snapshot() == before


def test_an_outbox_that_several_queues_share_is_told_once(mail, keys, raw):
    queues = [keys.queue(f"orders/{n}") for n in range(3)]
    raw.hset(queues[0].outbox, "x", "y")

    assert mail.run(glance(keys, queues)[0]).posted == ["orders"]


def test_workers_that_fell_silent_are_told(broker, keys, raw):
    for name in ("w1", "w2", "w3"):
        broker.run(coordination.announce(keys, name, {"host": "h"}, ttl_ms=5000))
    raw.delete(keys.worker("w2"))
    broker.run_many(coordination.retire(keys, "w3"))

    assert broker.run(glance(keys, [])[0]) == Glance(silent=["w2"])


def test_one_call_looks_at_a_hundred_queues_and_the_workers(broker, keys, raw):
    queues = [keys.queue(f"q{n}") for n in range(MOST_AT_ONCE + 1)]
    raw.hset(queues[-1].outbox, "x", "y")
    calls = glance(keys, queues)

    assert [len(call.keys) for call in calls] == [1 + MOST_AT_ONCE, 1]
    assert broker.run(calls[1]).posted == [queues[-1].tag]


def test_damage_of_one_queue_stays_its_own(broker, keys, raw):
    queues = [keys.queue(name) for name in "abc"]
    raw.set(queues[0].counters, "x")
    raw.hset(queues[1].counters, "dead", "many")
    raw.hset(queues[2].counters, "dead", "3")
    raw.set(queues[0].outbox, "x")

    assert broker.run(glance(keys, queues)[0]) == Glance(posted=["a"], dead={"b": 0, "c": 3})


def test_a_user_who_may_only_read_can_look(mail, keys, weak_broker):
    assert weak_broker("-@write").run(glance(keys, [mail.keys])[0]) == Glance(dead={"mail": 0})
