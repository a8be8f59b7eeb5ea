"""await_capacity: a producer waits for capacity in a full queue; scripts that remove tasks notify it."""

import pytest

from jobrunner.broker.calls import leases, new_tasks, queues
from jobrunner.task import Task


@pytest.fixture
def mail(keys):
    return keys.queue("mail")


def push(broker, mail, *ids):
    return broker.run(new_tasks.enqueue(mail, [Task(id=one, queue="mail", payload=b"x") for one in ids]))


@pytest.mark.parametrize(("most", "room"), [("", -1), ("2", 0), ("5", 3), ("1", 0)])
def test_it_tells_how_much_room_there_is(broker, mail, raw, clock, most, room):
    now = clock.set()
    push(broker, mail, "a", "b")
    if most:
        raw.hset(mail.settings, "max_size", most)

    assert broker.run(queues.await_capacity(mail, lasts_ms=5000)) == room
    assert float(raw.hget(mail.settings, "capacity_wanted")) == now + 5000


@pytest.mark.parametrize("take", [lambda mail: leases.reserve(mail, 1, token="t"), lambda mail: leases.pop(mail, 1)])
def test_taking_tasks_hints_while_somebody_waits_and_not_else(broker, mail, raw, clock, take):
    clock.set()
    push(broker, mail, "a", "b", "c")
    raw.hset(mail.settings, "max_size", 3)
    broker.run(take(mail))
    assert not raw.exists(mail.capacity)

    broker.run(queues.await_capacity(mail, lasts_ms=5000))
    broker.run(take(mail))
    assert raw.zrange(mail.capacity, 0, -1) == [b"1"]

    raw.delete(mail.capacity)
    broker.run(leases.pop(mail, 9))
    raw.delete(mail.capacity)
    broker.run(take(mail))
    assert not raw.exists(mail.capacity), "nothing was there to take"

    push(broker, mail, "d")
    raw.delete(mail.capacity)
    clock.advance(5000)
    broker.run(take(mail))
    assert not raw.exists(mail.capacity)


def test_who_got_in_passes_the_hint_on_while_there_is_room(broker, mail, raw, clock):
    clock.set()
    raw.hset(mail.settings, "max_size", 2)
    broker.run(queues.await_capacity(mail, lasts_ms=5000))

    push(broker, mail, "a")
    assert raw.zrange(mail.capacity, 0, -1) == [b"1"]

    raw.delete(mail.capacity)
    push(broker, mail, "b")
    assert not raw.exists(mail.capacity)


def test_who_waited_until_now_gets_no_hint_any_more(broker, mail, raw, clock):
    clock.set()
    raw.hset(mail.settings, "max_size", 2)
    broker.run(queues.await_capacity(mail, lasts_ms=5000))
    clock.advance(5000)

    push(broker, mail, "a")
    assert not raw.exists(mail.capacity)
