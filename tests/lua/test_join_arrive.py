"""arrive, prepare, abandon: a join counts its members and fires its task once, whatever is repeated."""

from typing import Any

import pytest

from jobrunner.broker.calls import flows
from jobrunner.errors import ServerRefused
from jobrunner.join import Arrival, Join, write_onward
from jobrunner.task import Task

WEEK_MS = 7 * 86_400_000
FAR = write_onward([Arrival("far", "next", 3)])


def prepare(mail, join_id="j", *, rule="success", total=2, task=True, onward=None, **options: Any):
    """A join in the queue mail, whose task is `then-<id>` and tells `onward`."""
    then = onward if task else None
    placed = {name: options.pop(name) for name in ("delay_ms", "at_ms", "priority", "headers") if name in options}
    made = Task(id=f"then-{join_id}", queue=mail.name, type="call", payload=b'{"x":1}', then=then, **placed)
    join = Join(
        id=join_id, queue=mail.name, rule=rule, total=total, ttl_ms=options.pop("ttl_ms", WEEK_MS),
        task=made if task else None, onward=b"" if task else onward or b"", **options,
    )  # fmt: skip
    return mail.run(flows.prepare(mail.keys, join))


def arrive(mail, *arrivals, join_id="j"):
    """Arrivals: (member, outcome) or (member, outcome, result)."""
    full = [(*one, b"")[:3] for one in arrivals]
    return mail.run(flows.join_arrive(mail.keys, join_id, full))


def outbox(mail):
    return {field.decode(): result for field, result in mail.raw.hgetall(mail.keys.outbox).items()}


def join_hash(mail, join_id="j"):
    return {name.decode(): value for name, value in mail.raw.hgetall(mail.keys.join(join_id)).items()}


def test_a_join_fires_when_its_last_member_succeeded(mail, clock):
    prepare(mail)

    assert arrive(mail, (1, "succeeded", b"[2]")) == "noted"
    assert mail.ids("waiting") == []
    assert arrive(mail, (0, "succeeded", b'{"n":[]}')) == "fired"

    assert mail.ids("waiting") == ["then-j"]
    task = mail.hash("then-j")
    assert (task["type"], task["payload"], task["queue"]) == (b"call", b'{"x":1}', b"mail")
    assert task["results"] == b'[{"n":[]},[2]]'
    assert task["outcomes"] == b'["succeeded","succeeded"]'
    assert float(task["enqueue_time"]) == clock.ms
    assert mail.totals() == {"enqueued": 1}
    assert mail.wakes()


def test_a_member_that_died_twice_counts_once(mail):
    prepare(mail, rule="complete", total=3)
    assert [arrive(mail, (0, "dead")) for _ in range(3)] == ["noted"] * 3
    assert arrive(mail, (1, "succeeded")) == "noted"
    assert arrive(mail, (2, "succeeded")) == "fired"
    assert mail.hash("then-j")["outcomes"] == b'["dead","succeeded","succeeded"]'


@pytest.mark.parametrize("later", ["cancelled", "dead", "succeeded"])
def test_an_end_that_is_no_death_stays(mail, later):
    prepare(mail, rule="complete")
    assert arrive(mail, (0, "succeeded", b"1")) == arrive(mail, (0, later, b"2")) == "noted"
    assert arrive(mail, (1, "succeeded", b"3")) == "fired"
    task = mail.hash("then-j")
    assert (task["outcomes"], task["results"]) == (b'["succeeded","succeeded"]', b"[1,3]")


def test_each_arrival_lets_the_join_live_as_long_again(mail):
    prepare(mail, ttl_ms=60_000)
    key = mail.keys.join("j")
    assert 59_000 < mail.raw.pttl(key) <= 60_000, "also when none ever comes"
    for say in (
        lambda: arrive(mail, (0, "cancelled")),
        lambda: arrive(mail, (0, "cancelled")),
        lambda: mail.run(flows.join_arrive_part(mail.keys, "j", 1, 0, b"x")),
    ):
        mail.raw.pexpire(key, 1000)
        say()
        assert 59_000 < mail.raw.pttl(key) <= 60_000


def test_a_member_without_a_result_brought_null(mail):
    prepare(mail)
    arrive(mail, (0, "succeeded"), (1, "succeeded", b"7"))
    assert mail.hash("then-j")["results"] == b"[null,7]"


def test_a_result_is_passed_on_byte_by_byte(mail):
    raw = b'{"big":130775545883395173,"empty":[],"text":"\\u0000:\\"\xc3\xa9"}'
    prepare(mail, total=1)
    arrive(mail, (0, "succeeded", raw))
    assert mail.hash("then-j")["results"] == b"[" + raw + b"]"


def test_all_members_in_one_call(mail):
    prepare(mail, total=1000)
    assert arrive(mail, *((n, "succeeded", b"%d" % n) for n in range(500))) == "noted"
    assert arrive(mail, *((n, "succeeded", b"%d" % n) for n in reversed(range(500, 1000)))) == "fired"
    assert mail.hash("then-j")["results"] == b"[" + b",".join(b"%d" % n for n in range(1000)) + b"]"


def test_the_same_arrival_again_changes_nothing(mail):
    prepare(mail)
    arrive(mail, (0, "succeeded", b"1"))
    before = mail.snapshot()

    assert arrive(mail, (0, "succeeded", b"1")) == "noted"
    assert arrive(mail, (0, "dead")) == "noted"
    assert mail.snapshot() == before


def test_a_join_that_fired_fires_no_more(mail):
    prepare(mail, total=1)
    assert arrive(mail, (0, "succeeded")) == "fired"
    mail.commit(*mail.reserve())

    assert arrive(mail, (0, "succeeded")) == "noted"
    assert prepare(mail, total=1) is False
    assert arrive(mail, (0, "succeeded")) == "noted"
    assert mail.ids("waiting") == []
    assert mail.totals() == {"enqueued": 1, "succeeded": 1}


def test_a_join_that_fired_keeps_nothing_of_its_members(mail):
    prepare(mail, total=1)
    arrive(mail, (0, "succeeded", b"1" * 1000))
    assert set(join_hash(mail)) == {"rule", "total", "ttl_ms", "fired"}
    assert mail.raw.pttl(mail.keys.join("j")) > 0


def test_preparing_again_leaves_a_join_as_it_is(mail):
    assert prepare(mail) is True
    arrive(mail, (0, "succeeded"))
    assert prepare(mail) is False
    assert arrive(mail, (1, "succeeded")) == "fired"


def test_a_member_that_died_and_succeeds_after_all_counts_as_succeeded(mail):
    prepare(mail, onward=FAR)
    assert arrive(mail, (0, "dead"), (1, "succeeded", b"1")) == "posted"
    assert outbox(mail) == {f"dead:{FAR.decode()}": b""}
    assert mail.ids("waiting") == []

    assert arrive(mail, (0, "succeeded", b"0")) == "fired"
    assert mail.hash("then-j")["results"] == b"[0,1]"
    assert mail.hash("then-j")["then"] == FAR


def test_a_member_that_succeeded_does_not_die_of_a_late_word(mail):
    prepare(mail)
    arrive(mail, (0, "succeeded", b"0"))
    arrive(mail, (0, "dead"))
    assert arrive(mail, (1, "succeeded", b"1")) == "fired"


def test_what_waits_is_told_only_when_all_members_ended(mail):
    prepare(mail, onward=FAR)
    assert arrive(mail, (0, "dead")) == "noted"
    assert outbox(mail) == {}
    assert arrive(mail, (1, "cancelled")) == "posted"
    assert outbox(mail) == {f"dead:{FAR.decode()}": b""}


def test_a_cancelled_member_ends_the_join_for_good(mail):
    prepare(mail, onward=FAR, total=1)
    assert arrive(mail, (0, "cancelled")) == "posted"
    assert arrive(mail, (0, "succeeded")) == "noted"
    assert outbox(mail) == {f"cancelled:{FAR.decode()}": b""}
    assert mail.ids("waiting") == []


def test_a_broken_join_that_nobody_waits_for_is_quiet(mail):
    prepare(mail, total=1)
    assert arrive(mail, (0, "dead")) == "noted"
    assert outbox(mail) == {}


def test_complete_fires_whatever_became_of_the_members(mail):
    prepare(mail, rule="complete", total=3)
    assert arrive(mail, (0, "dead"), (1, "cancelled")) == "noted"
    assert arrive(mail, (2, "succeeded", b"2")) == "fired"
    task = mail.hash("then-j")
    assert (task["results"], task["outcomes"]) == (b"[null,null,2]", b'["dead","cancelled","succeeded"]')


def test_dead_fires_at_the_first_death_and_once(mail):
    prepare(mail, rule="dead", total=3)
    assert arrive(mail, (0, "succeeded", b"0")) == "noted"
    assert arrive(mail, (2, "dead")) == "fired"
    assert arrive(mail, (1, "dead")) == "noted"
    task = mail.hash("then-j")
    assert (task["results"], task["outcomes"]) == (b"[0,null,null]", b'["succeeded","pending","dead"]')
    assert mail.totals() == {"enqueued": 1}


def test_dead_does_not_fire_when_nobody_died(mail):
    prepare(mail, rule="dead", onward=FAR)
    assert arrive(mail, (0, "succeeded"), (1, "cancelled")) == "noted"
    assert mail.ids("waiting") == []
    assert outbox(mail) == {}


def test_pass_tells_the_results_as_one(mail):
    prepare(mail, rule="pass", task=False, onward=FAR)
    assert arrive(mail, (1, "succeeded", b"1")) == "noted"
    assert arrive(mail, (0, "succeeded", b"0")) == "posted"
    assert outbox(mail) == {f"succeeded:{FAR.decode()}": b"[0,1]"}
    assert arrive(mail, (0, "succeeded", b"0")) == "noted"


def test_pass_corrects_itself_when_the_dead_succeed(mail):
    prepare(mail, rule="pass", total=1, task=False, onward=FAR)
    arrive(mail, (0, "dead"))
    mail.raw.delete(mail.keys.outbox)
    assert arrive(mail, (0, "succeeded", b"0")) == "posted"
    assert outbox(mail) == {f"succeeded:{FAR.decode()}": b"[0]"}


def test_a_tally_only_counts(mail):
    prepare(mail, rule="tally", task=False)
    assert arrive(mail, (0, "succeeded", b"0"), (1, "dead")) == "noted"
    assert mail.run(flows.tally(mail.keys, "j")) == flows.JoinCounts(2, 1, 1, 0)
    assert arrive(mail, (1, "succeeded", b"1")) == "noted"
    assert mail.run(flows.tally(mail.keys, "j")) == flows.JoinCounts(2, 2, 0, 0)
    assert mail.run(flows.members(mail.keys, "j", [1, 0, 5])) == [("succeeded", b"1"), ("succeeded", b"0"), None]


@pytest.mark.parametrize(("given", "brought", "seen"), [(b"[]", b"5", b"[]"), (b"*", b"[1,[2]]", b"[1,[2]]")])
def test_results_that_are_not_those_of_the_members(mail, given, brought, seen):
    prepare(mail, total=1, results=given)
    arrive(mail, (0, "succeeded", brought))
    assert mail.hash("then-j")["results"] == seen


def test_a_join_lives_on_from_arrival_to_arrival_and_not_for_ever(mail):
    prepare(mail, ttl_ms=60_000)
    mail.raw.pexpire(mail.keys.join("j"), 1000)
    arrive(mail, (0, "succeeded"))
    assert 59_000 < mail.raw.pttl(mail.keys.join("j")) <= 60_000


def test_a_join_that_is_gone_is_not_made_by_an_arrival(mail):
    assert arrive(mail, (0, "succeeded")) == "gone"
    assert mail.snapshot() == {}


def test_the_task_keeps_its_priority_due_time_and_headers(mail, clock):
    prepare(mail, "later", total=1, delay_ms=5000.0, headers=b'{"a":"b"}')
    prepare(mail, "urgent", total=1, priority=2)
    prepare(mail, "plain", total=1)
    for join_id in ("plain", "later", "urgent"):
        arrive(mail, (0, "succeeded"), join_id=join_id)

    assert mail.ids("waiting") == ["then-urgent", "then-plain"]
    assert mail.scores("scheduled") == {"then-later": clock.ms + 5000}
    clock.advance(6000)
    assert {one.id: one.headers for one in mail.reserve(3)}["then-later"] == b'{"a":"b"}'


def test_a_full_queue_takes_the_task_of_a_join(mail):
    mail.configure(max_size=1)
    mail.enqueue("a")
    prepare(mail, total=1)
    assert arrive(mail, (0, "succeeded")) == "fired"
    assert mail.ids("waiting") == ["a", "then-j"]


def test_a_join_in_a_pipeline(line):
    raw = line("orders/raw")
    prepare(raw, total=1)
    assert arrive(raw, (0, "succeeded")) == "fired"
    assert raw.ids("waiting") == ["then-j"]
    assert raw.hash("then-j")["queue"] == b"orders/raw"


def test_the_books_balance(mail, audit):
    prepare(mail, total=1)
    arrive(mail, (0, "succeeded"))
    assert audit("mail")["waiting"] == 1


def test_a_server_that_is_full_refuses_and_the_arrival_can_be_repeated(mail):
    prepare(mail, total=1)
    mail.raw.config_set("maxmemory", 1)
    try:
        with pytest.raises(ServerRefused):
            arrive(mail, (0, "succeeded"))
    finally:
        mail.raw.config_set("maxmemory", 0)
    assert arrive(mail, (0, "succeeded")) == "fired"


@pytest.mark.parametrize("damaged", ["outbox", "arrival"])
@pytest.mark.parametrize("rule", ["pass", "dead"])
def test_an_end_can_be_repeated_when_a_damaged_key_is_repaired(mail, rule, damaged):
    prepare(mail, rule=rule, total=3 if rule == "dead" else 1, task=rule == "dead", onward=FAR)
    before, key = join_hash(mail), getattr(mail.keys, damaged)
    mail.raw.delete(key)
    mail.raw.rpush(key, "no such type")

    with pytest.raises(ServerRefused):
        arrive(mail, (0, "dead"))
    assert join_hash(mail) == before
    mail.raw.delete(key)

    assert arrive(mail, (0, "dead")) == ("fired" if rule == "dead" else "posted")


@pytest.mark.parametrize("damaged", ["waiting", "scheduled", "counters", "enqueued", "arrival", "wake"])
def test_an_arrival_can_be_repeated_when_damage_to_the_queue_is_repaired(mail, damaged):
    prepare(mail, **({"delay_ms": 1000} if damaged == "scheduled" else {}))
    arrive(mail, (0, "succeeded", b"1"))
    before, key = join_hash(mail), getattr(mail.keys, "counters" if damaged == "enqueued" else damaged)
    mail.raw.delete(key)
    if damaged == "enqueued":
        mail.raw.hset(key, "enqueued", "many")
    elif damaged == "arrival":
        mail.raw.rpush(key, "no number")
    else:
        mail.raw.set(key, "no such type")

    with pytest.raises(ServerRefused):
        arrive(mail, (1, "succeeded", b"2"))
    assert join_hash(mail) == before
    mail.raw.delete(key)

    assert arrive(mail, (1, "succeeded", b"2")) == "fired"
    assert mail.ids("scheduled" if damaged == "scheduled" else "waiting") == ["then-j"]
    assert mail.totals() == {"enqueued": 1}


def test_a_last_arrival_behind_a_death_can_be_repeated_when_damage_is_repaired(mail):
    prepare(mail, rule="complete")
    arrive(mail, (0, "dead"))
    before = join_hash(mail)
    mail.raw.set(mail.keys.wake, "no such type")
    with pytest.raises(ServerRefused):
        arrive(mail, (1, "succeeded"))
    assert join_hash(mail) == before
    mail.raw.delete(mail.keys.wake)

    assert arrive(mail, (1, "succeeded")) == "fired"


def test_an_arrival_at_a_join_without_results_can_be_repeated_when_damage_is_repaired(mail):
    prepare(mail, total=1, results=b"[]")
    before = join_hash(mail)
    mail.raw.delete(mail.keys.wake)
    mail.raw.set(mail.keys.wake, "no such type")

    with pytest.raises(ServerRefused):
        arrive(mail, (0, "succeeded", b"1"))
    assert join_hash(mail) == before
    mail.raw.delete(mail.keys.wake)

    assert arrive(mail, (0, "succeeded", b"1")) == "fired"
    assert mail.totals() == {"enqueued": 1}


def test_a_join_given_up_fires_no_more_and_says_so(mail):
    prepare(mail, onward=FAR)
    assert mail.run(flows.abandon(mail.keys, "j")) == "posted"
    assert outbox(mail) == {f"cancelled:{FAR.decode()}": b""}
    assert arrive(mail, (0, "succeeded"), (1, "succeeded")) == "noted"
    assert mail.run(flows.abandon(mail.keys, "j")) == "fired"
    assert mail.ids("waiting") == []


def test_a_join_that_fired_is_not_given_up(mail):
    prepare(mail, total=1)
    arrive(mail, (0, "succeeded"))
    assert mail.run(flows.abandon(mail.keys, "j")) == "fired"
    assert mail.run(flows.abandon(mail.keys, "ghost")) == "gone"
    assert outbox(mail) == {}


@pytest.mark.parametrize("outcome", ["succeeded", "cancelled"])
def test_a_join_that_passed_its_end_on_is_not_given_up(mail, outcome):
    prepare(mail, rule="pass", total=1, task=False, onward=FAR)
    assert arrive(mail, (0, outcome)) == "posted"
    mail.raw.delete(mail.keys.outbox)
    assert mail.run(flows.abandon(mail.keys, "j")) == "fired"
    assert outbox(mail) == {}


def test_a_join_given_up_that_nobody_waits_for_is_quiet(mail):
    prepare(mail)
    assert mail.run(flows.abandon(mail.keys, "j")) == "noted"


@pytest.mark.parametrize("lost", ["rule", "total"])
def test_a_join_that_lost_a_field_is_gone(mail, lost):
    prepare(mail)
    mail.raw.hdel(mail.keys.join("j"), lost)
    before = mail.snapshot()
    assert arrive(mail, (0, "succeeded", b"1")) == mail.run(flows.collect(mail.keys, "j")) == "gone"
    assert mail.snapshot() == before


def test_a_join_that_wants_no_results_keeps_none(mail):
    prepare(mail, results=b"[]")
    arrive(mail, (0, "succeeded", b'"' + 5000 * b"x" + b'"'))
    assert (join_hash(mail)["m0"], join_hash(mail).get("bytes")) == (b"succeeded:", None)


def test_what_is_left_of_a_join_that_fired_says_what_it_was(mail):
    prepare(mail, total=1, ttl_ms=60_000)
    assert arrive(mail, (0, "succeeded")) == "fired"
    assert join_hash(mail) == {"rule": b"success", "total": b"1", "ttl_ms": b"60000", "fired": b"then-j"}


def test_a_death_that_was_told_is_not_told_again(mail):
    prepare(mail, rule="pass", total=1, task=False, onward=FAR)
    assert arrive(mail, (0, "dead")) == "posted"
    mail.raw.delete(mail.keys.outbox)
    assert arrive(mail, (0, "dead")) == "noted"
    assert outbox(mail) == {}
