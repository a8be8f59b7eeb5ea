"""periodic_define: a worker publishes the periodic jobs it knows, with the time it did so."""

import hashlib

from jobrunner.broker.calls import leader as leader_calls


def test_definitions_are_published_with_the_time(broker, keys, clock):
    clock.set(1_700_000_000_000.25)

    assert broker.run(leader_calls.define_periodics(keys, {"a": b"1", "b": b"2"})) == 2

    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1", "b": b"2"}
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms, "b": clock.ms}


def test_only_a_change_counts_as_one_but_the_time_goes_on(broker, keys, clock, raw):
    clock.set()
    broker.run(leader_calls.define_periodics(keys, {"a": b"1", "b": b"2"}))
    clock.advance(5)

    assert broker.run(leader_calls.define_periodics(keys, {"a": b"1"})) == 0
    assert broker.run(leader_calls.define_periodics(keys, {"b": b"3"})) == 1

    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1", "b": b"3"}
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms, "b": clock.ms}
    assert raw.get(keys.periodics_version) == b"2"


def test_what_is_noted_of_a_definition_is_one_entry_with_the_time_of_the_last(broker, keys, clock, raw):
    clock.set(1_700_000_000_000.75)
    define = [leader_calls.define_periodics(keys, {"a": one}) for one in (b"1", b"2")]
    noted = []
    for one in (0, 0, 1, 0):
        broker.run(define[one])
        noted.append(raw.hget(keys.periodics_deployed, "a").split())
        clock.advance(5)

    first, second = noted[0][0], noted[2][2]
    times = [b"%d" % (1_700_000_000_000 + 5 * n) for n in range(4)]
    assert noted == [
        [first, times[0]], [first, times[1]], [first, times[1], second, times[2]],
        [first, times[3], second, times[2]],
    ]  # fmt: skip
    clock.advance(86_400_000)
    broker.run(define[1])
    assert raw.hget(keys.periodics_deployed, "a").split() == [second, b"%d" % clock.ms]


def test_of_many_definitions_of_one_job_the_sixteen_newest_are_noted(broker, keys, clock, raw):
    clock.set()
    for n in range(18):
        broker.run(leader_calls.define_periodics(keys, {"a": b"%d" % n}))
    noted = raw.hget(keys.periodics_deployed, "a").split()[::2]
    assert noted == [hashlib.sha256(b"%d" % n).hexdigest()[:16].encode() for n in range(2, 18)]


def test_a_definition_is_in_force_again_when_none_newer_is_published(broker, keys, clock):
    clock.set()
    old, new = (leader_calls.define_periodics(keys, {"a": one}) for one in (b"1", b"2"))
    for one in (old, new):
        broker.run(one)
    clock.advance(30_000)
    assert broker.run(old) == 0
    assert broker.run(leader_calls.periodics(keys)) == {"a": b"2"}, "a worker of the new release may still be there"
    clock.advance(1)
    assert broker.run(old) == 1
    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1"}


def test_a_worker_with_rare_heartbeats_publishes_for_longer(broker, keys, clock):
    clock.set()
    broker.run(leader_calls.define_periodics(keys, {"a": b"1"}))
    broker.run(leader_calls.define_periodics(keys, {"a": b"2"}, ttl_ms=30_001))
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms + 1}
    broker.run(leader_calls.define_periodics(keys, {"a": b"2"}, ttl_ms=510_000))
    assert broker.run(leader_calls.periodics_seen(keys)) == {"a": clock.ms + 480_000}
    found = []
    for step_ms in (510_000, 1):
        clock.advance(step_ms)
        broker.run(leader_calls.define_periodics(keys, {"a": b"1"}))
        found.append(broker.run(leader_calls.periodics(keys))["a"])
    assert found == [b"2", b"1"]


def test_a_definition_that_is_known_again_after_a_while_counts(broker, keys, clock, raw):
    clock.set()
    call = leader_calls.define_periodics(keys, {"a": b"1"})
    found = []
    for step_ms in (0, 30_000, 30_001):
        clock.advance(step_ms)
        found.append((broker.run(call), raw.get(keys.periodics_version)))
    assert found == [(1, b"1"), (0, b"1"), (1, b"2")]


def test_a_definition_that_is_forgotten_leaves_nothing(broker, keys):
    broker.run(leader_calls.define_periodics(keys, {"a": b"1"}))
    broker.run_many(leader_calls.forget_periodic(keys, "a"))

    assert broker.run(leader_calls.periodics(keys)) == {}
    assert broker.run(leader_calls.periodics_seen(keys)) == {}


def test_a_worker_that_starts_on_a_full_server_says_what_it_knows(broker, keys, raw):
    raw.config_set("maxmemory", 1)
    try:
        assert broker.run(leader_calls.define_periodics(keys, {"a": b"1"})) == 1
    finally:
        raw.config_set("maxmemory", 0)
    assert broker.run(leader_calls.periodics(keys)) == {"a": b"1"}
