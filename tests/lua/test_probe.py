"""probe: upkeep, and whether a reserve could hand out a task now."""

import pytest

from jobrunner.broker.calls import queues


def probed(mail):
    return mail.run(queues.probe(mail.keys))


def test_a_queue_that_was_never_used_has_nothing_and_stays_without_keys(mail, clock):
    found = probed(mail)
    assert (found.now_ms, found.next_event_ms, found.keepalive_ms, found.has_tasks) == (clock.ms, None, 30_000, False)
    assert mail.snapshot() == {}


def test_what_waits_is_told_and_left_alone(mail):
    mail.enqueue("a", "b")
    before = mail.snapshot()
    assert probed(mail).has_tasks
    assert mail.snapshot() == before


def test_it_foretells_what_a_reserve_foretells(mail, clock):
    mail.enqueue("later", delay_ms=70_000)
    mail.lease("held", keepalive_ms=50_000)
    mail.configure(keepalive_ms=5000)
    found, asked = probed(mail), mail.ask(0)
    assert found.next_event_ms == asked.next_event_ms == clock.ms + 50_000
    assert found.keepalive_ms == asked.keepalive_ms == 5000
    assert not found.has_tasks


def test_what_became_due_and_what_lost_its_lease_is_there(mail, clock):
    mail.enqueue("later", delay_ms=100)
    clock.advance(100)
    assert probed(mail).has_tasks
    assert mail.ids("waiting") == ["later"]
    mail.reserve()
    clock.advance(30_000)
    assert probed(mail).has_tasks


@pytest.mark.parametrize(
    ("fields", "lifts_ms"),
    [({"paused": "1"}, None), ({"max_tokens": 1, "interval_us": 60_000_000}, 60_000), ({"max_inflight": 1}, 30_000)],
)
def test_a_queue_that_may_hand_out_nothing_has_nothing_until_its_limit_lifts(mail, clock, fields, lifts_ms):
    mail.enqueue("a", "b", "c")
    mail.reserve()
    mail.configure(**fields)
    if "max_tokens" in fields:
        assert len(mail.reserve(2)) == 1
    found = probed(mail)
    assert not found.has_tasks
    ends = clock.ms + 30_000
    assert found.next_event_ms == (ends if lifts_ms is None else min(clock.ms + lifts_ms, ends))


def test_a_pause_with_an_end_is_foretold(mail, clock):
    mail.enqueue("a")
    mail.configure(paused=str(int(clock.ms + 500)))
    assert probed(mail).next_event_ms == clock.ms + 500
    clock.advance(500)
    assert probed(mail).has_tasks


def test_limits_of_keys_are_not_looked_at(mail):
    mail.configure(key_inflight=1)
    mail.enqueue("a")
    assert probed(mail).has_tasks
