"""batch_advance: what rows make of members and of new items, each hash as a whole; lists of rows; limits of keys."""

import pytest

from jobrunner.broker.calls import batches


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


@pytest.mark.parametrize("when", ['"delay_ms":700', '"at_ms":%d'])
def test_a_new_item_may_be_due_later(ends, clock, when):
    source, target = ends
    due = clock.ms + 700
    more = when % due if "%" in when else when
    decide(source, ("kid", "b", b"1", f'{{"new":1,"parent":"u",{more}}}'))
    assert advance(source).new == 1

    assert target.scores("scheduled") == {"kid": due}
    assert float(target.hash("kid")["place"]) == due


def test_a_moved_item_is_a_task_of_its_new_queue(ends, clock):
    source, target = ends
    before = source.hash("u")
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
    size, _ = fill(source)
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
