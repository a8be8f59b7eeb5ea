"""batch_advance: how rows change members and create items, compared field by field; lists of rows; limits of keys."""

import pytest

from jobrunner.broker.calls import batches, tasks
from jobrunner.broker.calls.error_groups import error_groups


@pytest.fixture
def ends(line):
    """Queue o/a with the batch "b" of members u to x, and queue o/b."""
    source, target = line("o/a"), line("o/b")
    source.enqueue(*"uvwx", type="T", key="k")
    fill(source)
    return source, target


def fill(source, count=4, *, had=0, turn=1):
    return source.run(batches.fill(source.keys, "b", 1, had=had, count=count, lease_ms=1000, turn=turn))


def stage(source, *rows, nonce="n"):
    source.run(batches.stage(source.keys, "b", 1, nonce, [word for row in rows for word in row]))


def decide(source, *rows, rest="dropped", nonces=("n",)):
    if rows:
        stage(source, *rows)
    source.run(batches.decide(source.keys, "b", 1, nonces if rows or nonces != ("n",) else [], rest=rest))


def advance(source, count=100):
    return source.run(batches.advance(source.keys, "b", count=count))


def numbers(found):
    """A hash with its numbers as such: a place, and a time, may be written with a fraction or without."""
    return found | {name: float(found[name]) for name in ("place", "enqueue_time")}


def test_a_new_item_is_a_task_of_its_queue(ends, clock):
    source, target = ends
    clock.advance(5)
    rows = [("kid", "b", b"1", '{"new":1,"parent":"u","type":"N"}'), ("own", "b", b"2", '{"new":1,"key":"o"}')]
    decide(source, *rows)
    assert advance(source).new == 2

    kid, own = numbers(target.hash("kid")), numbers(target.hash("own"))
    common = {"queue": b"o/b", "enqueue_time": clock.ms, "retry_count": b"0"}
    places = target.scores("waiting")
    assert kid == common | {
        "id": b"kid", "payload": b"1", "type": b"N", "hops": b"1", "key": b"k", "place": places["kid"],
    }  # fmt: skip
    assert own == common | {
        "id": b"own", "payload": b"2", "type": b"", "encoding": b"json", "more": b"1", "key": b"o",
        "place": places["own"],
    }  # fmt: skip
    assert float(target.raw.get(target.keys.arrival)) == places["own"] > places["kid"] >= clock.ms
    assert target.totals() == {"enqueued": 2}
    assert target.wakes()


@pytest.mark.parametrize(("when", "in_ms"), [('"delay_ms":700', 700), ('"delay_ms":1', 1), ('"at_ms":%d', 700)])
def test_a_new_item_may_be_due_later(ends, clock, when, in_ms):
    source, target = ends
    due = clock.ms + in_ms
    more = when % due if "%" in when else when
    decide(source, ("kid", "b", b"1", f'{{"new":1,"parent":"u",{more}}}'))
    assert advance(source).new == 1

    assert target.scores("scheduled") == {"kid": due}
    assert float(target.hash("kid")["place"]) == due


def test_a_moved_item_is_a_task_of_its_new_queue(ends, clock):
    source, target = ends
    before = source.hash("u")
    source.raw.hset(source.keys.task("u"), "unknown_since", "1")
    clock.advance(5)
    decide(source, ("u", "b", b"1", ""))
    assert advance(source).moved == 1

    moved = numbers(target.hash("u"))
    assert moved == numbers(before) | {
        "queue": b"o/b", "payload": b"1", "hops": b"1", "total_attempts": b"1", "encoding": b"json", "more": b"1",
        "place": clock.ms + 0.5,
    }  # fmt: skip
    assert (source.totals()["moved_out"], target.totals()) == (1, {"moved_in": 1})


def test_a_batch_of_very_many_lists_of_rows_ends(ends):
    source, target = ends
    ids = [f"n{n:03}" for n in range(205)]
    for one in ids:
        stage(source, (one, "b", b"1", '{"new":1}'), nonce=one)
    decide(source, nonces=ids)

    steps = [advance(source, 1000) for _ in range(4)]

    assert [step.new for step in steps] == [100, 100, 5, 0]
    assert [step.done for step in steps] == [False, False, True, True]
    assert target.ids("waiting") == ids


def inflight(line):
    return line.raw.hgetall(line.keys.waiting.removesuffix(b"waiting") + b"inflight")


def test_a_batch_takes_no_more_of_a_key_than_it_may(line):
    source = line("o/a")
    source.configure(key_inflight=2)
    source.enqueue(*"abc", key="k")
    source.enqueue("z", key="z")

    assert fill(source)[0] == 3
    assert inflight(source) == {b"k": b"2", b"z": b"1"}
    assert source.reserve(9) == []


@pytest.mark.parametrize("way", ["dropped", "succeeded", "dissolved", "poison"])
def test_members_that_ended_no_longer_count_for_their_key(line, way):
    source = line("o/a")
    source.configure(key_inflight=4)
    source.enqueue(*("u" if way == "poison" else "uvwx"), key="k")
    size, *_ = fill(source)
    if way in ("dropped", "succeeded"):
        decide(source, ("u", "b", b"1", ""), rest=way)
    else:
        source.run(batches.failed_attempt(source.keys, "b", 1, fate=way, reason="E: no"))
    assert inflight(source) == {b"k": b"%d" % size}
    assert advance(source).done

    assert inflight(source) == {}
    assert not source.raw.exists(source.keys.waiting.removesuffix(b"waiting") + b"holders")
    assert source.ids("dead") == (["u"] if way == "poison" else [])
    assert len(source.reserve(9)) == (4 if way == "dissolved" else 0)


@pytest.mark.parametrize("most", [1, 2])
def test_a_member_moves_as_often_as_the_limit_says(ends, most):
    source, target = ends
    source.raw.hset(source.keys.task("u"), "hops", most)
    source.raw.hset(source.keys.task("v"), "hops", most - 1)
    stage(source, ("u", "b", b"1", ""), ("v", "b", b"1", ""))
    source.run(batches.decide(source.keys, "b", 1, ["n"], rest="dropped", max_hops=most))
    step = advance(source)

    assert (step.moved, step.dead) == (1, 1)
    assert (target.ids("waiting"), source.ids("dead")) == (["v"], ["u"])


def test_a_member_that_lost_a_field_moves_and_one_that_lost_its_hash_does_not(ends):
    source, target = ends
    source.raw.hdel(source.keys.task("u"), "retry_count", "priority")
    source.raw.delete(source.keys.task("v"))
    source.raw.delete(source.keys.task("w"))
    source.raw.set(source.keys.task("w"), "damage")
    decide(source, *[(one, "b", b"1", "") for one in "uvw"])
    step = advance(source)

    assert (step.moved, step.ended) == (1, 1)
    assert target.ids("waiting") == ["u"]
    assert source.totals()["orphaned"] == 2
    assert target.hash("u")["total_attempts"] == b"1"


def test_slices_of_one_do_one_row_or_member_each(ends):
    source, target = ends
    decide(source, ("u", "b", b"1", ""), ("v", "b", b"1", ""))
    steps = [advance(source, 1) for _ in range(9)]

    assert [step.moved for step in steps[:2]] == [1, 1]
    assert (sum(step.moved for step in steps), sum(step.ended for step in steps)) == (2, 2)
    assert max(step.count for step in steps) == 1
    assert all(step.full is None for step in steps)
    assert steps[-1].done
    assert target.ids("waiting") == ["u", "v"]


def test_the_bound_on_a_slice_counts_the_rows_of_all_lists_and_the_members(ends):
    source, target = ends
    lists = {"m": "abc", "n": "def", "o": "ghi"}
    for nonce, names in lists.items():
        stage(source, *[(one, "b", b"1", '{"new":1}') for one in names], nonce=nonce)
    decide(source, nonces=lists)

    assert [advance(source, 4).new for _ in range(3)] == [4, 4, 1]
    assert target.ids("waiting") == list("abcdefghi")


def test_members_end_by_the_slice(ends):
    source, _ = ends
    decide(source)
    steps = [advance(source, 3) for _ in range(2)]
    assert [(step.ended, step.done) for step in steps] == [(3, False), (1, True)]
    assert source.totals()["dropped"] == 4


def test_a_member_whose_end_was_asked_for_is_cancelled_and_deleted(ends):
    source, target = ends
    for one in "uv":
        source.raw.hset(source.keys.task(one), "cancel_requested", 1)
    decide(source, ("u", "b", b"1", ""), ("v", "b", b"1", ""))
    step = advance(source)

    assert (step.moved, step.ended) == (0, 2)
    assert (target.ids("waiting"), source.ids("pending")) == ([], [])
    assert {name: source.totals()[name] for name in ("cancelled", "dropped")} == {"cancelled": 2, "dropped": 2}
    assert not source.raw.exists(*[source.keys.task(one) for one in "uvwx"]), "nobody keeps them"


def test_a_row_without_a_queue_is_a_death(ends):
    source, target = ends
    decide(source, ("u", "", b"E: no", ""), ("v", "b", b"1", ""), rest="succeeded")
    assert source.run(batches.decide(source.keys, "b", 1, ["n"], rest="succeeded")) == ("b",)
    step = advance(source)

    assert (step.moved, step.dead, step.ended) == (1, 1, 2)
    dead = source.hash("u")
    assert (dead["retry_count"], dead["more"], dead["error"]) == (b"1", b"1", b"E: no")
    assert source.ids("dead") == ["u"]
    ((found,),) = [one.groups for one in source.run(error_groups([source.keys])[0])]
    assert (found.error_type, found.message, found.count, found.dead) == ("E", "no", 1, 1)
    assert target.ids("waiting") == ["v"]
    totals = {"enqueued": 4, "moved_out": 1, "failed": 1, "dead": 1, "succeeded": 2}
    assert source.totals() == totals


def test_members_that_die_together_are_no_ended_ones(line):
    source = line("o/a")
    source.enqueue("u")
    fill(source)
    source.run(batches.failed_attempt(source.keys, "b", 1, fate="poison", reason="E: no"))
    step = advance(source)
    assert (step.dead, step.ended) == (1, 0)


@pytest.mark.parametrize("field", ["error", "expiries"])
def test_what_was_noted_of_the_failures_of_a_member_stays_behind(ends, field):
    source, target = ends
    source.raw.hset(source.keys.task("u"), mapping={field: "1", "suspect": "1", "total_attempts": 5, "hops": 2})
    decide(source, ("u", "b", b"1", ""))
    advance(source)

    found = target.hash("u")
    assert not found.keys() & {"error", "expiries", "suspect"}
    assert (found["total_attempts"], found["hops"]) == (b"6", b"3")


@pytest.mark.parametrize("row", [("u", "b", b"1", ""), ("kid", "b", b"1", '{"new":1}')])
def test_a_single_row_wakes_a_worker_of_its_queue(ends, row):
    source, target = ends
    decide(source, row)
    advance(source)
    assert target.wakes()


def test_what_is_left_of_a_batch_says_what_became_of_it(ends):
    source, _ = ends
    decide(source, ("u", "b", b"1", ""))
    assert advance(source).done
    key = source.keys.batch + b"b"
    assert source.raw.hgetall(key) == {
        b"state": b"done", b"queue": b"o/a", b"epoch": b"1", b"decided": b"1", b"rows": b"1",
    }  # fmt: skip
    assert source.raw.keys(key + b"*") == [key]
    assert source.scores("finishing") == source.scores("batches") == {}


def test_the_list_of_members_stays_until_the_last_part_is_over(ends):
    source, _ = ends
    source.run(batches.failed_attempt(source.keys, "b", 1, fate="blamed", reason="E: no"))
    key = source.keys.batch + b"b"
    for n in (1, 2, 3, 4):
        assert source.raw.exists(key + b":members")
        assert source.raw.pttl(key) == -1
        part = f"b.p{n}of4"
        source.run(batches.claim(source.keys, part, lease_ms=1000))
        source.run(batches.decide(source.keys, part, 1, [], rest="dropped"))
        assert source.run(batches.advance(source.keys, part, count=9)).done
        assert 0 < source.raw.pttl(source.keys.batch + part.encode()) <= 86_400_000
    assert not source.raw.exists(key + b":members")
    assert 0 < source.raw.pttl(key) <= 86_400_000
    assert source.totals() == {"enqueued": 4, "dropped": 4}


def test_a_part_whose_rows_name_members_of_another_ends_its_own_as_well(ends):
    source, target = ends
    source.run(batches.failed_attempt(source.keys, "b", 1, fate="blamed", reason="E: no"))
    source.run(batches.claim(source.keys, "b.p1of4", lease_ms=1000))
    source.run(batches.stage(source.keys, "b.p1of4", 1, "n", ["v", "b", b"1", ""]))
    source.run(batches.decide(source.keys, "b.p1of4", 1, ["n"], rest="dropped"))
    while not source.run(batches.advance(source.keys, "b.p1of4", count=9)).done:
        pass
    assert target.ids("waiting") == ["v"]
    assert sorted(source.ids("pending")) == ["w", "x"]


def test_who_waits_for_a_member_hears_of_its_death(ends, keys):
    source, _ = ends
    source.run(tasks.show(keys, "u", queue="o/a", awaited=True))
    decide(source, ("u", "", b"E: no", ""))
    with source.raw.pubsub() as ears:
        ears.subscribe(source.keys.finished + b"u")
        ears.get_message(timeout=5)
        advance(source)
        heard = ears.get_message(timeout=5)
    assert heard["data"] == b"dead"


def test_a_member_that_is_kept_has_no_result(ends):
    source, _ = ends
    source.configure(history_ms=60_000)
    decide(source)
    advance(source)
    assert (source.hash("u")["outcome"], source.hash("u")["result"]) == (b"cancelled", b"")


def test_a_new_item_that_moved_too_often_made_no_attempt(ends):
    source, _ = ends
    source.raw.hset(source.keys.task("u"), "hops", 3)
    stage(source, ("kid", "b", b"1", '{"new":1,"parent":"u"}'))
    source.run(batches.decide(source.keys, "b", 1, ["n"], rest="dropped", max_hops=3))
    advance(source)
    assert (source.ids("dead"), source.hash("kid")["retry_count"]) == (["kid"], b"0")


def test_a_new_item_of_a_member_that_left_is_not_made(ends):
    source, target = ends
    source.raw.zrem(source.keys.leases, "u")
    decide(source, *[(f"kid of {one}", "b", b"1", f'{{"new":1,"parent":"{one}"}}') for one in "uv"])
    step = advance(source)
    assert (step.new, step.skipped) == (1, 1)
    assert target.ids("waiting") == ["kid of v"]


def test_a_batch_is_not_over_before_all_that_was_staged_is_gone(ends):
    source, _ = ends
    key = source.keys.batch + b"b"
    names = [f"1.old{n}" for n in range(700)]
    source.raw.sadd(key + b":nonces", *names)
    for name in (names[0], names[-1]):
        source.raw.rpush(key + b":rows:" + name.encode(), "x")
    decide(source)

    assert not advance(source).done
    assert source.raw.hget(key, "state") == b"committed"
    assert advance(source).done
    assert source.raw.keys(key + b"*") == [key]


@pytest.mark.parametrize(("there", "moved", "full"), [(0, 2, None), (1, 1, "b"), (2, 0, "b")])
def test_a_queue_takes_as_many_as_it_may_hold_those_that_are_due_later_too(ends, there, moved, full):
    source, target = ends
    target.configure(max_size=2)
    for n in range(there):
        target.enqueue(f"later{n}", delay_ms=60_000)
    decide(source, ("u", "b", b"1", ""), ("v", "b", b"1", ""))
    step = advance(source)
    assert (step.moved, step.full) == (moved, full)


def test_a_queue_of_no_pipeline_gets_new_items_under_its_own_name(mail):
    mail.run(batches.begin(mail.keys, "b", lease_ms=1000, shared={"type": "T"}))
    decide(mail, ("new", "mail", b"1", '{"new":1}'))
    assert advance(mail).new == 1
    assert mail.hash("new")["queue"] == b"mail"
