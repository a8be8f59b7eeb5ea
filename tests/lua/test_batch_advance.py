"""batch_advance: a decided batch is rolled forward in slices, each row applied once."""

import pytest

from jobrunner.broker.calls import batches, tasks
from jobrunner.errors import ServerRefused


@pytest.fixture
def ends(line):
    source, target = line("o/a"), line("o/b")
    source.enqueue(*"uvwxyz")
    source.run(batches.fill(source.keys, "b", 1, had=0, count=6, lease_ms=1000, turn=1))
    return source, target


def decide(source, rows, rest="dropped", **options):
    words = [word for row in rows for word in row]
    source.run(batches.stage(source.keys, "b", 1, "n", words))
    source.run(batches.decide(source.keys, "b", 1, ["n", "empty"], rest=rest, **options))


def advance(source, count=100):
    return source.run(batches.advance(source.keys, "b", count=count))


@pytest.mark.parametrize("to", ["a", "b"])
def test_an_item_that_began_in_a_batch_has_no_time_to_start_by_any_more(line, clock, to):
    source = line("o/a")
    source.configure(expires_in_ms=60_000)
    source.enqueue("u", expires_in_ms=60_000)
    source.run(batches.fill(source.keys, "b", 1, had=0, count=1, lease_ms=1000, turn=1))
    decide(source, [("u", to, b"1", "")])
    advance(source)
    clock.advance(60_000)

    assert [held.id for held in line(f"o/{to}").reserve()] == ["u"]


@pytest.mark.parametrize("size", ["7", "1e9", "inf"])
def test_a_batch_whose_size_is_damaged_comes_to_its_end(ends, size):
    """It was swept for ever, in thousands of calls a second."""
    source, _ = ends
    decide(source, [("u", "b", b"1", "")])
    source.raw.hset(source.keys.batch + b"b", "size", size)

    assert any(advance(source, 3).done for _ in range(10))

    assert source.ids("pending") == source.ids("leases") == []


def test_a_slice_does_so_many_and_the_rest_waits(ends):
    source, target = ends
    decide(source, [(one, "b", b"1", "") for one in "uvwx"])

    assert [advance(source, 3).moved, advance(source, 3).moved] == [3, 1]
    while not advance(source, 3).done:
        pass

    assert target.ids("waiting") == list("uvwx")
    assert source.totals() == {"enqueued": 6, "moved_out": 4, "dropped": 2}
    assert source.ids("pending") == source.ids("leases") == []
    assert source.raw.keys(source.keys.batch + b"*") == [source.keys.batch + b"b"]
    assert source.raw.pttl(source.keys.batch + b"b") > 0
    assert target.wakes()


def test_a_slice_of_more_rows_than_are_read_at_once_ends_where_it_should(line):
    source, target = line("o/a"), line("o/b")
    ids = [f"t{n:02}" for n in range(50)]
    source.enqueue(*ids)
    source.run(batches.fill(source.keys, "b", 1, had=0, count=50, lease_ms=1000, turn=1))
    decide(source, [(one, "b", b"1", "") for one in ids])

    assert [advance(source, 30).moved, advance(source, 30).moved] == [30, 20]
    assert target.ids("waiting") == ids


def test_an_item_keeps_what_it_is_and_begins_anew(ends):
    source, target = ends
    before = {"error": "old", "expiries": 1, "suspect": 1, "retry_count": 2, "headers": '{"a":"1"}'}
    source.raw.hset(source.keys.task("u"), mapping=before)
    decide(source, [("u", "b", b'"new"', '{"headers":{"b":"2"},"type":"T"}')])
    advance(source)

    found = target.hash("u")
    assert (found["payload"], found["retry_count"], found["total_attempts"]) == (b'"new"', b"0", b"3")
    assert found["hops"] == b"1"
    assert (found["queue"], found["type"], found["encoding"]) == (b"o/b", b"T", b"json")
    assert found["headers"] in (b'{"a":"1","b":"2"}', b'{"b":"2","a":"1"}')
    assert not found.keys() & {"error", "expiries", "suspect"}
    assert [one.id for one in target.reserve()] == ["u"]


def test_the_attempts_of_an_item_are_all_runs_of_its_batch(ends, clock):
    source, target = ends
    clock.advance(1000)
    source.run(batches.claim(source.keys, "b", lease_ms=1000))
    source.run(batches.failed_attempt(source.keys, "b", 2, fate="failed", delay_ms=0, reason="why"))
    source.run(batches.claim(source.keys, "b", lease_ms=1000))
    source.run(batches.stage(source.keys, "b", 3, "n", ["u", "b", b"1", ""]))
    source.run(batches.decide(source.keys, "b", 3, ["n"], rest="dropped"))
    advance(source)

    assert target.hash("u")["total_attempts"] == b"3", "a driver that died, one that failed, one that moved it"


def test_a_delay_schedules_it(ends, clock):
    source, target = ends
    decide(source, [("u", "b", b"1", '{"delay_ms":700}')])
    advance(source)

    assert target.scores("scheduled") == {"u": clock.ms + 700}
    assert not target.raw.exists(target.keys.arrival), "so that the next enqueue still registers a new queue"


def test_a_moved_item_waits_by_its_own_priority_unless_the_row_gives_it_another(ends):
    source, target = ends
    target.enqueue("there")
    for one in "uv":
        source.raw.hset(source.keys.task(one), "priority", 2)
    source.raw.hset(source.keys.task("w"), "priority", 0)
    rows = [("w", ""), ("u", '{"priority":0}'), ("v", ""), ("x", '{"priority":2}')]
    decide(source, [(one, "b", b"1", more) for one, more in rows])
    advance(source)

    assert [one.id for one in target.reserve(9)] == ["v", "x", "there", "w", "u"]
    assert [target.hash(one).get("priority") for one in "uvwx"] == [b"0", b"2", b"0", b"2"]


def test_two_rows_for_one_item_are_one_move(ends):
    source, target = ends
    decide(source, [("u", "b", b"1", ""), ("u", "b", b"2", "")])

    step = advance(source)

    assert (step.moved, step.skipped) == (1, 1)
    assert target.hash("u")["payload"] == b"1"


def test_an_item_whose_hold_ran_out_is_skipped(ends, clock):
    source, target = ends
    decide(source, [("u", "b", b"1", "")])
    clock.advance(604_800_000)

    assert advance(source).skipped == 1
    assert advance(source).done
    assert source.ask(9).attempts[0].id == "u"
    assert target.ids("waiting") == []


def test_an_item_that_another_holder_has_is_skipped(ends):
    source, target = ends
    decide(source, [("u", "b", b"1", ""), ("v", "b", b"1", "")], rest="dropped")
    source.raw.zadd(source.keys.leases, {"u": 2**51 + 5, "z": 2**51 + 6})

    step = advance(source)

    assert (step.moved, step.skipped, step.ended) == (1, 1, 3)
    assert (target.ids("waiting"), source.ids("pending")) == (["v"], ["u", "z"])


def test_members_that_are_dropped_or_succeed_stay_in_the_history(ends):
    source, _ = ends
    source.configure(history_ms=60_000)
    decide(source, [], rest="dropped")

    assert advance(source).ended == 6

    assert len(source.ids("done")) == 6
    assert source.hash("u")["outcome"] == b"cancelled"


@pytest.mark.parametrize(("rest", "word"), [("succeeded", b"succeeded"), ("dropped", b"cancelled")])
def test_who_waits_for_the_end_of_a_member_is_told(ends, keys, raw, rest, word):
    source, _ = ends
    source.run(tasks.show(keys, "u", queue="o/a", awaited=True))
    decide(source, [], rest=rest)
    with raw.pubsub() as ears:
        ears.subscribe(source.keys.finished + b"u")
        ears.get_message(timeout=5)
        advance(source)
        heard = ears.get_message(timeout=5)

    assert heard["data"] == word


def test_the_end_of_a_task_of_a_flow_is_told(line):
    source = line("o/a")
    source.enqueue("f", then=b"joined")
    source.run(batches.fill(source.keys, "b", 1, had=0, count=6, lease_ms=1000, turn=1))
    decide(source, [], rest="succeeded")
    advance(source)

    assert source.raw.hgetall(source.keys.outbox) == {b"succeeded:joined": b""}


@pytest.mark.parametrize("denied", ["zadd", "hset", "hincrby", "zrem", "ltrim", "hdel", "unlink", "set"])
def test_a_command_that_is_denied_half_way_loses_and_doubles_nothing(ends, weak_broker, denied):
    source, target = ends
    decide(source, [(one, "b", b"1", "") for one in "uvwx"])
    source.raw.hset(source.keys.task("u"), "error", "old")

    with pytest.raises(ServerRefused):
        weak_broker(f"-{denied}").run(batches.advance(source.keys, "b"))
    assert set("uvwx") <= {*source.ids("pending"), *target.ids("waiting")}
    while not advance(source).done:
        pass

    assert sorted(target.ids("waiting")) == list("uvwx")
    assert source.ids("pending") == []


def test_it_works_on_a_server_that_is_full(ends):
    source, target = ends
    decide(source, [(one, "b", b"1", "") for one in "uvwx"])
    source.raw.config_set("maxmemory", 1)
    try:
        while not advance(source).done:
            pass
    finally:
        source.raw.config_set("maxmemory", 0)
    assert target.ids("waiting") == list("uvwx")


def test_a_new_item_with_a_delay_that_moved_too_often_is_dead(ends):
    source, target = ends
    source.raw.hset(source.keys.task("u"), "hops", 3)
    more = '{"new":1,"parent":"u","delay_ms":5000}'
    decide(source, [("kid", "b", b"1", more), ("v", "b", b"2", "")], rest="succeeded", max_hops=3)

    step = advance(source)

    assert (step.done, step.dead, step.moved, step.ended) == (True, 1, 1, 5)
    assert source.ids("dead") == ["kid"]
    assert source.totals() == {"enqueued": 7, "succeeded": 5, "moved_out": 1, "failed": 1, "dead": 1}
    assert (target.ids("scheduled"), target.ids("waiting")) == ([], ["v"])


def test_a_new_item_inherits_from_the_member_that_it_comes_from(ends):
    source, target = ends
    inherited = {"hops": 2, "headers": '{"a":"1"}', "priority": 2, "key": "k"}
    source.raw.hset(source.keys.task("u"), mapping=inherited)
    rows = [("kid", '"parent":"u"'), ("own", '"parent":"u","priority":0,"headers":{"b":"2"}'), ("none", '"parent":"v"')]
    decide(source, [(one, "b", b"1", f'{{"new":1,{more}}}') for one, more in rows])
    assert advance(source).new == 3

    kid, own, none = (target.hash(one) for one, _ in rows)
    assert [kid[name] for name in ("hops", "headers", "priority", "key")] == [b"3", b'{"a":"1"}', b"2", b"k"]
    assert own["headers"] in (b'{"a":"1","b":"2"}', b'{"b":"2","a":"1"}')
    assert (own["priority"], own["hops"]) == (b"0", b"3")
    assert not none.keys() & {"headers", "priority", "key"}
    assert [one.id for one in target.reserve(3)] == ["kid", "none", "own"]


@pytest.mark.parametrize(("hops", "state"), [(2, "waiting"), (3, "dead")])
def test_a_new_item_may_have_moved_as_often_as_the_limit_says(ends, hops, state):
    source, target = ends
    source.raw.hset(source.keys.task("u"), "hops", hops)
    decide(source, [("kid", "b", b"1", '{"new":1,"parent":"u"}')], max_hops=3)
    advance(source)
    assert (target if state == "waiting" else source).ids(state) == ["kid"]


def test_a_new_item_is_handed_out_with_its_headers_and_encoding(ends):
    source, target = ends
    rows = [("plain", '"type":"T"'), ("headed", '"type":"T","headers":{"a":"1"}'), ("untyped", '"type":""')]
    decide(source, [(one, "b", b"1", f'{{"new":1,"parent":"u",{more}}}') for one, more in rows])
    advance(source)

    plain, headed, untyped = target.reserve(3)
    assert (plain.headers, headed.headers, untyped.headers) == (None, b'{"a":"1"}', None)
    assert (plain.encoding, untyped.encoding) == (None, b"json")
    assert "more" not in target.hash("plain"), "a reserve reads no further fields of it"


def test_new_items_of_a_write_share_a_priority(line):
    source, target = line("o/a"), line("o/b")
    target.enqueue("there")
    source.run(batches.begin(source.keys, "b", lease_ms=1000, shared={"priority": 2, "type": "T", "key": "k"}))
    decide(source, [("new", "b", b"1", '{"new":1}'), ("own", "b", b"1", '{"new":1,"priority":0}')])
    advance(source)

    assert "more" not in target.hash("new"), "a reserve reads no further fields of it"
    assert [one.id for one in target.reserve(3)] == ["new", "there", "own"]
    assert (target.hash("new")["priority"], target.hash("own")["priority"]) == (b"2", b"0")


def test_new_items_of_a_write_are_handed_out_with_what_else_they_share(line):
    source, target = line("o/a"), line("o/b")
    shared = {"priority": 2, "type": "T", "max_attempts": 7}
    source.run(batches.begin(source.keys, "b", lease_ms=1000, shared=shared))
    decide(source, [(one, "b", b"1", '{"new":1}') for one in ("new", "next")])
    advance(source)

    assert [one.max_attempts for one in target.reserve(2)] == [7, 7]


@pytest.mark.parametrize("is_there_before", [False, True])
def test_a_new_item_whose_id_exists_is_skipped_and_counted(ends, is_there_before):
    source, target = ends
    if is_there_before:
        target.enqueue("kid", payload=b"0")
    made = ["other", "kid"] if is_there_before else ["kid", "kid"]
    rows = enumerate(zip(made, "uv", strict=True))
    decide(source, [(kid, "b", b"%d" % n, f'{{"new":1,"parent":"{of}"}}') for n, (kid, of) in rows])

    step = advance(source)

    assert (step.new, step.skipped) == (1, 1)
    assert target.hash("kid")["payload"] == b"0"
    assert target.hash(made[0])["payload"] == b"0"


def test_headers_that_are_no_object_are_replaced(ends):
    source, target = ends
    source.raw.hset(source.keys.task("u"), "headers", "5")
    decide(source, [("u", "b", b"1", '{"headers":{"b":"2"}}')])

    assert advance(source).moved == 1
    assert target.hash("u")["headers"] == b'{"b":"2"}'


def test_a_batch_that_waits_for_room_keeps_its_members_however_long(ends, clock):
    source, target = ends
    target.configure(max_size=1)
    decide(source, [(one, "b", b"1", "") for one in "uvwxyz"])
    assert advance(source).full == "b"
    for _ in range(4):
        clock.advance(600_000_000 / 2)
        assert advance(source).full == "b"

    target.configure(max_size=100)
    assert advance(source).moved == 5

    assert target.ids("waiting") == list("uvwxyz")
    assert source.reserve(9) == []


def test_a_slice_of_large_payloads_is_short(line):
    source, target = line("o/a"), line("o/b")
    ids = [f"i{n:02}" for n in range(60)]
    source.enqueue(*ids)
    source.run(batches.fill(source.keys, "b", 1, had=0, count=60, lease_ms=1000, turn=1))
    decide(source, [(one, "b", b'"' + 100_000 * b"x" + b'"', "") for one in ids])

    moved = [advance(source).moved for _ in range(4)]

    assert sum(moved) == 60
    assert max(moved) <= 20
    assert advance(source).done
    assert target.ids("waiting") == ids


@pytest.mark.parametrize("rows", [1, 6])
def test_an_idle_worker_of_a_queue_with_a_cap_is_woken_when_rows_made_room(ends, rows):
    source, _ = ends
    source.configure(max_inflight=6)
    decide(source, [(one, "b", b"1", "") for one in "uvwxyz"])
    source.wakes()

    advance(source, rows)

    assert source.wakes()


@pytest.mark.parametrize(("cap", "wakes"), [(6, True), ("", False)])
def test_an_idle_worker_of_a_queue_with_a_cap_is_woken_when_members_without_rows_ended(ends, cap, wakes):
    source, _ = ends
    source.configure(max_inflight=cap) if cap else None
    decide(source, [], rest="succeeded")
    source.wakes()

    advance(source)

    assert source.wakes() == wakes


def test_a_batch_that_waits_for_capacity_is_left_to_the_process_that_polls_for_it(ends, clock):
    """Another one would count the batch a second time."""
    source, target = ends
    target.configure(max_size=1)
    target.enqueue("there")
    decide(source, [("u", "b", b"1", "")])
    clock.advance(60_000)
    for _ in range(3):
        assert advance(source).full == "b"
        assert source.run(batches.claim(source.keys, "b", lease_ms=60_000)) is False
        clock.advance(4_999)
    clock.advance(1)

    assert source.run(batches.claim(source.keys, "b", lease_ms=60_000)).state == "committed"

    advance(source)
    clock.advance(59_999)
    assert source.run(batches.claim(source.keys, "b", lease_ms=60_000)) is False, "a longer lease stays"


def test_a_write_that_waits_for_capacity_is_not_left_alone_for_the_lease_of_its_claim(line, clock):
    """Whoever claimed it has let go of it: it reads the queue, so it makes the room that is missing."""
    clock.set()
    queue = line("b")
    queue.configure(max_size=1)
    queue.enqueue("there")
    queue.run(batches.begin(queue.keys, "w", lease_ms=1000, shared={}))
    queue.run(batches.stage(queue.keys, "w", 1, "n", ["u", "b", b"1", '{"new":1}'], after=0))
    queue.run(batches.decide(queue.keys, "w", 1, {"n": 1}, rest="succeeded"))
    clock.advance(1000)
    assert queue.run(batches.claim(queue.keys, "w", lease_ms=60_000)).state == "committed"
    assert queue.run(batches.advance(queue.keys, "w", count=10)).full == "b"
    clock.advance(4_999)
    assert queue.run(batches.claim(queue.keys, "w", lease_ms=60_000)) is False
    clock.advance(1)
    assert queue.run(batches.claim(queue.keys, "w", lease_ms=60_000)).state == "committed"
