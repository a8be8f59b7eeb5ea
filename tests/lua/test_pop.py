"""pop: waiting → out of the queue, at most once."""

import pytest

from jobrunner.broker.calls import leases, queues
from jobrunner.errors import ServerRefused


def popped(mail, count=10):
    return mail.run(leases.pop(mail.keys, count))


def test_the_first_in_line_are_out_for_good(mail):
    mail.enqueue(*"zma", type="send", payload=b"\0\xff", headers=b"{}", encoding="json")

    assert popped(mail, 2) == [
        [b"z", b"send", b"\0\xff", b"{}", b"json", None, b"0"],
        [b"m", b"send", b"\0\xff", b"{}", b"json", None, b"0"],
    ]

    assert mail.ids("waiting") == ["a"]
    assert mail.hash("z") == mail.hash("m") == {}
    assert mail.totals() == {"enqueued": 3, "succeeded": 2}
    assert [raw[0] for raw in popped(mail)] == [b"a"]
    assert popped(mail) == []


def test_what_a_task_does_not_say_is_none(mail):
    mail.enqueue("a")

    assert popped(mail) == [[b"a", b"", b"{}", None, None, None, b"0"]]


def test_an_item_without_the_field_of_its_type_leaves_no_hash(mail):
    own_id = f"{'0' * 28}-mail"
    mail.enqueue(own_id)
    mail.raw.hdel(mail.keys.task(own_id), "type")

    assert [raw[:2] for raw in popped(mail)] == [[own_id.encode(), None]]
    assert mail.hash(own_id) == {}


def test_a_scheduled_task_is_popped_when_it_is_due(mail, clock):
    mail.enqueue("a", delay_ms=100)
    clock.advance(99.999)
    assert popped(mail) == []
    clock.advance(0.001)
    assert [raw[0] for raw in popped(mail)] == [b"a"]


def test_a_task_in_someones_hands_is_not_popped_until_its_lease_ends(mail, clock):
    mail.lease("a")
    assert popped(mail) == []
    clock.advance(30_000)
    assert [raw[0] for raw in popped(mail)] == [b"a"]


def test_a_paused_queue_gives_nothing(mail):
    mail.enqueue("a")
    mail.run(queues.configure(mail.keys, {"paused": 1}))

    assert popped(mail) == []
    assert mail.ids("waiting") == ["a"]


def test_damage_is_dropped_and_the_next_is_popped(mail):
    mail.enqueue("a", "b", "c")
    mail.raw.delete(mail.keys.task("a"), mail.keys.task("b"))
    mail.raw.set(mail.keys.task("b"), "text")

    assert [raw[0] for raw in popped(mail, 1)] == [b"c"]
    assert mail.totals()["orphaned"] == 2
    assert not mail.raw.exists(mail.keys.task("b"))


@pytest.mark.parametrize("left", ["type", "payload", "enqueue_time"])
def test_a_task_of_which_one_field_is_left_is_popped(mail, left):
    mail.enqueue("a", type="send")
    mail.raw.hdel(mail.keys.task("a"), *{"type", "payload", "enqueue_time"} - {left})
    assert [raw[0] for raw in popped(mail)] == [b"a"]
    assert "orphaned" not in mail.totals()


def test_a_task_past_its_time_to_start_is_dead(mail, clock):
    mail.enqueue("a", expires_in_ms=10)
    mail.enqueue("b", expires_in_ms=11)
    clock.advance(10)

    assert [raw[0] for raw in popped(mail)] == [b"b"]
    assert mail.ids("dead") == ["a"]


def test_another_is_woken_while_tasks_wait(mail):
    mail.enqueue("a", "b")
    mail.wakes()

    popped(mail, 1)
    assert mail.wakes()
    popped(mail, 1)
    assert not mail.wakes()


def test_large_payloads_come_out_until_their_bytes_are_spent_and_at_least_one(mail):
    mail.enqueue("a", payload=b"x" * 1001)
    mail.enqueue("b", "c", "d", payload=b"x" * 500)
    mail.raw.hdel(mail.keys.task("b"), "payload")
    mail.wakes()

    found = [[raw[0] for raw in mail.run(leases.pop(mail.keys, 9, most_bytes=1000))] for _ in range(3)]

    assert found == [[b"a"], [b"b", b"c", b"d"], []]
    assert mail.totals() == {"enqueued": 4, "succeeded": 4}


def test_another_is_woken_while_tasks_wait_that_a_pop_had_no_bytes_for(mail):
    mail.enqueue("a", "b", payload=b"x" * 1000)
    mail.wakes()

    mail.run(leases.pop(mail.keys, 9, most_bytes=1000))

    assert mail.wakes()
    assert mail.ids("waiting") == ["b"]


def test_a_queue_that_was_never_used_stays_without_keys(mail):
    assert popped(mail) == []
    assert mail.snapshot() == {}


def test_a_server_that_is_full_lets_it_out(mail):
    mail.enqueue("a")
    mail.raw.config_set("maxmemory", 1)
    try:
        assert [raw[0] for raw in popped(mail)] == [b"a"]
    finally:
        mail.raw.config_set("maxmemory", 0)


def test_a_denied_deletion_leaves_the_task(mail, weak_broker):
    mail.enqueue("a")

    with pytest.raises(ServerRefused):
        weak_broker("-unlink").run(leases.pop(mail.keys, 1))
    assert [raw[0] for raw in popped(mail)] == [b"a"]
