"""periodic_fire: one tick of a periodic job becomes one waiting task, whoever and however many try."""

import pytest

from jobrunner.broker.calls import leader as leader_calls
from jobrunner.errors import ServerFull, ServerRefused


@pytest.fixture
def fire(mail, clock):
    def call(tick, *, expected="", due_ms=None, epoch=0, overlap="skip", priority=1, together=None, fields=()):
        return mail.run(
            leader_calls.fire(
                mail.keys,
                "tick",
                expected=expected,
                tick_ms=tick,
                due_ms=clock.ms if due_ms is None else due_ms,
                epoch=epoch,
                task_id=f"tick-{tick}",
                priority=priority,
                overlap=overlap,
                schedule="5c",
                together_ms=tick if together is None else together,
                fields=["type", "tick", "queue", "mail", "payload", b"{}", *fields],
            )
        )

    return call


@pytest.fixture
def state(mail):
    return lambda: mail.run(leader_calls.periodic_state(mail.keys, "tick"))


def test_a_tick_becomes_a_waiting_task(mail, clock, fire, state):
    assert fire(1000) == "fired"

    assert mail.scores("waiting") == {"tick-1000": clock.ms + 0.5}
    found = mail.hash("tick-1000")
    assert (found["id"], found["type"], found["queue"], found["payload"]) == (b"tick-1000", b"tick", b"mail", b"{}")
    assert (found["enqueue_time"], found["retry_count"]) == (b"%d" % clock.ms, b"0")
    assert state() == {"last": b"1000", "schedule": b"5c", "task": b"tick-1000", "together": b"1000",
                       "fired": b"1", "recent": b"1000,fired,tick-1000"}
    assert mail.totals() == {"enqueued": 1}
    assert mail.wakes()
    (attempt,) = mail.reserve()
    assert (attempt.id, attempt.number) == ("tick-1000", 1)


def test_a_tick_due_later_is_scheduled_for_its_instant(mail, clock, fire):
    assert fire(1000, due_ms=clock.ms + 250.0) == "fired"

    assert mail.scores("scheduled") == {"tick-1000": clock.ms + 250}


def test_a_tick_by_hand_is_fired_though_the_job_is_disabled(mail, fire):
    mail.run(leader_calls.enable_periodic(mail.keys, "tick", enabled=False))
    assert fire(1000, epoch=1) == "disabled"
    assert fire(2000, expected="1000", epoch=0) == "fired"


def test_the_same_tick_again_is_missed(mail, fire):
    fire(1000)
    before = mail.snapshot()

    assert fire(1000) == "missed"
    assert fire(1000, expected="999") == "missed"
    assert mail.snapshot() == before


def test_a_tick_is_fired_by_who_knows_the_last_one(mail, fire, state):
    fire(1000)
    mail.commit(*mail.reserve())

    assert fire(2000, expected="1000") == "fired"
    assert state()["last"] == b"2000"


def test_a_tick_is_skipped_while_the_earlier_task_is_not_finished(mail, fire, state):
    fire(1000)
    assert fire(2000, expected="1000") == "skipped"
    (attempt,) = mail.reserve()
    assert fire(3000, expected="2000") == "skipped"
    mail.release(attempt, delay_ms=500)
    assert fire(4000, expected="3000") == "skipped"
    assert (state()["skipped"], state()["fired"], state()["last"]) == (b"3", b"1", b"4000")
    assert mail.totals()["enqueued"] == 1


def test_ticks_that_are_caught_up_together_do_not_keep_each_other_out(mail, fire, state):
    assert fire(1000, together=3000) == "fired"
    assert fire(2000, expected="1000", together=3000) == "fired"
    assert fire(3000, expected="2000", together=3000) == "fired"
    assert fire(4000, expected="3000", together=5000) == "skipped"
    assert fire(5000, expected="4000", together=5000) == "skipped"


def test_a_dead_task_holds_up_no_tick(mail, fire):
    fire(1000)
    mail.fail(*mail.reserve(), fate="dead")

    assert fire(2000, expected="1000") == "fired"


def test_ticks_overlap_when_they_may(mail, fire):
    fire(1000, overlap="allow")

    assert fire(2000, expected="1000", overlap="allow") == "fired"
    assert mail.ids("waiting") == ["tick-1000", "tick-2000"]


def test_an_older_leader_is_fenced(mail, fire, state):
    assert fire(1000, epoch=7, overlap="allow") == "fired"
    before = mail.snapshot()

    assert fire(2000, expected="1000", epoch=6, overlap="allow") == "fenced"
    assert mail.snapshot() == before
    assert fire(2000, expected="1000", epoch=7, overlap="allow") == "fired"
    assert fire(3000, expected="2000", epoch=8, overlap="allow") == "fired"
    assert state()["epoch"] == b"8"


def test_the_first_leader_of_all_is_fenced_by_the_second(fire):
    assert fire(1000, epoch=2, overlap="allow") == "fired"
    assert fire(2000, expected="1000", epoch=1, overlap="allow") == "fenced"


def test_a_person_is_not_fenced_and_fences_nobody(fire, state):
    fire(1000, epoch=7, overlap="allow")

    assert fire(2000, expected="1000", epoch=0, overlap="allow") == "fired"
    assert state()["epoch"] == b"7"


def test_a_tick_whose_task_exists_is_not_made_twice(mail, fire, state):
    mail.enqueue("tick-1000", payload=b"mine")

    assert fire(1000) == "missed"
    assert mail.hash("tick-1000")["payload"] == b"mine"
    assert state()["last"] == b"1000", "the tick is done with"


def test_a_priority_decides_the_place(mail, fire):
    mail.enqueue("plain")
    fire(1000, priority=2, fields=["priority", 2])

    assert mail.ids("waiting") == ["tick-1000", "plain"]


def test_a_full_server_takes_nothing(mail, fire):
    mail.enqueue("before")
    before = mail.snapshot()
    mail.raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerFull):
            fire(1000)
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert mail.snapshot() == before


def test_a_job_that_is_switched_off_lets_its_ticks_pass_by(mail, clock, fire, state):
    mail.run(leader_calls.enable_periodic(mail.keys, "tick", enabled=False))

    assert fire(1000, epoch=1) == "disabled"
    assert state() == {"disabled": b"1", "epoch": b"1", "last": b"1000", "schedule": b"5c",
                       "recent": b"1000,disabled,"}
    assert mail.scores("waiting") == {}

    mail.run(leader_calls.enable_periodic(mail.keys, "tick", enabled=True))
    assert fire(2000, expected="1000", epoch=1) == "fired"


@pytest.mark.parametrize("damaged", ["waiting", "scheduled", "pending", "wake", "counters", "arrival"])
def test_a_damaged_key_of_the_queue_costs_no_tick(mail, fire, state, damaged):
    key = getattr(mail.keys, damaged)
    (mail.raw.set if damaged != "arrival" else mail.raw.sadd)(key, "damage")
    before = mail.snapshot()

    with pytest.raises(ServerRefused):
        fire(1000, epoch=1)
    assert mail.snapshot() == before

    mail.raw.delete(key)
    assert fire(1000, epoch=1) == "fired"
    assert mail.ids("waiting") == ["tick-1000"]
    assert state()["last"] == b"1000"


@pytest.mark.parametrize(("of_queue", "field"), [(True, "enqueued"), (False, "fired"), (False, "skipped")])
def test_a_count_that_is_no_number_costs_no_tick(mail, fire, of_queue, field):
    key = mail.keys.counters if of_queue else mail.keys.periodic("tick")
    mail.raw.hset(key, field, "damage")
    before = mail.snapshot()

    with pytest.raises(ServerRefused, match="no number"):
        fire(1000)
    assert mail.snapshot() == before

    mail.raw.hdel(key, field)
    assert fire(1000) == "fired"


def test_a_last_tick_that_is_ahead_of_the_clock_is_taken_back(mail, clock, fire, state):
    ahead = int(clock.ms) + 3_600_000
    fire(ahead, epoch=3)

    def anchor(**changes):
        wanted = {"expected": str(ahead), "to_ms": int(clock.ms), "ahead_ms": 11_000, "epoch": 3, "schedule": "5c"}
        return mail.run(leader_calls.anchor(mail.keys, "tick", **wanted | changes))

    assert anchor(epoch=2) == "fenced"
    assert anchor(expected="1000") == "missed"
    assert anchor(ahead_ms=3_600_000) == "missed"
    assert anchor(to_ms=int(clock.ms) + 11_001) == "missed"
    assert state()["last"] == b"%d" % ahead
    assert anchor(to_ms=int(clock.ms) + 11_000) == "anchored"
    assert state()["last"] == b"%d" % (clock.ms + 11_000)
    assert anchor() == "missed"


def test_a_tick_that_is_ahead_of_the_clock_makes_a_task_that_is_due_now(mail, clock, fire):
    ahead = int(clock.ms) + 3_600_000
    fire(ahead, due_ms=ahead)
    fire(ahead + 1, expected=str(ahead), due_ms=ahead + 251, overlap="allow")
    assert mail.ids("waiting") == [f"tick-{ahead}"]
    assert mail.scores("scheduled") == {f"tick-{ahead + 1}": clock.ms + 250}


@pytest.mark.parametrize(
    ("delay_ms", "left_ms"),
    [(3_600_400, 401), (3_599_999, 1), (1, 1)],
    ids=["as long after its tick as before", "its pause is over", "no earlier than now"],
)
def test_the_task_of_a_tick_that_is_taken_back_is_moved_with_it(mail, clock, fire, delay_ms, left_ms):
    clock.set(clock.ms // 1 + 0.25)  # due times are whole milliseconds
    start, ahead = int(clock.ms), int(clock.ms) + 3_600_000
    fire(ahead, due_ms=ahead, epoch=3, priority=2, fields=["priority", 2])
    (attempt,) = mail.reserve()
    mail.release(attempt, delay_ms=delay_ms)
    mail.reserve()
    assert mail.wakes()

    call = leader_calls.anchor(
        mail.keys, "tick", expected=str(ahead), to_ms=start, ahead_ms=11_000, epoch=3, schedule="5c"
    )  # fmt: skip
    assert mail.run(call) == "anchored"
    (due,) = mail.scores("scheduled").values()
    assert due - start == left_ms
    assert float(mail.hash(attempt.id)["place"]) == due - 2**42
    assert mail.wakes()


def test_a_last_tick_of_another_schedule_is_moved(mail, fire, state):
    fire(1000, epoch=3)
    call = leader_calls.anchor(
        mail.keys, "tick", expected="1000", to_ms=5000, ahead_ms=None, epoch=4, schedule="6d"
    )  # fmt: skip
    assert mail.run(call) == "anchored"
    fields = ("last", "together", "epoch", "schedule")
    assert [state()[field] for field in fields] == [b"5000", b"5000", b"4", b"6d"]
    assert mail.run(call) == "missed"


def test_the_last_ticks_are_kept_and_a_missed_one_is_none_of_them(mail, fire, state):
    ticks = range(1000, 26_000, 1000)
    for tick in ticks:
        fire(tick, expected="" if tick == 1000 else str(tick - 1000), overlap="skip" if tick == 25_000 else "allow")
    assert fire(25_000, expected="24000") == "missed"

    recent = state()["recent"].decode().split(";")

    assert recent[:2] == ["25000,skipped,", "24000,fired,tick-24000"]
    assert [one.partition(",")[0] for one in recent] == [str(tick) for tick in reversed(ticks)][:20]
