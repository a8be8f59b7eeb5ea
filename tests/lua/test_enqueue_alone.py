"""enqueue: one task by itself, which takes ways of its own through the script.

They are for a new queue, for a known one without limits, and for one that has some.
"""

import pytest

from jobrunner.broker.calls import leases, new_tasks
from jobrunner.errors import QueueFull
from jobrunner.task import Task


@pytest.fixture
def known(mail):
    """The queue after its first task, which came and went."""
    mail.enqueue("before")
    mail.commit(*mail.reserve())
    mail.wakes()
    return mail


def a_task(name, **options):
    return Task(id=name, queue="mail", payload=b"1", **options)


ALONE = {
    "plain": {},
    "kept": {"kept_s": 60},
    "with options": {"kept_s": 60, "max_attempts": 3, "headers": b"{}", "type": "send", "key": "k"},
}


@pytest.mark.parametrize("options", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("step_ms", [0, 7, -7], ids=["within a millisecond", "later", "clock back"])
def test_a_task_alone_enters_a_known_queue_as_one_among_others(mail, clock, options, step_ms):
    """Three ways through the script: first in its queue, alone in a known one, among others."""
    found = []
    for name in ("first", "alone"):
        assert mail.enqueue(name, **options) == [True]
        assert mail.wakes()
        found.append(mail.hash(name))
        clock.advance(step_ms)
    assert mail.enqueue("a", "b", **options) == [True, True]
    found += [mail.hash(name) for name in "ab"]

    assert mail.ids("waiting") == ["first", "alone", "a", "b"]
    places = [float(one.pop("place")) for one in found]
    assert places == list(mail.scores("waiting").values())
    assert float(mail.raw.get(mail.keys.arrival)) == places[-1]
    assert [one.pop("id") for one in found] == [b"first", b"alone", b"a", b"b"]
    assert [float(one.pop("enqueue_time")) for one in found] == [clock.ms - n * step_ms for n in (2, 1, 0, 0)]
    assert all(one == found[0] for one in found)
    assert mail.totals() == {"enqueued": 4}


def test_a_task_alone_that_is_sent_again_is_known_by_its_note_or_by_its_id(mail):
    mail.enqueue("first")
    for is_kept in (False, True):
        task = a_task(f"kept {is_kept}", kept_s=60 * is_kept, sending="" if is_kept else "1")
        assert mail.run(new_tasks.enqueue(mail.keys, [task])) == [True]
        if not is_kept:
            mail.run(leases.pop(mail.keys, 9))  # it is finished and deleted
        before = mail.snapshot()
        # A call with a note gets its reply again, one without hears that the id exists.
        assert mail.run(new_tasks.enqueue(mail.keys, [task])) == [not is_kept]
        assert mail.snapshot() == before


@pytest.mark.parametrize(("past_ms", "place"), [(0.0, 512), (0.75, 896), (0.001, 512), (0.0025, 513), (0.999, 1023)])
def test_its_place_is_in_the_second_half_of_its_millisecond(known, clock, past_ms, place):
    """Where in that half, the clock decides: so a later task mostly has a later place."""
    clock.set(1_700_000_000_001 + past_ms)
    known.enqueue("a")

    assert known.scores("waiting") == {"a": 1_700_000_000_001 + place / 1024}


def test_those_of_one_instant_and_of_one_before_are_one_step_behind_the_last(known, clock):
    for one, ms in [("a", 1.5), ("b", 1.5), ("c", 1.501), ("d", 0.75), ("e", 1.6)]:
        clock.set(1_700_000_000_000 + ms)
        known.enqueue(one)

    places = [1024 * (place - 1_700_000_000_001) for place in known.scores("waiting").values()]
    assert known.ids("waiting") == list("abcde")
    assert places == [768, 769, 770, 771, 819]


def test_one_hint_is_left_however_many_tasks_arrive(mail):
    for one in "abc":  # the first of the queue, two in a known one
        mail.enqueue(one)
        assert mail.raw.zrange(mail.keys.wake, 0, -1, withscores=True) == [(b"1", 0)]


def test_a_known_queue_takes_as_many_as_it_may_hold_and_no_more(known):
    known.configure(max_size=2)
    known.enqueue("a")
    known.enqueue("b")
    before = known.snapshot()

    with pytest.raises(QueueFull):
        known.enqueue("c")
    assert known.snapshot() == before


@pytest.mark.parametrize("ids", ["a", "ab"], ids=["alone", "two"])
@pytest.mark.parametrize("key", ["k", None])
@pytest.mark.parametrize("setting", ["fair", "key_inflight", "key_tokens"])
def test_in_a_queue_with_partitions_it_enters_that_of_its_key(known, setting, key, ids):
    known.configure(**{setting: 1})
    known.enqueue(*ids, key=key)

    places = {one: float(known.hash(one)["place"]) for one in ids}
    partition = known.keys.waiting.removesuffix(b"waiting") + b"partition:0:" + (key or "").encode()
    assert known.raw.zrange(partition, 0, -1, withscores=True) == [(one.encode(), at) for one, at in places.items()]
    assert known.scores("waiting") == {one: 2**46 + at for one, at in places.items()}


def test_its_note_has_the_name_of_the_call_and_lasts_for_ten_seconds(known):
    replied(known, a_task("a", sending="1"))

    assert 9_000 < known.raw.pttl(known.keys.base + b"sent:a1") <= 10_000


def replied(mail, *sent):
    return mail.run(new_tasks.enqueue(mail.keys, sent))


@pytest.mark.parametrize("options", [{}, {"delay_ms": 9}, {"priority": 2}, {"sending": "1"}])
@pytest.mark.parametrize("settings", [{}, {"max_size": 9}, {"fair": 1}, {"max_inflight": 9}])
def test_the_reply_says_whether_the_queue_is_new(mail, settings, options):
    if settings:
        mail.configure(**settings)
    assert [replied(mail, a_task(one, **options)).is_first for one in "abc"] == [True, False, False]


def test_the_reply_to_a_call_that_is_sent_again_says_so_too(mail):
    assert [replied(mail, a_task("a", sending="1")).is_first for _ in range(2)] == [True, True]
    mail.run(leases.pop(mail.keys, 9))
    assert replied(mail, a_task("a", sending="1")).is_first
    assert [replied(mail, a_task("b", sending="1")).is_first for _ in range(2)] == [False, False]


def test_a_refused_task_leaves_its_queue_new(mail):
    mail.configure(max_size=1)
    mail.raw.zadd(mail.keys.scheduled, {"x": 1})
    with pytest.raises(QueueFull):
        mail.enqueue("a")
    mail.raw.delete(mail.keys.scheduled)
    assert replied(mail, a_task("a")).is_first


@pytest.mark.parametrize("settings", [{}, {"max_inflight": 9}])
def test_an_id_that_exists_is_found_with_and_without_settings(mail, settings):
    mail.enqueue("a")
    if settings:
        mail.configure(**settings)
    before = mail.snapshot()
    assert mail.enqueue("a") == [False]
    assert mail.snapshot() == before


def test_one_known_task_of_a_call_is_noted_as_several_are(mail):
    mail.enqueue("b")
    sent = [a_task(one, sending="1") for one in "ab"]
    first = replied(mail, *sent)
    mail.run(leases.pop(mail.keys, 9))

    assert first == replied(mail, *sent) == [True, False]
